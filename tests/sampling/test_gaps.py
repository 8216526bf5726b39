"""Gaps: runs equal to those of a loop over all steps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.sampling.gaps import find_runs

MISSING = np.iinfo(np.int64).min
TIMES = st.integers(-20, 20) | st.sampled_from([MISSING, MISSING + 1, 2**63 - 1])


def slow(series: list[list[int]], max_gap: int) -> list[tuple[int, int]]:
    """(series, first step) of each run, step by step, in Python's integers."""
    runs, first = [], 0
    for number, times in enumerate(series):
        runs.append((number, first))
        for t in range(1, len(times)):
            if MISSING in (times[t], times[t - 1]) or times[t] - times[t - 1] > max_gap:
                runs.append((number, first + t))
        first += len(times)
    return runs


@given(st.lists(st.lists(TIMES, max_size=8), max_size=5), st.integers(0, 10))
def test_runs_are_those_of_a_loop(series: list[list[int]], max_gap: int) -> None:
    bounds = np.cumsum([0, *(len(times) for times in series)])
    found = find_runs(np.array([time for times in series for time in times], dtype=np.int64), bounds, max_gap)
    assert list(zip(found.run_series.tolist(), found.offsets[:-1].tolist(), strict=True)) == slow(series, max_gap)
    assert found.offsets[-1] == bounds[-1]
    assert found.num_gaps == len(found.run_series) - len(series)
