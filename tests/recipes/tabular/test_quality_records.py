"""Copies of training data are found, fresh samples are not, and a classifier does not know subjects again."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.recipes.tabular.tables import copied, shop, shuffled_events

from stoker.recipes.tabular.quality_records import (
    compare_records,
    cross_validated_auc,
    encode_events,
    find_proximity,
    sequence_features,
    sequence_points,
)
from stoker.recipes.tabular.quality_tables import Events, read_events


def read(**tables: pd.DataFrame) -> dict[str, Events]:
    found = read_events(tables, {}, key="user_id")
    return {name: one.select(np.flatnonzero(one.lengths)) for name, one in found.items()}


def cut(several: dict[str, Events]) -> dict[str, Events]:
    size = min(one.num_subjects for one in several.values())
    return {name: one.select(np.arange(size)) for name, one in several.items()}


@pytest.mark.parametrize("has_holdout", [True, False])
def test_copied_sequences_are_found(has_holdout: bool) -> None:
    real = shop(250, 0)
    holdout = {"holdout": shop(250, 2)} if has_holdout else {}
    fresh = find_proximity(sequence_points(cut(read(real=real, synthetic=shop(250, 1), **holdout)), time="time"))
    assert 0.4 < fresh.share < 0.6
    assert fresh.identical == 0
    both = find_proximity(sequence_points(cut(read(real=real, synthetic=copied(real, 250), **holdout)), time="time"))
    assert both.share == 1
    assert both.identical == 1
    half = pd.concat([copied(real, 125), shop(125, 1)])
    some = find_proximity(sequence_points(cut(read(real=real, synthetic=half, **holdout)), time="time"))
    assert 0.65 < some.share < 0.85


def test_nearest_distances_are_those_of_a_loop(rng: np.random.Generator) -> None:
    points = {name: rng.normal(size=(40, 3)) for name in ("real", "synthetic", "holdout")}
    near, far = (
        np.array([min(np.linalg.norm(one - other) for other in points[name]) for one in points["synthetic"]])
        for name in ("real", "holdout")
    )
    found = find_proximity(points)
    assert found.closest == pytest.approx(near.mean())
    assert found.reference == pytest.approx(far.mean())
    assert found.share == pytest.approx((near < far).mean())


def test_measures_of_fresh_samples_and_of_copies() -> None:
    real, holdout = shop(300, 0), shop(300, 2)
    for synthetic, expected in ((shop(300, 1), "same"), (copied(real, 300), "differs")):
        tables = read(real=real, synthetic=synthetic, holdout=holdout)
        found = compare_records(
            tables["real"], tables["synthetic"], tables["holdout"], seed=0, max_rows=300, time="time", is_sequence=True
        )
        measures = {one.name: one.verdict for one in found.measures}
        assert measures["closest sequences"] == measures["identical sequences"] == expected
        assert (
            measures["classifier of events"] == measures["classifier of sequences"] == "same"
        )  # a copy is no worse than real data


def test_a_classifier_of_sequences_finds_shuffled_events() -> None:
    tables = cut(read(real=shop(300, 0), synthetic=shuffled_events(shop(300, 1))))
    features, names = sequence_features(tables, time="time")
    assert features["real"].shape[1] == len(names)
    assert cross_validated_auc(features["real"], features["synthetic"], 0) > 0.9


def test_a_classifier_of_events_finds_other_prices() -> None:
    dearer = shop(300, 1).assign(amount=lambda frame: 4 * frame["amount"])
    for synthetic, expected in ((shop(300, 1), "same"), (dearer, "differs")):
        tables = read(real=shop(300, 0), synthetic=synthetic)
        found = compare_records(tables["real"], tables["synthetic"], None, seed=0, max_rows=300, time="time", is_sequence=False)
        assert {one.name: one.verdict for one in found.measures}["classifier of events"] == expected


def test_negative_control_several_events_of_a_subject_separate_two_real_samples() -> None:
    """What mostlyai-qa does: folds that share subjects. Times of one subject are near to each other, so trees know it again."""
    tables = read(real=shop(150, 0), synthetic=shop(150, 1))
    points = encode_events({name: one.columns for name, one in tables.items()})
    assert cross_validated_auc(points["real"], points["synthetic"], 0) > 0.6
    one_each = {name: points[name][one.order[one.offsets[:-1]]] for name, one in tables.items()}
    assert cross_validated_auc(one_each["real"], one_each["synthetic"], 0) < 0.6
