"""Measures of sequences: slow twins, and what each of them must catch and must not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.recipes.tabular.tables import bursts, permuted_subjects, shop, shuffled_events

from stoker.recipes.tabular.quality_noise import make_splits
from stoker.recipes.tabular.quality_sequences import GAP, SequenceFindings, compare_sequences
from stoker.recipes.tabular.quality_tables import read_events


def compare(real: pd.DataFrame, synthetic: pd.DataFrame) -> SequenceFindings:
    tables = read_events({"real": real, "synthetic": synthetic}, {}, key="user_id")
    splits = make_splits(tables["real"].num_subjects, tables["synthetic"].num_subjects, np.random.default_rng(0))
    return compare_sequences(tables["real"], tables["synthetic"], splits, time="time")


def verdicts(found: SequenceFindings) -> dict[str, str]:
    return {one.name: one.verdict for one in found.measures}


def scores(found: SequenceFindings) -> dict[str, float]:
    return {one.name: one.score for one in found.measures}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [shop, bursts])
def test_two_real_samples_are_the_same(make: object, seed: int) -> None:
    found = compare(make(300, 2 * seed), make(300, 2 * seed + 1))  # type: ignore[operator]
    assert set(verdicts(found).values()) == {"same"}, scores(found)


def test_shuffled_events_are_caught_by_time_and_order_alone() -> None:
    found = verdicts(compare(shop(1500, 0), shuffled_events(shop(1500, 1))))
    assert {name for name, one in found.items() if one == "differs"} == {"gaps", "transitions", "lags", "order"}


def test_permuted_subjects_are_caught_by_memory_and_subjects_alone() -> None:
    found = verdicts(compare(shop(800, 0), permuted_subjects(shop(800, 1))))
    assert {name for name, one in found.items() if one == "differs"} == {"transitions", "lags", "subjects"}


def test_other_lengths_gaps_and_tails_are_caught() -> None:
    real, synthetic = shop(800, 0), shop(800, 1)
    shorter = synthetic[synthetic.groupby("user_id").cumcount() < 8]
    assert verdicts(compare(real, shorter))["lengths"] == "differs"
    first = synthetic.groupby("user_id")["time"].transform("min")
    slower = synthetic.assign(time=first + 1.5 * (synthetic["time"] - first))
    found = verdicts(compare(real, slower))
    assert found["gaps"] == "differs"
    assert found["lengths"] == found["values"] == "same"
    flat = synthetic.assign(amount=synthetic["amount"].clip(upper=synthetic["amount"].quantile(0.9)))
    assert verdicts(compare(real, flat))["values"] == "differs"


def test_transitions_and_gaps_are_those_of_pandas() -> None:
    real, synthetic = shop(200, 0), shop(200, 1)
    found = compare(real, synthetic)
    matrix = next(one for one in found.transitions if one.column == "state")
    for frame, shares in ((real, matrix.real), (synthetic, matrix.synthetic)):
        following = frame.groupby("user_id")["state"].shift(-1)
        expected = pd.crosstab(frame["state"], following, normalize="index").reindex(
            index=matrix.labels, columns=matrix.labels, fill_value=0
        )
        assert shares == pytest.approx(expected.to_numpy())
    weights = real[real.groupby("user_id")["state"].shift(-1).notna()]["state"].value_counts(normalize=True)
    expected = sum(
        weights.get(label, 0) * 0.5 * np.abs(matrix.real[i] - matrix.synthetic[i]).sum() for i, label in enumerate(matrix.labels)
    )
    measure = next(one for one in found.measures if one.name == "transitions")
    assert measure.columns["state"].score == pytest.approx(expected)


def test_autocorrelations_are_those_of_ranks() -> None:
    real = bursts(300, 0)
    found = compare(real, bursts(300, 1))
    curve = next(one for one in found.autocorrelations if one.title == GAP)
    gaps = real.groupby("user_id")["time"].diff().dt.total_seconds()
    for lag in (1, 4, 10):
        both = pd.DataFrame({"x": gaps.rank(), "y": gaps.rank().groupby(real["user_id"]).shift(-lag)}).dropna()
        assert curve.real[lag - 1] == pytest.approx(np.corrcoef(both["x"], both["y"])[0, 1], abs=0.01)


def test_a_table_without_times_has_no_gaps_and_short_sequences_no_lags() -> None:
    frame = shop(200, 0).drop(columns="time")
    tables = read_events({"real": frame, "synthetic": frame[frame.groupby("user_id").cumcount() < 1]}, {}, key="user_id")
    splits = make_splits(tables["real"].num_subjects, tables["synthetic"].num_subjects, np.random.default_rng(0))
    found = compare_sequences(tables["real"], tables["synthetic"], splits, time=None)
    assert set(verdicts(found)) == {"lengths", "values"}
