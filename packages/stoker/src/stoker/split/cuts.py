"""Cuts: where series are cut into earlier and later steps, and which samples lie between two cuts.

SampledStore   the samples of a view over a store, and where the series lie
Margins        the steps around a window that belong to its sample
Cuts           where each series is cut: by a share of its steps, or at times that all series share
carve          the samples between cuts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array, converted
from stoker.errors import LeakError, OptionError, TimeOrderError
from stoker.feed.columns import identity_of, samples_over
from stoker.sampling.gaps import GapRuns
from stoker.sampling.subset import Runs
from stoker.sampling.views import AnyView, Lengths, Reach, Samples, Segments, Sequences
from stoker.store.shards import Column
from stoker.store.store import Store


@dataclass(frozen=True, kw_only=True)
class SampledStore:
    """A view over a store."""

    name: str
    data: str
    view: AnyView
    lengths: Lengths
    samples: Samples

    @classmethod
    def of(cls, store: Store, view: AnyView) -> SampledStore:
        """Checked: a store and a view with samples."""
        lengths, samples = samples_over(store, view)
        return cls(name=store.name, data=identity_of(store), view=view, lengths=lengths, samples=samples)

    def firsts(self, first: int = 0, last: int | None = None) -> Array:
        """The number of the first sample of each of the series `first` to `last`, and of the one behind them."""
        last, firsts = self.lengths.num_series if last is None else last, self.samples.first_samples()
        return np.arange(first, last + 1, dtype=np.int64) if firsts is None else firsts[first : last + 1]


# Margins: the steps that a sample is made of.
#
#     ·········[ warm_up ][ length of the window ][ horizon ]·········
#                         the sample               its target, or what its label was made of
#
# A sample is kept where all of them lie between two boundaries. Before a boundary this purges the samples whose targets reach over
# it; after a boundary it embargoes those that reach back over it: the last step of a window is at least `embargo` steps behind the
# boundary, and `length - 1 + warm_up` is the smallest value allowed.
#
# With overlap="inputs" only targets count after a boundary: a sample is in the subset that holds all of its targets, and its window
# and warm-up may begin before it. Targets are the horizon; without one the shifted window, or the last step of the window.

Overlap = Literal["inputs"]


@dataclass(frozen=True, kw_only=True)
class Margins:
    """The steps that a sample depends on, all in steps. A sample that is a whole series has no margins."""

    length: int
    stride: int
    horizon: int
    warm_up: int
    embargo: int
    whole_series: bool
    overlap: Overlap | None = None
    first_target: int = 0
    """Steps from the first of a window to the first of its targets; with `overlap` alone."""

    @property
    def span(self) -> int:
        """Steps that a sample is made of."""
        return self.warm_up + self.length + self.horizon

    @classmethod
    def of(
        cls, view: AnyView, *, horizon: int | None, warm_up: int, embargo: int | None = None, overlap: Overlap | None = None
    ) -> Margins:
        """Of the samples of a view. By default the horizon is that of the view, and the embargo the least that can be."""
        horizon, embargo = converted("horizon", horizon, Reach | None), converted("embargo", embargo, Reach | None)
        warm_up, overlap = converted("warm_up", warm_up, Reach), converted("overlap", overlap, Overlap | None)
        if isinstance(view, Sequences):
            if horizon or warm_up or embargo or overlap:
                names = "horizon, warm_up, embargo and overlap" if overlap else "horizon, warm_up and embargo"
                raise OptionError(
                    f"{view} has whole series as samples, which reach over no boundary: leave out {names}.", parameter="view"
                )
            return cls(length=view.max_length, stride=1, horizon=0, warm_up=0, embargo=0, whole_series=True)
        windows = view.windows if isinstance(view, Segments) else view
        own = windows.span - windows.length
        if horizon is not None and horizon < own:
            raise LeakError(
                f"horizon is {horizon}, but the targets of {view} reach {own} steps. Give at least {own}, or leave it out."
            )
        if overlap and embargo is not None:
            raise OptionError(
                f"embargo is {embargo}, which keeps windows behind a boundary, but overlap='inputs' lets them reach back over it. "
                "Give one of them.",
                parameter="embargo",
            )
        least = windows.length - 1 + warm_up
        if embargo is not None and embargo < least:
            raise LeakError(
                f"embargo is {embargo}, but windows of {windows.length} steps with a warm-up of {warm_up} reach back {least}. "
                f"Give at least {least}, or leave it out."
            )
        return cls(
            length=windows.length,
            stride=windows.stride,
            horizon=own if horizon is None else horizon,
            warm_up=warm_up,
            embargo=least if embargo is None else embargo,
            whole_series=False,
            overlap=overlap,
            first_target=windows.length if windows.horizon else windows.shift or windows.length - 1,
        )


# Cuts: where each series is cut into earlier and later steps, by a share of its steps or at moments that all series share.
#
# Times are never sorted across series: each series is searched on its own. The time that has a share of all steps before it is
# found by bisection, so its cost grows with the number of series and hardly with their lengths.


@dataclass(frozen=True)
class StepCuts:
    """The same shares of each series."""

    sampled: SampledStore
    shares: Sequence[float]
    """Rising from 0."""

    def local(self, first: int, last: int) -> Array:
        """Of the series `first` to `last` a row each: their steps before each cut, int64."""
        lengths = np.diff(self.sampled.lengths.bounds(first, last))
        # A share is a rounded number; without the margin, 0.7 of 10 steps could be 6.
        return np.stack(
            [lengths if share >= 1 else np.floor(lengths * share + 1e-6).astype(np.int64) for share in self.shares], axis=1
        )

    def describe(self, cut: int) -> str:
        """As a share."""
        return "the beginning" if cut == 0 else "the end" if self.shares[cut] >= 1 else f"{self.shares[cut]:.4g} of each series"


@kernel
def _first_at(times: Array, low: Any, high: Any, moment: Any) -> Any:
    """The first of the rising times from `low` to `high` that is not before the moment."""
    while low < high:
        middle = (low + high) // 2
        if times[middle] < moment:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _count_before(times: Array, bounds: Array, moments: Array, counts: Array) -> None:
    for i in range(len(bounds) - 1):
        for j in range(len(moments)):
            counts[i, j] = _first_at(times, bounds[i], bounds[i + 1], moments[j]) - bounds[i]


@kernel
def _narrow(times: Array, lows: Array, highs: Array, moment: int, places: Array) -> int:
    """Where each series has the moment, known to be between `lows` and `highs`; returns the sum of them."""
    total = 0
    for i in range(len(lows)):
        places[i] = _first_at(times, lows[i], highs[i], moment)
        total += places[i]
    return total


@kernel
def _first_disorder(times: Array, bounds: Array) -> int:
    for i in range(len(bounds) - 1):
        for t in range(bounds[i] + 1, bounds[i + 1]):
            if times[t] < times[t - 1]:
                return t
    return -1


@dataclass(frozen=True)
class TimeCuts:
    """The same moments for all series."""

    sampled: SampledStore
    times: Array
    column: Column
    moments: Sequence[int]
    """The cuts after the beginning; steps before a moment are before the cut."""
    open_end: bool
    """Whether there is a last cut at the end of everything."""

    def local(self, first: int, last: int) -> Array:
        """Of the series `first` to `last` a row each: their steps before each cut, int64."""
        bounds = self.sampled.lengths.bounds(first, last)
        counts = np.empty((last - first, len(self.moments)), dtype=np.int64)
        _count_before(self.times, bounds, np.array(self.moments, dtype=np.int64), counts)
        ends = [np.diff(bounds)[:, None]] if self.open_end else []
        return np.concatenate([np.zeros((last - first, 1), dtype=np.int64), counts, *ends], axis=1)

    def describe(self, cut: int) -> str:
        """As a time."""
        if cut in (0, len(self.moments) + 1):
            return "the end" if cut else "the beginning"
        return readable(self.moments[cut - 1], self.column)


Cuts = StepCuts | TimeCuts
"""Where series are cut. Cut 0 is the beginning."""


def cuts_at_shares(sampled: SampledStore, store: Store, shares: Sequence[float], *, time: str | None) -> Cuts:
    """Cuts that have these shares (rising from 0) of all steps before them; of each series where there is no time."""
    name = time if time is not None else store.time
    if name is None and isinstance(sampled.view, Sequences):
        raise OptionError(
            f"{sampled.view} has whole series as samples, and {store.name} has no time to put them in order. Use grouped(…).",
            parameter="view",
        )
    if name is None:
        return StepCuts(sampled, shares)
    times, column = _times(sampled, store, name, trusted=time is None)
    moments = [_moment_of(sampled, times, share) for share in shares[1:] if share < 1]
    return TimeCuts(sampled, times, column, moments, shares[-1] >= 1)


def cuts_at_times(sampled: SampledStore, store: Store, boundaries: Sequence[Any], *, time: str | None) -> TimeCuts:
    """Cuts at these times, and at the end."""
    name = time if time is not None else store.time
    if name is None:
        raise OptionError(
            f"{store.name} has no column of time to find boundaries in. Give fractions=, or name the column: time='…'.",
            parameter="fractions",
        )
    times, column = _times(sampled, store, name, trusted=time is None)
    moments = [_moment(boundary, column) for boundary in boundaries]
    if sorted(set(moments)) != moments:
        raise OptionError(f"boundaries are {list(boundaries)!r}; expected times that rise.", parameter="boundaries")
    first, last = _span(sampled, times)
    for given, moment in zip(boundaries, moments, strict=True):
        if not first < moment <= last:
            raise OptionError(
                f"the boundary {given!r} is outside the data: {name!r} of {store.name} runs from {readable(first, column)} "
                f"to {readable(last, column)}.",
                parameter="boundaries",
            )
    return TimeCuts(sampled, times, column, moments, True)


def readable(moment: int, column: Column) -> str:
    """A time as people write it."""
    unit: Any = (column.unit or "ns").split(",")[0]
    return str(np.datetime64(moment, unit)) if column.kind == "timestamp" else f"{moment:,}"


def _times(sampled: SampledStore, store: Store, name: str, *, trusted: bool) -> tuple[Array, Column]:
    column = store.field(name)
    if column.level != "step" or column.dtype is None or column.dtype.kind != "i" or column.width is not None:
        raise OptionError(
            f"column {name!r} of {store.name} holds {column.label} per {column.level}; expected one time or integer per step.",
            column=name,
        )
    times = store.column(name)
    if not trusted:  # a packed store has refused times that do not rise
        step = _first_disorder(times, sampled.lengths.bounds())
        if step >= 0:
            raise TimeOrderError(
                f"column {name!r} of {store.name} falls from {times[step - 1]:,} to {times[step]:,} at step {step:,} of the flat "
                f"column; expected times that rise within a series."
            )
    return times, column


def _moment(given: Any, column: Column) -> int:
    """A boundary as the column writes times."""
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        return int(given)
    if column.kind == "timestamp":
        try:
            when = datetime.fromisoformat(given) if isinstance(given, str) else given
        except ValueError:
            when = None
        if isinstance(when, datetime) and when.tzinfo is not None:
            when = when.astimezone(UTC).replace(tzinfo=None)
        if isinstance(when, datetime | date | np.datetime64):
            return int(np.datetime64(when).astype(f"datetime64[{(column.unit or 'ns').split(',')[0]}]").astype(np.int64))
    raise OptionError(
        f"the boundary {given!r} is not a time of column {column.name!r} ({column.label}). Give a date, a datetime or its number.",
        parameter="boundaries",
    )


def _span(sampled: SampledStore, times: Array) -> tuple[int, int]:
    """The first and the last time of all series."""
    bounds = sampled.lengths.bounds()
    filled = bounds[1:] > bounds[:-1]
    return int(times[bounds[:-1][filled]].min()), int(times[bounds[1:][filled] - 1].max())


def _moment_of(sampled: SampledStore, times: Array, share: float) -> int:
    """The first moment that has at least a share of all steps before it."""
    bounds = sampled.lengths.bounds()
    lows, highs, places = bounds[:-1].copy(), bounds[1:].copy(), np.empty(len(bounds) - 1, dtype=np.int64)
    wanted = int(bounds[:-1].sum()) + int(np.floor(sampled.lengths.num_steps * share + 1e-6))
    low, high = _span(sampled, times)
    high += 1
    while low < high:
        middle = low + (high - low) // 2
        if _narrow(times, lows, highs, middle, places) >= wanted:
            high = middle
            highs, places = places, highs
        else:
            low = middle + 1
            lows, places = places, lows
    return low


# Carve: from the cuts of each series to the samples between them, as runs of numbers; no list of samples is built.
#
# The windows of a series begin at multiples of the stride, so those between two cuts are a range, found by division. A sample
# belongs to the interval that holds the last step of its window (with overlap="inputs": its first target). There it is kept, or
# purged because its target reaches over the next cut, or embargoed because it reaches back over the previous one.

Interval = tuple[int, int]
"""From one cut to another, by their numbers."""

_SERIES_AT_ONCE = 2**18


@dataclass(kw_only=True)
class Excluded:
    """Samples that are in no subset, and why."""

    purged: int = 0
    embargoed: int = 0


def carve(
    sampled: SampledStore, cuts: Cuts, margins: Margins, wanted: Mapping[str, Sequence[Interval]]
) -> tuple[dict[str, Runs], Excluded]:
    """For each subset the samples that lie in one of its intervals, which rise and do not touch."""
    carved: dict[str, list[tuple[Array, Array]]] = {name: [] for name in wanted}
    excluded = Excluded()
    for first in range(0, sampled.lengths.num_series, _SERIES_AT_ONCE):
        last = min(first + _SERIES_AT_ONCE, sampled.lengths.num_series)
        firsts = sampled.firsts(first, last)
        lengths, counts, places = np.diff(sampled.lengths.bounds(first, last)), np.diff(firsts), cuts.local(first, last)
        sides = places, places
        if sampled.lengths.runs is not None:
            lengths, firsts, sides = _cut_runs(sampled, sampled.lengths.runs, margins, first, lengths, places)
            counts = np.diff(firsts)
        for name, intervals in wanted.items():
            ranges = [_between(lengths, counts, sides, interval, margins, excluded) for interval in intervals]
            # One row a series: its ranges stand one after the other, as they do in the store.
            starts = np.stack([begins for begins, _ in ranges], axis=1) + firsts[:-1, None]
            sizes = np.stack([size for _, size in ranges], axis=1)
            carved[name].append((starts[sizes > 0], sizes[sizes > 0]))
    return {name: Runs(*map(np.concatenate, zip(*pieces, strict=True))) for name, pieces in carved.items()}, excluded


def shares_of_steps(sampled: SampledStore, cuts: Cuts, wanted: Mapping[str, Sequence[Interval]]) -> dict[str, float]:
    """For each subset the share of all steps that lies in its intervals: what it would be if no sample reached over a boundary."""
    steps = dict.fromkeys(wanted, 0)
    for first in range(0, sampled.lengths.num_series, _SERIES_AT_ONCE):
        places = cuts.local(first, min(first + _SERIES_AT_ONCE, sampled.lengths.num_series))
        for name, intervals in wanted.items():
            steps[name] += sum(int((places[:, high] - places[:, low]).sum()) for low, high in intervals)
    return {name: count / max(sampled.lengths.num_steps, 1) for name, count in steps.items()}


def _cut_runs(
    sampled: SampledStore, runs: GapRuns, margins: Margins, first: int, lengths: Array, places: Array
) -> tuple[Array, Array, tuple[Array, Array]]:
    """For the runs of some series, as if they were series: their steps, their first samples, and where they are cut.

    A cut outside a run limits it only as far as a sample reaches beyond its own steps, with its warm-up or a longer horizon. Such a
    cut is put behind the first step of the run where it begins an interval, and before the last one where it ends an interval: that
    excludes a few samples more, never fewer.
    """
    first_runs = runs.first_runs(first, first + len(lengths))
    mine = slice(int(first_runs[0]), int(first_runs[-1]))
    owner = runs.run_series[mine] - first
    run_lengths = np.diff(runs.offsets[mine.start : mine.stop + 1])
    begins = runs.offsets[mine] - sampled.lengths.bounds(first, first + len(lengths))[owner]
    own = places[owner] - begins[:, None]
    back, beyond = margins.embargo - margins.length + 1, margins.horizon - (sampled.samples.row - margins.length)
    inside = (places > 0) & (places < lengths[:, None])
    ends = run_lengths[:, None]
    begins_interval = np.where(inside[owner] & (own <= 0) & (own > -back), 1, own)
    ends_interval = np.where(inside[owner] & (own >= ends) & (own < ends + beyond), ends - 1, own)
    firsts = sampled.samples.first_in_runs()  # type: ignore[attr-defined]
    firsts = np.arange(mine.start, mine.stop + 1) if firsts is None else firsts[mine.start : mine.stop + 1]
    return run_lengths, firsts, (begins_interval, ends_interval)


def _between(
    lengths: Array, counts: Array, sides: tuple[Array, Array], interval: Interval, margins: Margins, excluded: Excluded
) -> tuple[Array, Array]:
    """The first of the samples that each series has in an interval, counted from its own first, and their number.

    `lengths` and `counts` are the steps and the samples of each series, `sides` its cuts where they begin and where they end an interval.
    """
    low, high = sides[0][:, interval[0]], sides[1][:, interval[1]]
    # No cut within the series limits it there: beyond its ends there is nothing to reach.
    is_begun, is_ended = low <= 0, high >= lengths
    if margins.whole_series:
        homes = (is_ended & (low < lengths)) | ((lengths == 0) & (interval[0] == 0))
        sizes = (homes & is_begun).astype(np.int64) * counts
        excluded.embargoed += int(homes.sum() - sizes.sum())
        return np.zeros_like(sizes), sizes
    stride, length = margins.stride, margins.length
    known_by = margins.first_target if margins.overlap else length - 1
    home = np.where(is_begun, 0, -((known_by - low) // stride))
    home_end = np.where(is_ended, counts, -((known_by - high) // stride))
    first = home if margins.overlap else np.where(is_begun, 0, -((length - 1 - low - margins.embargo) // stride))
    end = np.where(is_ended, counts, (high - length - margins.horizon) // stride + 1)
    absent = (low >= lengths) & ~is_begun
    home, home_end, first, end = (np.where(absent, counts, np.clip(place, 0, counts)) for place in (home, home_end, first, end))
    home_end = np.maximum(home, home_end)
    first = np.clip(first, home, home_end)
    sizes = np.maximum(np.minimum(end, home_end) - first, 0)
    excluded.embargoed += int((first - home).sum())
    excluded.purged += int((home_end - first - sizes).sum())
    return first, sizes
