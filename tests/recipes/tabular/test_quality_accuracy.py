"""Accuracies against a slow twin from their definition; the original itself is compared in `originals`."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from tests.recipes.tabular.tables import mixed, shop

from stoker.recipes.tabular.quality_accuracy import _binned, _compare, _pick, accuracy_of_counts, compare_accuracy
from stoker.recipes.tabular.quality_noise import make_splits
from stoker.recipes.tabular.quality_tables import read_events


def slow(real: list[tuple[int, ...]], synthetic: list[tuple[int, ...]]) -> tuple[float, float]:
    """1 minus half the L1 distance of shares, and its expectation for two samples of the real law."""
    mine, theirs = Counter(real), Counter(synthetic)
    observed = sum(abs(mine[cell] / len(real) - theirs[cell] / len(synthetic)) for cell in {*mine, *theirs})
    shares = [count / len(real) for count in mine.values()]
    expected = sum((2 / np.pi * p * (1 - p) * (1 / len(real) + 1 / len(synthetic))) ** 0.5 for p in shares)
    return round(1 - observed / 2, 5), round(1 - expected / 2, 5)


def test_the_kernel_is_the_definition() -> None:
    tables = read_events({"real": mixed(150, 0)[0], "synthetic": mixed(120, 1)[0]}, {}, key="user_id")
    random = np.random.RandomState(0)
    rows, other = _binned([_pick(tables["real"], random, is_sequence=True)], _pick(tables["synthetic"], random, is_sequence=True))
    few = range(6)
    combos = [*((i,) for i in few), *combinations(few, 2), *combinations(few, 3)]
    found = _compare(rows.codes, other.codes, rows.sizes, combos)
    for combo, one in zip(combos, found, strict=True):
        expected = slow([tuple(row) for row in rows.codes[list(combo)].T], [tuple(row) for row in other.codes[list(combo)].T])
        assert (one.value, one.maximum) == pytest.approx(expected, abs=1.1e-5)
        counts = [np.bincount(side.cells(combo)[0], minlength=rows.cells(combo)[1]) for side in (rows, other)]
        again = accuracy_of_counts(*counts)
        assert (again.value, again.maximum) == pytest.approx((one.value, one.maximum), abs=1.1e-5)


def test_one_event_and_the_next_of_each_subject_are_picked() -> None:
    frame = mixed(80, 0)[0]
    tables = read_events({"real": frame}, {}, key="user_id")
    picked = _pick(tables["real"], np.random.RandomState(1), is_sequence=True)
    subjects = sorted(frame["user_id"].unique())
    for row, number in enumerate(picked["subjects"].data.astype(int)):
        own = frame[frame["user_id"] == subjects[number]].reset_index(drop=True)
        assert picked["tgt::Sequence Length"].data[row] == len(own)
        places = np.flatnonzero(own["amount"] == picked["tgt::amount"].data[row])
        following = picked["nxt::amount"].data[row]
        if len(own) == 1:
            assert np.isnan(following)
        else:
            assert any(place + 1 < len(own) and own["amount"][place + 1] == following for place in places)


def test_shuffled_events_lower_coherence_and_a_permuted_column_pairs() -> None:
    real, synthetic = shop(600, 0), shop(600, 1)
    rng = np.random.default_rng(0)
    spoilt = synthetic.assign(state=rng.permutation(synthetic["state"]))
    dearer = synthetic.assign(amount=2 * synthetic["amount"])
    tables_of = {"fresh": synthetic, "spoilt": spoilt, "dearer": dearer}
    found = {}
    for name, table in tables_of.items():
        tables = read_events({"real": real, "synthetic": table}, {}, key="user_id")
        splits = make_splits(tables["real"].num_subjects, tables["synthetic"].num_subjects, np.random.default_rng(0))
        one = compare_accuracy([tables["real"]], tables["synthetic"], splits, seed=0, is_sequence=True)
        found[name] = {each.name: each for each in one.measures}
        assert one.overall.value == pytest.approx(np.mean([part.value for part in one.parts.values()]))
    assert all(one.verdict == "same" for one in found["fresh"].values())
    assert found["spoilt"]["coherence"].verdict == found["spoilt"]["bivariate"].verdict == "differs"
    assert found["spoilt"]["trivariate"].verdict == found["dearer"]["univariate"].verdict == "differs"
    assert found["spoilt"]["univariate"].verdict == "same"
