"""Cuts: where each series is cut into earlier and later steps, by a share of its steps or at moments that all series share.

Times are never sorted across series: each series is searched on its own. A moment that has a share of all steps before it is found
by halving the span of time, so its cost grows with the number of series and hardly with their lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError, TimeDisorder
from stoker.kernel import kernel
from stoker.split.ground import Ground
from stoker.store.column import Column
from stoker.store.store import Store

Array = npt.NDArray[Any]


class Cuts(Protocol):
    """Where series are cut. Cut 0 is the beginning."""

    def local(self, first: int, last: int) -> Array:
        """Of the series `first` to `last` a row each: their steps before each cut, int64."""

    def describe(self, cut: int) -> str:
        """Where a cut is, in words."""


@dataclass(frozen=True)
class StepCuts:
    """The same shares of each series."""

    ground: Ground
    shares: Sequence[float]
    """Rising from 0."""

    def local(self, first: int, last: int) -> Array:
        """Steps before each cut."""
        lengths = np.diff(self.ground.bounds(first, last))
        # A share is a rounded number; without the margin, 0.7 of 10 steps could be 6.
        return np.stack(
            [lengths if share >= 1 else np.floor(lengths * share + 1e-6).astype(np.int64) for share in self.shares], axis=1
        )

    def describe(self, cut: int) -> str:
        """As a share."""
        return "the beginning" if cut == 0 else "the end" if self.shares[cut] >= 1 else f"{self.shares[cut]:.4g} of each series"


@kernel
def _count_before(times: Array, bounds: Array, moments: Array, counts: Array) -> None:
    for i in range(len(bounds) - 1):
        for j in range(len(moments)):
            low, high = bounds[i], bounds[i + 1]
            while low < high:
                middle = (low + high) // 2
                if times[middle] < moments[j]:
                    low = middle + 1
                else:
                    high = middle
            counts[i, j] = low - bounds[i]


@kernel
def _narrow(times: Array, lows: Array, highs: Array, moment: int, places: Array) -> int:
    """Where each series has the moment, known to be between `lows` and `highs`; returns the sum of them."""
    total = 0
    for i in range(len(lows)):
        low, high = lows[i], highs[i]
        while low < high:
            middle = (low + high) // 2
            if times[middle] < moment:
                low = middle + 1
            else:
                high = middle
        places[i] = low
        total += low
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

    ground: Ground
    times: Array
    column: Column
    moments: Sequence[int]
    """The cuts after the beginning; steps before a moment are before the cut."""
    open_end: bool
    """Whether there is a last cut at the end of everything."""

    def local(self, first: int, last: int) -> Array:
        """Steps before each cut."""
        bounds = self.ground.bounds(first, last)
        counts = np.empty((last - first, len(self.moments)), dtype=np.int64)
        _count_before(self.times, bounds, np.array(self.moments, dtype=np.int64), counts)
        ends = [np.diff(bounds)[:, None]] if self.open_end else []
        return np.concatenate([np.zeros((last - first, 1), dtype=np.int64), counts, *ends], axis=1)

    def describe(self, cut: int) -> str:
        """As a time."""
        return (
            "the beginning" if cut == 0 else "the end" if cut > len(self.moments) else readable(self.moments[cut - 1], self.column)
        )


def cuts_at_shares(ground: Ground, store: Store, shares: Sequence[float], *, time: str | None) -> Cuts:
    """Cuts that have these shares (rising from 0) of all steps before them; of each series where there is no time."""
    name = time if time is not None else store.time
    if name is None:
        return StepCuts(ground, shares)
    times, column = _times(ground, store, name, trusted=time is None)
    moments = [_moment_of(ground, times, share) for share in shares[1:] if share < 1]
    return TimeCuts(ground, times, column, moments, shares[-1] >= 1)


def cuts_at_times(ground: Ground, store: Store, boundaries: Sequence[Any], *, time: str | None) -> TimeCuts:
    """Cuts at these times, and at the end."""
    name = time if time is not None else store.time
    if name is None:
        raise OptionError(
            f"{store.name} has no column of time to find boundaries in. Give fractions=, or name the column: time='…'."
        )
    times, column = _times(ground, store, name, trusted=time is None)
    moments = [_moment(one, column) for one in boundaries]
    if sorted(set(moments)) != moments:
        raise OptionError(f"boundaries are {list(boundaries)!r}; expected times that rise.")
    first, last = _span(ground, times)
    for given, moment in zip(boundaries, moments, strict=True):
        if not first < moment <= last:
            raise OptionError(
                f"the boundary {given!r} is outside the data: {name!r} of {store.name} runs from {readable(first, column)} "
                f"to {readable(last, column)}."
            )
    return TimeCuts(ground, times, column, moments, True)


def readable(moment: int, column: Column) -> str:
    """A time as people write it."""
    return str(np.datetime64(moment, _unit(column))) if column.kind == "timestamp" else f"{moment:,}"


def _unit(column: Column) -> Any:
    return (column.unit or "ns").split(",")[0]


def _times(ground: Ground, store: Store, name: str, *, trusted: bool) -> tuple[Array, Column]:
    column = store.schema.get(name)
    if column is None:
        raise OptionError(f"{store.name} has no column {name!r}; it has {', '.join(store.schema)}.")
    if column.level != "step" or column.dtype is None or column.dtype.kind != "i" or column.width is not None:
        raise OptionError(
            f"column {name!r} of {store.name} holds {column.label} a {column.level}; expected a time or whole number a step."
        )
    times = store.column(name)
    if not trusted:  # a packed store has refused times that do not rise
        step = _first_disorder(times, ground.bounds(0, ground.lengths.num_series))
        if step >= 0:
            raise TimeDisorder(
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
            return int(np.datetime64(when).astype(f"datetime64[{_unit(column)}]").astype(np.int64))
    raise OptionError(
        f"the boundary {given!r} is no time of column {column.name!r} ({column.label}). Give a date, a datetime or its number."
    )


def _span(ground: Ground, times: Array) -> tuple[int, int]:
    """The first and the last time of all series."""
    bounds = ground.bounds(0, ground.lengths.num_series)
    filled = bounds[1:] > bounds[:-1]
    return int(times[bounds[:-1][filled]].min()), int(times[bounds[1:][filled] - 1].max())


def _moment_of(ground: Ground, times: Array, share: float) -> int:
    """The first moment that has at least a share of all steps before it."""
    bounds = ground.bounds(0, ground.lengths.num_series)
    lows, highs, places = bounds[:-1].copy(), bounds[1:].copy(), np.empty(len(bounds) - 1, dtype=np.int64)
    wanted = int(bounds[:-1].sum()) + int(np.floor(ground.lengths.num_steps * share + 1e-6))
    low, high = _span(ground, times)
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
