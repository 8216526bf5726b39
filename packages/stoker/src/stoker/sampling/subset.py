"""Subsets: some of the samples of a view, as runs of consecutive indices. A subset stands between a view and an order.

    samples of the view    0 1 2 3 4 5 6 7 8 9 | 10 11 12 13 14 | 15 16 17 18      three series
    the subset             0 1 2 3 4             5  6  7                           the first ones of two series: two runs

The samples of a subset have indices of their own, from 0. A run is two integers however many samples it has, so a subset of ten
billion windows of one series costs what a subset of ten costs. Orders, ranks and residencies take a subset like all samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import xxhash

from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import OptionError
from stoker.sampling.gaps import GapRuns
from stoker.sampling.views import Draw, Located, Samples, view_values
from stoker.sampling.window_index import find_entry, guide_of

_SERIES_AT_ONCE = 2**18


@kernel
def _resolve(places: Array, run_places: Array, entries: Array, shift: int, run_firsts: Array, numbers: Array) -> None:
    for i in range(len(places)):
        run = find_entry(places[i], run_places, entries, shift)
        numbers[i] = run_firsts[run] + places[i] - run_places[run]


@kernel
def _cut(firsts: Array, run_firsts: Array, run_ends: Array, series: Array, begins: Array, ends: Array) -> Any:
    """Cut runs where a series ends, whose first samples are given; returns how many pieces there are."""
    count, run = 0, 0
    for i in range(len(firsts) - 1):
        while run < len(run_ends) and run_ends[run] <= firsts[i]:
            run += 1
        inside = run
        while inside < len(run_ends) and run_firsts[inside] < firsts[i + 1] and firsts[i] < firsts[i + 1]:
            series[count] = i
            begins[count] = max(firsts[i], run_firsts[inside])
            ends[count] = min(firsts[i + 1], run_ends[inside])
            count += 1
            inside += 1
    return count


def merge_ranges(starts: Array, stops: Array) -> tuple[Array, Array]:
    """Ranges sorted, those that touch or overlap joined."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    is_cut = starts[1:] > stops[:-1]
    return starts[np.concatenate([[True], is_cut])[: len(starts)]], stops[np.concatenate([is_cut, [True]])[: len(stops)]]


class Runs:
    """Runs of consecutive numbers, rising and apart from each other; those that touch are made one."""

    def __init__(self, firsts: Array, counts: Array) -> None:
        is_filled = counts > 0
        firsts, counts = firsts[is_filled].astype(np.int64), counts[is_filled].astype(np.int64)
        if len(firsts):
            begins_run = np.concatenate([[True], firsts[1:] != firsts[:-1] + counts[:-1]])
            counts = np.add.reduceat(counts, np.flatnonzero(begins_run))
            firsts = firsts[begins_run]
        self.firsts: Array = firsts
        self.ends: Array = firsts + counts
        self._places: Array = np.concatenate([[0], np.cumsum(counts)])
        """The place of the first number of each run, and behind the last."""
        self._guide = guide_of(self._places)
        self.size = int(self._places[-1])

    @classmethod
    def of(cls, numbers: Array) -> Runs:
        """The runs of some numbers, rising and each once."""
        return cls(numbers, np.ones(len(numbers), dtype=np.int64))

    def resolve(self, places: Array) -> Array:
        """The numbers at these places."""
        numbers = np.empty(len(places), dtype=np.int64)
        _resolve(places, self._places, *self._guide, self.firsts, numbers)
        return numbers

    def count_below(self, numbers: Array) -> Array:
        """How many numbers of the runs are less than each of these."""
        run = np.maximum(np.searchsorted(self.firsts, numbers, side="left") - 1, 0)
        below: Array = self._places[run] + np.clip(numbers, self.firsts[run], self.ends[run]) - self.firsts[run]
        return below

    def digest(self) -> str:
        """64 bits that change with any number."""
        return xxhash.xxh3_64_hexdigest(self.firsts.tobytes() + self.ends.tobytes())


class StepRanges(NamedTuple):
    """Steps in ranges of one series each, rising: an int64 array each."""

    series: Array
    starts: Array
    """Counted from the beginning of the flat column."""
    stops: Array
    samples: Array
    """The number, in the whole view, of the first sample of the range."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Subset:
    """Some of the samples that a view has over a store. `stoker.split` makes subsets, and `Feed(subset=…)` takes them.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(40.0)])
        >>> view = stoker.Windows(4)
        >>> train = stoker.split.chronological(store, view, fractions=(0.5, 0.5)).train
        >>> len(train), stoker.Feed(store, view, subset=train, batch_size=8).num_samples
        (17, 17)
    """

    name: str
    origin: str
    """What it is a subset of, in words."""
    view: Any
    data: str
    """What must be the same for the numbers of samples to mean the same: the digest of the store."""
    runs: Runs
    num_all: int
    """Samples of the whole view."""
    whole_series: bool
    """Whether each series is in one subset with all its samples."""
    trained_on: str | None = None
    """The fingerprint of the training subset of its split."""
    note: str = ""
    """What to know before training on it: that it is much smaller than was asked."""

    @property
    def num_samples(self) -> int:
        """Samples of the subset."""
        return self.runs.size

    def __len__(self) -> int:
        return self.runs.size

    @cached_property
    def fingerprint(self) -> str:
        """64 bits that are equal for equal samples of equal data."""
        what = f"{self.data} {type(self.view).__name__} {view_values(self.view)} {self.runs.digest()}"
        return xxhash.xxh3_64_hexdigest(what.encode())

    @staticmethod
    def check_kind(value: Any) -> None:
        """Refuse what is not a subset."""
        if not isinstance(value, Subset):
            raise OptionError.expected("subset", value, "a subset of a split, like stoker.split.chronological(store, view).train")

    def check(self, view: Any, data: str) -> None:
        """Refuse another view, or other data, than those that the samples were numbered with."""
        if view != self.view:
            raise OptionError(
                f"the subset {self.name!r} is of {self.view}, but the view here is {view}. Split with the same view.",
                parameter="subset",
            )
        if data != self.data:
            raise OptionError(f"the subset {self.name!r} is of other data than this store. Split this store.", parameter="subset")

    def over(self, samples: Samples) -> SubsetSamples:
        """Its samples, of those of the whole view."""
        return SubsetSamples(self, samples)

    def __repr__(self) -> str:
        return f"<subset {self.name} of {self.origin}: {self.num_samples:,} of {self.num_all:,} samples>"


class SubsetSamples:
    """The samples of a subset, numbered from 0."""

    def __init__(self, subset: Subset, samples: Samples) -> None:
        self.num_samples = subset.num_samples
        self.num_series = samples.num_series
        self.row = samples.row
        self.padded = samples.padded
        self.subset = subset
        self._runs = subset.runs
        self._samples = samples

    def locate(self, numbers: Array, draw: Draw | None = None) -> Located:
        """Where these samples lie."""
        return self._samples.locate(self._runs.resolve(numbers), draw)

    def first_samples(self) -> Array | None:
        """The number, in the subset, of the first sample of each series, and of all samples."""
        firsts = self._samples.first_samples()
        if firsts is None:
            firsts = np.arange(self.num_series + 1, dtype=np.int64)
        return self._runs.count_below(firsts)

    def notes(self) -> Sequence[str]:
        """Which subset this is, and whether it is much smaller than was asked."""
        name, origin = self.subset.name, self.subset.origin
        which = f"the {name} subset of {origin}: {self.num_samples:,} of {self.subset.num_all:,} samples."
        return [which, *([self.subset.note] if self.subset.note else [])]

    def step_ranges(self) -> Iterator[StepRanges]:
        """The steps from the first to the last of each run of samples, cut where a series ends or has a gap; many series at a time.

        Subsets of one view give the same series at the same time.
        """
        gaps: GapRuns | None = getattr(self._samples, "runs", None)
        all_firsts = self._samples.first_samples() if gaps is None else self._samples.first_in_runs()  # type: ignore[attr-defined]
        runs = self._runs
        for first_series in range(0, self.num_series, _SERIES_AT_ONCE):
            last_series = min(first_series + _SERIES_AT_ONCE, self.num_series)
            first, last = first_series, last_series
            if gaps is not None:
                first, last = gaps.first_runs(first_series, last_series)[[0, -1]].tolist()
            firsts = np.arange(first, last + 1) if all_firsts is None else all_firsts[first : last + 1]
            mine = slice(int(np.searchsorted(runs.ends, firsts[0], "right")), int(np.searchsorted(runs.firsts, firsts[-1])))
            pieces = [np.empty(mine.stop - mine.start + last - first, dtype=np.int64) for _ in range(3)]
            count = _cut(firsts, runs.firsts[mine], runs.ends[mine], *pieces)
            series, begins, ends = (piece[:count] for piece in pieces)
            lasts = self._samples.locate(ends - 1)
            series += first
            series = series if gaps is None else gaps.run_series[series]
            yield StepRanges(series, self._samples.locate(begins).starts, lasts.starts + lasts.counts, begins)
