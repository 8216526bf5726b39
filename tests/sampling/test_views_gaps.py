"""Views over series with gaps: their samples are those of the runs, each listed by a loop, with the numbers of the series."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tests.sampling import twins

from stoker import Segments, Windows
from stoker.sampling import views
from stoker.sampling.gaps import find_runs
from stoker.sampling.subset import Runs, Subset
from stoker.sampling.views import Lengths
from stoker.sampling.window_index import find_entry, guide_of

VIEWS = [
    Windows(3),
    Windows(2, stride=3, tail="drop"),
    Windows(3, stride=2, horizon=2),
    Windows(2, shift=1, tail="drop"),
    Segments(3),
    Segments(2, horizon=1, tail="drop"),
]
SERIES = st.lists(st.lists(st.integers(1, 4), max_size=14), min_size=1, max_size=5)


def with_gaps(steps: list[list[int]], max_gap: int, *, uniform: bool = False) -> tuple[Lengths, list[tuple[int, int]]]:
    """Series whose consecutive times are `steps` apart; also (series, length) of each run, found by a loop."""
    times = [np.cumsum(one) for one in steps]
    lengths = twins.uniform(len(steps[0]), len(steps)) if uniform else twins.ragged([len(one) for one in steps])
    runs = find_runs(np.concatenate(times).astype(np.int64), lengths.bounds(), max_gap)
    expected = []
    for series, one in enumerate(steps):
        cuts = [0, *(t for t in range(1, len(one)) if one[t] > max_gap), len(one)]
        expected += [(series, stop - start) for start, stop in pairwise(cuts)]
    given = {name: getattr(lengths, name) for name in ("num_series", "num_steps", "length", "offsets", "name")}
    return Lengths(**given, runs=runs if runs.num_gaps else None), expected


def listed(view: Any, runs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    found = twins.list_windows(view, [length for _, length in runs])
    return [(runs[run][0], start, count) for run, start, count in found]


@pytest.mark.promise("P9")
@given(SERIES, st.integers(1, 4), st.sampled_from(VIEWS))
def test_samples_are_those_of_the_runs(steps: list[list[int]], max_gap: int, view: Any) -> None:
    lengths, runs = with_gaps(steps, max_gap)
    samples = view.over(lengths)
    expected = listed(view, runs)
    assert samples.num_samples == len(expected)
    assert samples.num_series == len(steps)
    found = samples.locate(np.arange(len(expected)))
    assert list(zip(*(part.tolist() for part in found), strict=True)) == expected
    firsts = samples.first_samples()
    firsts = np.arange(len(steps) + 1) if firsts is None else firsts
    assert firsts.tolist() == [sum(series < one for series, _, _ in expected) for one in range(len(steps) + 1)]


@given(SERIES, st.integers(1, 4), st.sampled_from(VIEWS), st.sampled_from(["_DENSE_SERIES", "GUIDED_ENTRIES"]))
def test_a_large_index_finds_the_same_samples(steps: list[list[int]], max_gap: int, view: Any, limit: str) -> None:
    """Beyond some numbers of runs the index is sparse, or has no records."""
    lengths, runs = with_gaps(steps, max_gap)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, limit, 0)
        samples = view.over(lengths)
    found = samples.locate(np.arange(samples.num_samples))
    assert list(zip(*(part.tolist() for part in found), strict=True)) == listed(view, runs)
    firsts = samples.first_samples()
    assert firsts is None or firsts.tolist() == [sum(one[0] < k for one in listed(view, runs)) for k in range(len(steps) + 1)]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=50), st.integers(0, 40))
def test_a_guided_search_is_a_plain_one(counts: list[int], power: int) -> None:
    firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64) << power
    guide = guide_of(firsts)
    rng = np.random.default_rng(0)
    for number in [*firsts[firsts < firsts[-1]].tolist(), *(rng.integers(0, firsts[-1], 20).tolist() if firsts[-1] else [])]:
        assert find_entry(number, firsts, *guide) == np.searchsorted(firsts, number, side="right") - 1


@given(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=24, max_size=24), st.sampled_from(VIEWS))
def test_series_of_one_length_are_cut_too(max_gap: int, steps: list[int], view: Any) -> None:
    lengths, runs = with_gaps([steps[:8], steps[8:16], steps[16:]], max_gap, uniform=True)
    samples = view.over(lengths)
    found = samples.locate(np.arange(samples.num_samples))
    assert list(zip(*(part.tolist() for part in found), strict=True)) == listed(view, runs)


@given(SERIES, st.integers(1, 4), st.sampled_from(VIEWS), st.randoms())
def test_the_steps_of_a_subset_are_cut_at_gaps(steps: list[list[int]], max_gap: int, view: Any, chance: Any) -> None:
    """Ranges hold the first to the last step of neighbouring samples of a run, and never a step of another run."""
    lengths, runs = with_gaps(steps, max_gap)
    expected = listed(view, runs)
    chosen = [number for number in range(len(expected)) if chance.random() < 0.6]
    subset = Subset(
        name="some", origin="all", view=view, data="", runs=Runs.of(np.array(chosen, dtype=np.int64)), num_all=len(expected),
        whole_series=False,
    )  # fmt: skip
    ends = np.cumsum([length for _, length in runs])
    owner = [int(np.searchsorted(ends, start, side="right")) for _, start, _ in expected]
    ranges: list[list[int]] = []
    for before, number in zip([-2, *chosen], chosen, strict=False):
        series, start, count = expected[number]
        if before == number - 1 and owner[before] == owner[number]:
            ranges[-1][2] = start + count
        else:
            ranges.append([series, start, start + count])
    found = [
        row
        for part in subset.over(view.over(lengths)).step_ranges()
        for row in zip(*(one.tolist() for one in part[:3]), strict=True)
    ]
    assert found == [tuple(one) for one in ranges]
