"""Scaler: the moments of the training subset and of nothing else, carried in the model."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from safetensors.torch import load, save
from tests.harness import num_examples
from tests.split import twin
from tests.split.stores import plain
from tests.split.test_split_by_time import lengths, views

from stoker import Sequences, Store, Windows
from stoker.errors import LeakError, OptionError
from stoker.split import Scaler, Subset, chronological, grouped, pos_weight, purged
from stoker.split import given as by_numbers
from stoker.split import scaler as moments

VIEW = Windows(6, horizon=2)


def held_steps(store: Store, view: Any, subset: Subset) -> list[int]:
    """The steps of the flat column that samples of a subset hold, and those between the samples of a run."""
    samples = twin.list_samples(store, view)
    numbers = subset.runs.resolve(np.arange(len(subset))).tolist()
    offsets = store.offsets.tolist()
    span = view.max_length if isinstance(view, Sequences) else view.span
    ranges = [(samples[n].series, samples[n].start, min(samples[n].start + span, samples[n].length)) for n in numbers]
    held = {offsets[series] + step for series, start, stop in ranges for step in range(start, stop)}
    for (one, (series, _, stop)), (other, (next_series, start, _)) in zip(zip(numbers, ranges), zip(numbers[1:], ranges[1:])):  # noqa: B905
        if other == one + 1 and next_series == series:
            held |= {offsets[series] + step for step in range(stop, start)}
    return sorted(held)


def expected_moments(values: Any) -> tuple[list[int], list[float], list[float]]:
    """Count, mean and deviation of each column of [rows, width] by their definitions, over finite values alone.

    A column without a finite value has the mean 0; one without a spread beyond the rounding of float32 has the deviation 1.
    """
    finite = [column[np.isfinite(column)] for column in values.T]
    means = [float(column.mean()) if len(column) else 0.0 for column in finite]
    spreads = [float(column.std()) if len(column) else 0.0 for column in finite]
    return (
        [len(column) for column in finite],
        means,
        [spread if spread > 1e-7 * abs(mean) else 1.0 for spread, mean in zip(spreads, means, strict=True)],
    )


def test_a_part_with_few_finite_values_has_the_moments_that_are_documented() -> None:
    for values, expected in (
        ([np.nan, np.nan], (0, 0.0, 1.0)),
        ([np.nan, 1e6], (1, 1e6, 1.0)),
        ([1e6, 1e6 + 0.1], (2, 1e6 + 0.05, 1.0)),  # a spread that float32 cannot hold
        ([1e6, 1e6 + 4], (2, 1e6 + 2, 2.0)),
    ):
        assert [one[0] for one in expected_moments(np.array(values)[:, None])] == pytest.approx(expected)
        found = moments.measure(Store.from_arrays(x=[values]), None, "x")
        assert (found.counts[0], found.means[0], found.deviations[0]) == pytest.approx(expected)


@example(lengths=[2, 300, 0], view=Windows(5, tail="keep", shift=1), kind="series", seed=3)  # one finite value in a subset
@settings(max_examples=num_examples(80))
@given(lengths=lengths, view=views, kind=st.sampled_from(["time", "series", "fold"]), seed=st.integers(0, 99))
def test_moments_are_those_of_the_steps_of_the_part(lengths: list[int], view: Any, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(1e6, 2.0, size=(sum(lengths) * 3, 2))
    values[rng.random(len(values)) < 0.1] = np.nan
    store = Store.from_arrays(lengths=np.array([*lengths] * 3), x=values)
    make = {"time": chronological, "series": grouped, "fold": lambda *given: purged(*given, folds=3)[1]}[kind]
    try:
        split = make(store, view)
    except OptionError as error:
        assert "by chance" in str(error)  # noqa: PT017
        return
    for subset in split:
        found = moments.measure(store, subset, "x")
        steps = held_steps(store, view, subset)
        kept = values[steps]
        assert found.num_rows == len(steps)
        counts, means, deviations = expected_moments(kept)
        assert found.counts.tolist() == counts
        assert found.means == pytest.approx(means, rel=1e-14)
        assert found.deviations == pytest.approx(deviations, rel=1e-9)


def test_overlapping_intervals_count_once() -> None:
    """Samples of a leaking split may overlap; a step is a step."""
    store = plain([100])
    numbers = np.random.default_rng(0).permutation(94)
    with pytest.warns(UserWarning, match="allow_leak"):
        split = by_numbers(store, Windows(7), {"train": numbers[:70], "valid": numbers[70:]}, allow_leak=True)
    assert moments.measure(store, split.train, "x").num_rows == len(held_steps(store, Windows(7), split.train))


def wide_store() -> Store:
    rng = np.random.default_rng(0)
    steps = {
        "close": rng.normal(300, 9, (2, 200)),
        "wide": rng.normal(size=(2, 200, 3)).astype(np.float32),
        "flat": np.full((2, 200), 7.7),
    }
    return Store.from_arrays(**steps, label=np.array([0.0, 1.0]))


def test_a_scaler_scales_and_scales_back() -> None:
    store = wide_store()
    split = chronological(store, VIEW)
    scaler = Scaler.fit(store, split.train, columns=["close", "wide", "flat"])
    assert scaler.std[-1] == 1, "a column without spread is not blown up"
    x = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(scaler.inverse(scaler(x)), x, atol=1e-4)
    steps = held_steps(store, VIEW, split.train)
    one = Scaler.fit(store, split.train, columns="close")
    assert one(torch.zeros(4, 6)).shape == (4, 6), "a single feature needs no axis"
    assert float(one(torch.from_numpy(store.column("close")[steps])).mean()) == pytest.approx(0, abs=1e-5)
    with pytest.raises(OptionError, match=r"the scaler has 5 features, but x has the shape \[4, 6\]"):
        scaler(torch.zeros(4, 6))


def test_a_scaler_is_saved_with_the_model_and_still_knows_its_steps() -> None:
    store = wide_store()
    split = chronological(store, VIEW)
    model = torch.nn.Sequential(Scaler.fit(store, split.train, columns=["wide"]), torch.nn.Linear(3, 1))
    again = torch.nn.Sequential(Scaler(3), torch.nn.Linear(3, 1))
    with pytest.raises(OptionError, match="the scaler was not fitted"):
        again[0].check(split)  # type: ignore[operator]
    again.load_state_dict(load(save(model.state_dict())))
    x = torch.randn(2, 6, 3)
    assert torch.equal(model(x), again(x))
    again[0].check(split)  # type: ignore[operator]
    assert "wide; 3 features, fitted on 280 steps of the train part of a chronological split of <memory>" in str(model)
    assert "3 features, fitted on 280 steps" in str(again)


@pytest.mark.promise("P16")
def test_a_scaler_fitted_on_other_steps_is_found() -> None:
    store = wide_store()
    split = chronological(store, VIEW)
    for subset, words in (
        (None, r"fitted on all steps of a store \(400 steps\)"),
        (split.valid, "fitted on the valid subset"),
        (chronological(store, VIEW, fractions=(0.8, 0.2)).train, "fitted on another subset than these"),
    ):
        with pytest.raises(LeakError, match=words):
            Scaler.fit(store, subset, columns=["close"]).check(split)
    Scaler.fit(store, chronological(store, VIEW).train, columns=["close"]).check(split)


@pytest.mark.promise("P16", control=True)
def test_without_the_guard_a_scaler_of_all_steps_reports_of_the_future() -> None:
    """Negative control: it changes with the steps of the test subset, and the right one does not."""

    def means(end: float) -> list[float]:
        store = Store.from_arrays(x=[np.concatenate([np.arange(80.0), np.full(20, end)])])
        split = chronological(store, VIEW, fractions=(0.7, 0.3))
        return [Scaler.fit(store, subset, columns=["x"]).mean.item() for subset in (None, split.train)]

    assert means(0.0)[0] != means(1000.0)[0]
    assert means(0.0)[1] == means(1000.0)[1]


def test_weight_of_labels() -> None:
    labels = np.array([0, 1, 0, 0, np.nan, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1])
    store = Store.from_arrays(x=np.zeros((2, 8)), y=labels.reshape(2, 8), z=np.array([0, 1]), w=np.zeros((2, 8, 2)))
    view = Windows(2, tail="drop")
    split = chronological(Store.from_arrays(y=labels[None]), view, fractions=(0.5, 0.5))
    assert pos_weight(Store.from_arrays(y=labels[None]), split.train, "y").item() == pytest.approx(5 / 2)
    assert pos_weight(store, None, "y").item() == pytest.approx(5 / 10)
    assert pos_weight(store, None, "z").item() == 1
    for column, words in (("x", "all 16 labels of column 'x' are 0"), ("w", "2 numbers per step"), ("q", "has no column 'q'")):
        with pytest.raises(OptionError, match=words):
            pos_weight(store, None, column)
    with pytest.raises(OptionError, match="other values than labels 0 and 1"):
        pos_weight(Store.from_arrays(y=[[0.0, 0.5, 1.0]]), None, "y")
