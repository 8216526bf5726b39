"""Windows and segments: the closed form finds what walking over the series finds, for every length, stride, target and tail."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from tests.sampling import twins

from stoker.sampling.views import Located, Samples, Segments, Windows, WindowSamples

LENGTH = 5
EDGES = [0, 1, 2, LENGTH - 1, LENGTH, LENGTH + 1, LENGTH + 2, LENGTH + 3, 2 * LENGTH - 1, 2 * LENGTH, 2 * LENGTH + 1, 23, 64]
TARGETS = [{}, {"horizon": 1}, {"horizon": 3}, {"horizon": 9}, {"shift": 1}, {"shift": 2}, {"shift": 7}]
STRIDES = [1, 2, LENGTH - 1, LENGTH, LENGTH + 1, LENGTH + 3, 2 * LENGTH + 9]
TAILS = ["keep", "drop"]
VIEWS: list[Windows | Segments] = [
    *(Windows(LENGTH, stride=s, tail=t, **target) for s, t, target in itertools.product(STRIDES, TAILS, TARGETS)),  # type: ignore[arg-type]
    *(Segments(LENGTH, tail=tail, **target) for tail, target in itertools.product(TAILS, TARGETS)),  # type: ignore[arg-type]
    Windows(1),
    Windows(1, stride=3, tail="drop"),
    Segments(1, shift=1),
]


def listed(samples: Samples) -> list[twins.Sample]:
    """All samples, as tuples."""
    return as_tuples(samples.locate(np.arange(samples.num_samples)))


def as_tuples(found: Located) -> list[twins.Sample]:
    return list(zip(found.series.tolist(), found.starts.tolist(), found.counts.tolist(), strict=True))


def check(samples: WindowSamples, view: Windows | Segments, lengths: Sequence[int]) -> None:
    """Everything that the samples say, against the twin."""
    expected = twins.list_windows(view, lengths)
    assert samples.num_samples == len(expected)
    assert listed(samples) == expected
    assert samples.num_series == len(lengths)
    assert samples.row == view.span
    assert samples.num_left_over == twins.count_left_over(view, lengths)
    having = {series for series, _, _ in expected}
    assert samples.num_empty_series == len(lengths) - len(having)
    assert samples.padded or all(count == view.span for _, _, count in expected)
    firsts = samples.first_samples()
    counts = [sum(series == one for series, _, _ in expected) for one in range(len(lengths))]
    if firsts is None:
        assert counts == [1] * len(lengths)
    else:
        assert np.diff(firsts).tolist() == counts
        assert firsts[0] == 0


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_uniform_series_equal_the_twin(view: Windows | Segments) -> None:
    for length in EDGES:
        check(view.over(twins.uniform(length, 3)), view, [length] * 3)


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_ragged_series_equal_the_twin(view: Windows | Segments) -> None:
    check(view.over(twins.ragged(EDGES)), view, EDGES)
    for length in EDGES:
        check(view.over(twins.ragged([length] * 3)), view, [length] * 3)


@pytest.mark.parametrize("view", VIEWS[::5], ids=repr)
def test_samples_in_any_order_equal_the_twin(view: Windows | Segments, rng: np.random.Generator) -> None:
    lengths = rng.choice(EDGES, 60).tolist()
    samples, expected = view.over(twins.ragged(lengths)), twins.list_windows(view, lengths)
    numbers = rng.integers(0, max(1, len(expected)), 500 if expected else 0)
    assert as_tuples(samples.locate(numbers)) == [expected[number] for number in numbers]


@pytest.mark.parametrize(
    "view",
    [
        *(Windows(LENGTH, stride=stride, shift=shift) for stride in (1, 3, LENGTH) for shift in (1, 2, 7)),
        *(Windows(LENGTH, stride=stride, horizon=horizon) for stride, horizon in [(1, 1), (1, 3), (3, 3), (2, 4), (7, 7)]),
    ],
    ids=repr,
)
def test_kept_tails_lose_no_target(view: Windows) -> None:
    first = view.shift or LENGTH
    for steps in range(first + 1, 50):
        found = listed(view.over(twins.ragged([steps])))
        assert {step for _, start, count in found for step in range(start + first, start + count)} == set(range(first, steps))


def test_a_padded_window_holds_at_least_a_target() -> None:
    for target in TARGETS[1:]:
        view = Windows(LENGTH, stride=4, **target)
        first = LENGTH if view.horizon else view.shift
        for steps in range(60):
            assert all(count > first for _, _, count in listed(view.over(twins.ragged([steps]))))


LEFT_OVER = {
    "tail": "2 steps (16.7%) are in no window (tail='drop').",
    "stride": "10 steps (50.0%) are in no window (the stride).",
    "target": "5 steps (20.0%) are in no window (what is left of their series is too short for a target).",
    "target and stride": "3 steps (33.3%) are in no window (what is left of their series is too short for a target).",
    "1 series": "1 of 2 series have no window: they are too short.",
    "2 series": "2 of 3 series have no window: they are too short.",
}


@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    ("view", "lengths", "notes"),
    [
        (Windows(5), [9, 3], []),
        (Windows(5), [0, 9, 0], ["2 series"]),
        (Segments(5, tail="drop"), [12], ["tail"]),
        (Segments(5, tail="drop"), [2, 10], ["tail", "1 series"]),
        (Windows(5, stride=10), [20], ["stride"]),
        (Windows(5, horizon=1), [5, 20], ["target", "1 series"]),
        (Windows(5, stride=6, horizon=1), [9], ["target and stride"]),
    ],
)
def test_steps_and_series_without_a_window_are_reported(view: Windows | Segments, lengths: list[int], notes: list[str]) -> None:
    assert view.over(twins.ragged(lengths)).notes() == [LEFT_OVER[name] for name in notes]
