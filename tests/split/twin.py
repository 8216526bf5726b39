"""Splitting as one would explain it: every sample is a set of steps, every step is in a subset, and a loop looks at all of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stoker import Segments, Sequences, Store
from stoker.feed.columns import lengths_of
from stoker.split import Split

Step = tuple[int, int]
"""Series, and step in it."""


class Sample(NamedTuple):
    number: int
    series: int
    start: int
    length: int
    """Of the series."""


def list_samples(store: Store, view: Any) -> list[Sample]:
    samples = view.over(lengths_of(store))
    found = samples.locate(np.arange(samples.num_samples))
    offsets, lengths = store.offsets.tolist(), store.lengths.tolist()
    rows = zip(found.series.tolist(), found.starts.tolist(), strict=True)
    return [Sample(number, series, start - offsets[series], lengths[series]) for number, (series, start) in enumerate(rows)]


def made_of(sample: Sample, view: Any, *, horizon: int | None = None, warm_up: int = 0) -> set[Step]:
    """The steps that a sample was made of."""
    if isinstance(view, Sequences):
        return {(sample.series, step) for step in range(sample.length)}
    windows = view.windows if isinstance(view, Segments) else view
    end = sample.start + windows.length + (windows.span - windows.length if horizon is None else horizon)
    return {(sample.series, step) for step in range(max(0, sample.start - warm_up), min(sample.length, end))}


class Expected(NamedTuple):
    subsets: dict[str, list[int]]
    purged: int
    embargoed: int


def split_samples(
    store: Store,
    view: Any,
    cuts: Sequence[Sequence[int]],
    wanted: Mapping[str, Sequence[tuple[int, int]]],
    *,
    horizon: int | None = None,
    warm_up: int = 0,
    embargo: int | None = None,
) -> Expected:
    """`cuts` has for each series its steps before each cut, beginning with 0; subsets are intervals between cuts."""
    subsets: dict[str, list[int]] = {name: [] for name in wanted}
    purged = embargoed = 0
    windows = view.windows if isinstance(view, Segments) else view
    least = windows.length - 1 + warm_up
    embargo = least if embargo is None else embargo
    intervals = [(low, high, name) for name, several in wanted.items() for low, high in several]
    for sample in list_samples(store, view):
        places = cuts[sample.series]
        last = sample.start + windows.length - 1
        last = min(last, sample.length - 1)  # a padded window ends with its series
        steps = {step for _, step in made_of(sample, view, horizon=horizon, warm_up=warm_up)}
        for low, high, name in intervals:
            inside = range(places[low], places[high])
            if last not in inside:
                continue
            early = [step for step in steps if step < inside.start]
            if inside.start > 0 and sample.start + windows.length - 1 - inside.start < embargo:
                early = early or [-1]
            late = [step for step in steps if step >= inside.stop]
            if not early and not late:
                subsets[name].append(sample.number)
            elif early:
                embargoed += 1
            else:
                purged += 1
    return Expected(subsets, purged, embargoed)


def numbers_of(split: Split) -> dict[str, list[int]]:
    """The samples of each subset, by their numbers in the whole view."""
    return {name: subset.runs.resolve(np.arange(len(subset))).tolist() for name, subset in split.subsets.items()}


def steps_of(split: Split, store: Store, view: Any, *, horizon: int | None = None, warm_up: int = 0) -> dict[str, set[Step]]:
    """All steps that samples of each subset were made of."""
    samples = list_samples(store, view)
    return {
        name: {step for number in numbers for step in made_of(samples[number], view, horizon=horizon, warm_up=warm_up)}
        for name, numbers in numbers_of(split).items()
    }


def shared_steps(subsets: Mapping[str, set[Step]]) -> set[Step]:
    """Steps that are in two subsets."""
    seen: set[Step] = set()
    shared: set[Step] = set()
    for steps in subsets.values():
        shared |= seen & steps
        seen |= steps
    return shared


def cut_at_times(times: Sequence[Sequence[int]], moments: Sequence[int]) -> list[list[int]]:
    """Steps before each moment, counted one by one."""
    return [[0, *(sum(time < moment for time in series) for moment in moments), len(series)] for series in times]


def moment_of(times: Sequence[Sequence[int]], share: float) -> int:
    """The first time that has at least a share of all steps before it: all times sorted, which the program never does."""
    flat = sorted(time for series in times for time in series)
    wanted = int(len(flat) * share + 1e-6)
    for moment in range(flat[0], flat[-1] + 2):
        if bisect_right(flat, moment - 1) >= wanted:
            return moment
    raise AssertionError("there is none")
