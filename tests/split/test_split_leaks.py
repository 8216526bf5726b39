"""Planted leaks: each is found by its guard, and each is really there: without the guard a model is better than it can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.split import twin
from tests.split.stores import plain

from stoker import Feed, Store, Windows
from stoker.errors import LeakError
from stoker.feed.columns import lengths_of
from stoker.split import Split, chronological, cuts, given, purged
from stoker.split import split as splits
from stoker.split.cuts import Margins, SampledStore, StepCuts

pytestmark = pytest.mark.promise("P16")

Array = npt.NDArray[Any]
VIEW = Windows(8, horizon=3)
PARTS = {"train": [(0, 1)], "valid": [(1, 2)]}


def cut_carelessly(**careless: int) -> Split:
    """A split in the middle, made with less reach than samples have."""
    store = plain([60, 200])
    sampled = SampledStore.of(store, VIEW)
    true = Margins.of(VIEW, horizon=None, warm_up=5)
    runs, excluded = cuts.carve(sampled, StepCuts(sampled, [0.0, 0.5, 1.0]), replace(true, **careless), PARTS)
    return splits.build(sampled, "careless", runs, margins=true, excluded=excluded)


LEAKS = {"without a purge": {"horizon": 0}, "purged by one too few": {"horizon": 2}, "without an embargo": {"embargo": 0},
         "without the warm-up": {"embargo": 7}, "embargoed by one too few": {"embargo": 11}}  # fmt: skip


@pytest.mark.promise("P16", control=True)
@pytest.mark.parametrize("careless", LEAKS.values(), ids=LEAKS)
def test_a_boundary_without_its_distance_is_found(careless: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LeakError, match=r"step \d+ of series 0 of <memory> is in two subsets: .* of train and .* of valid"):
        cut_carelessly(**careless)
    monkeypatch.setattr(splits, "check", lambda split: None)
    split = cut_carelessly(**careless)
    assert twin.shared_steps(twin.steps_of(split, plain([60, 200]), VIEW, warm_up=5)), "and without the guard it would leak"


def test_the_right_distance_is_not_taken_for_a_leak() -> None:
    cut_carelessly()


def random_walk(seed: int, size: int = 1200) -> Store:
    return Store.from_arrays(x=np.random.default_rng(seed).normal(size=(1, size)).cumsum(axis=1))


def shapes_and_rises(store: Store, view: Any, subset: Any) -> tuple[Array, Array]:
    """The shape of each window, and whether the walk rises over the horizon: nobody can know, as it is a random walk."""
    (batch,) = Feed(store, view, subset=subset, batch_size=len(subset))
    x, later = batch["x"].numpy(), batch["x_target"].numpy()
    return x - x[:, -1:], later[:, -1] > x[:, -1]


def area_under_curve(scores: Array, truth: Array) -> float:
    """The share of pairs of a rise and a fall that are in the right order; ties count half."""
    rises, falls = scores[truth][:, None], scores[~truth][None, :]
    return float((rises > falls).mean() + (rises == falls).mean() / 2)


def judge(store: Store, view: Any, train: Any, test: Any) -> float:
    """Five nearest neighbours."""
    known, labels = shapes_and_rises(store, view, train)
    asked, truth = shapes_and_rises(store, view, test)
    distances = (known**2).sum(1)[None, :] - 2 * asked @ known.T
    nearest = np.argpartition(distances, 5, axis=1)[:, :5]
    return area_under_curve(labels[nearest].mean(axis=1), truth)


def test_shuffled_windows_of_a_random_walk_can_be_predicted_and_are_refused() -> None:
    view = Windows(16, horizon=20, tail="drop")
    scores: dict[str, list[float]] = {"shuffled": [], "chronological": [], "purged": []}
    for seed in range(12):
        store = random_walk(seed)
        numbers = np.random.default_rng(seed).permutation(view.over(lengths_of(store)).num_samples)
        subsets = {"train": numbers[: 7 * len(numbers) // 10], "valid": numbers[7 * len(numbers) // 10 :]}
        with pytest.raises(LeakError):
            given(store, view, subsets)
        with pytest.warns(UserWarning, match="allow_leak=True"):
            leaking = given(store, view, subsets, allow_leak=True)
        scores["shuffled"].append(judge(store, view, leaking.train, leaking.valid))
        honest = chronological(store, view, fractions=(0.7, 0.3))
        scores["chronological"].append(judge(store, view, honest.train, honest.valid))
        scores["purged"] += [judge(store, view, train, valid) for train, valid in purged(store, view, folds=3)]
    means = {name: np.mean(found) for name, found in scores.items()}
    errors = {name: np.std(found) / np.sqrt(len(found)) for name, found in scores.items()}
    assert means["shuffled"] > 0.5 + 5 * errors["shuffled"]
    assert means["shuffled"] > 0.55
    for name in ("chronological", "purged"):
        assert abs(means[name] - 0.5) < 2 * errors[name], (name, means, errors)


def test_scaling_by_whole_series_is_refused_for_a_part_of_them() -> None:
    store = random_walk(0)
    split = chronological(store, VIEW)
    with pytest.raises(
        LeakError, match=r"normalize='zero' scales by whole series, so the train subset would depend on .*Scaler.fit"
    ):
        Feed(store, VIEW, subset=split.train, batch_size=4, normalize="zero")


@pytest.mark.promise("P16", control=True)
def test_without_the_refusal_the_scale_would_use_the_future() -> None:
    """Negative control: what a training sample looks like changes with steps of the test subset."""

    def first_sample(end: float) -> list[float]:
        store = Store.from_arrays(x=[np.concatenate([np.arange(80.0), np.full(20, end)])])
        split = chronological(store, VIEW, fractions=(0.7, 0.3))
        object.__setattr__(split.train, "whole_series", True)
        feed = Feed(store, VIEW, subset=split.train, batch_size=1, normalize="zero")
        values: list[float] = next(iter(feed))["x"][0].tolist()
        return values

    assert first_sample(0.0) != first_sample(1000.0)
