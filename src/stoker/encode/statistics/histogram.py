"""Histogram: how many values lie between powers of two, on both sides of zero: 128 counts for numbers of any size."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.statistics.keys import Form, Keys, float_keys, whole_keys
from stoker.encode.statistics.runs import Run

NUM_BINS = 128

EDGES = (*(-(2.0**i) for i in range(63, -1, -1)), 0.0, *(2.0**i for i in range(64)))
"""-2**63 ... -2, -1, 0, 1, 2 ... 2**63; a bin begins with its edge, and the first and last hold what lies beyond."""

_BOUNDS = {"int": (-(2**63), 2**63 - 1, np.int64), "uint": (0, 2**64 - 1, np.uint64)}


def log_histogram(run: Run, form: Form) -> npt.NDArray[np.int64]:
    """The counts of a run; whole numbers count as the float64 that is nearest to them."""
    begins = run.before(np.searchsorted(run.keys, _first_keys(form)))
    return np.diff(begins, prepend=0, append=run.num_values)


@cache
def _first_keys(form: Form) -> Keys:
    """The first key of each bin but the first one."""
    inner = EDGES[1:-1]
    if form == "float":
        return float_keys(np.array([-0.0 if edge == 0 else edge for edge in inner]))[0]
    low, high, dtype = _BOUNDS[form]
    return whole_keys(np.array([_first_at(edge, low, high) for edge in inner], dtype=dtype))


def _first_at(edge: float, low: int, high: int) -> Any:
    """The least whole number that is at least `edge` once it is a float64."""
    while low < high:
        middle = (low + high) // 2
        if float(middle) >= edge:
            high = middle
        else:
            low = middle + 1
    return low
