"""Gaps: where consecutive times of a series are too far apart, so that no sample may span them.

A series is cut at its gaps into runs. A view counts and locates its samples in runs instead of series; `run_series` gives the series
of each run. There is one entry per run, never one per sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array


class GapRuns(NamedTuple):
    """Series cut at their gaps."""

    offsets: Array
    """Where each run begins in the flat column, and where the last one ends."""
    run_series: Array
    """The series of each run."""
    num_gaps: int

    def first_runs(self, first: int, last: int) -> Array:
        """The first run of each of the series `first` to `last`, and of the one behind them."""
        places: Array = np.searchsorted(self.run_series, np.arange(first, last + 1))
        return places


def find_runs(times: Array, bounds: Array, max_gap: int) -> GapRuns:
    """Cut series where two consecutive times are more than `max_gap` apart, or where one of them is missing.

    Args:
        times: int64 times of all series end to end; the smallest int64 is a missing one.
        bounds: Where each series begins, and where the last one ends.
        max_gap: The largest difference, in the unit of the times, that is not a gap.
    """
    num_series = len(bounds) - 1
    num_gaps = int(_cut(times, bounds, max_gap, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)))
    offsets, run_series = np.empty(num_series + num_gaps + 1, dtype=np.int64), np.empty(num_series + num_gaps, dtype=np.int64)
    _cut(times, bounds, max_gap, offsets, run_series)
    offsets[-1] = bounds[-1] if num_series else 0
    return GapRuns(offsets, run_series, num_gaps)


@kernel
def _cut(times: Array, bounds: Array, max_gap: int, offsets: Array, run_series: Array) -> int:
    """Count the gaps; also write the runs, if there is room for them."""
    writes = len(run_series) > 0
    missing = np.iinfo(np.int64).min
    run, gaps = 0, 0
    for series in range(len(bounds) - 1):
        if writes:
            offsets[run], run_series[run] = bounds[series], series
        run += 1
        for t in range(bounds[series] + 1, bounds[series + 1]):
            gap = np.uint64(times[t]) - np.uint64(times[t - 1])  # without a sign, as it may be beyond int64
            is_far = times[t] > times[t - 1] and gap > np.uint64(max_gap)
            if is_far or times[t] == missing or times[t - 1] == missing:
                gaps += 1
                if writes:
                    offsets[run], run_series[run] = t, series
                run += 1
    return gaps
