"""Carve: from the cuts of each series to the samples between them, as runs of numbers; no list of samples is built.

The windows of a series begin at multiples of the stride, so those between two cuts are a range, found by division. A sample is at
home where the last step of its window is. There it is kept, or purged because its target reaches over the next cut, or embargoed
because it reaches back over the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.order.part import Runs
from stoker.split.cuts import Cuts
from stoker.split.ground import Ground
from stoker.split.reach import Reach

Array = npt.NDArray[Any]
Interval = tuple[int, int]
"""From one cut to another, by their numbers."""

_SERIES_AT_ONCE = 2**18


@dataclass(kw_only=True)
class Tally:
    """Samples that are in no part, and why."""

    purged: int = 0
    embargoed: int = 0


def carve(ground: Ground, cuts: Cuts, reach: Reach, wanted: Mapping[str, Sequence[Interval]]) -> tuple[dict[str, Runs], Tally]:
    """For each part the samples that lie in one of its intervals, which rise and do not touch."""
    found: dict[str, list[tuple[Array, Array]]] = {name: [] for name in wanted}
    tally = Tally()
    all_firsts = ground.first_samples()
    for first in range(0, ground.lengths.num_series, _SERIES_AT_ONCE):
        last = min(first + _SERIES_AT_ONCE, ground.lengths.num_series)
        firsts = np.arange(first, last + 1) if all_firsts is None else all_firsts[first : last + 1]
        lengths, places = np.diff(ground.bounds(first, last)), cuts.local(first, last)
        series = _Series(lengths, np.diff(firsts))
        for name, intervals in wanted.items():
            kept = [series.between(places, interval, reach, tally) for interval in intervals]
            # One row a series: its ranges stand one after the other, as they do in the store.
            starts = np.stack([begins for begins, _ in kept], axis=1) + firsts[:-1, None]
            counts = np.stack([counts for _, counts in kept], axis=1)
            there = counts > 0
            found[name].append((starts[there], counts[there]))
    return {name: Runs(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))) for name, parts in found.items()}, tally


@dataclass(frozen=True)
class _Series:
    """Some series: their steps and samples."""

    lengths: Array
    counts: Array

    def between(self, places: Array, interval: Interval, reach: Reach, tally: Tally) -> tuple[Array, Array]:
        """The first of the samples that each series has in an interval, counted from its own first, and their number."""
        low, high = places[:, interval[0]], places[:, interval[1]]
        # No cut within the series limits it there: beyond its ends there is nothing to reach.
        is_begun, is_ended = low <= 0, high >= self.lengths
        if reach.whole_series:
            homes = (is_ended & (low < self.lengths)) | ((self.lengths == 0) & (interval[0] == 0))
            kept = (homes & is_begun).astype(np.int64) * self.counts
            tally.embargoed += int(homes.sum() - kept.sum())
            return np.zeros_like(kept), kept
        stride, length = reach.stride, reach.length
        home = np.where(is_begun, 0, _ceil(low - length + 1, stride))
        home_end = np.where(is_ended, self.counts, _ceil(high - length + 1, stride))
        first = np.where(is_begun, 0, _ceil(low + reach.embargo - (length - 1), stride))
        end = np.where(is_ended, self.counts, (high - length - reach.horizon) // stride + 1)
        absent = (low >= self.lengths) & ~is_begun
        home, home_end, first, end = (
            np.where(absent, self.counts, np.clip(one, 0, self.counts)) for one in (home, home_end, first, end)
        )
        home_end = np.maximum(home, home_end)
        first = np.clip(first, home, home_end)
        kept = np.maximum(np.minimum(end, home_end) - first, 0)
        tally.embargoed += int((first - home).sum())
        tally.purged += int((home_end - first - kept).sum())
        return first, kept


def _ceil(number: Array, divisor: int) -> Array:
    return -(-number // divisor)
