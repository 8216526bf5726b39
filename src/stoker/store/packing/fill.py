"""Filling forward: a missing value takes the last one before it in its series."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.store.column import MISSING_CODE, MISSING_TIME
from stoker.store.packing.values import from_bfloat16

Array = npt.NDArray[Any]


def is_missing(values: Array) -> Array:
    """Which in-band values stand for missing: NaN, the least int64, code -1. (Of 16 bits, only bfloat16 has such.)"""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    if values.dtype == np.uint16:
        return np.asarray(np.isnan(from_bfloat16(values)))
    return np.asarray(values == (MISSING_TIME if values.dtype == np.int64 else MISSING_CODE))


def fill_forward(values: Array, starts: Array, before: Any | None) -> Array:
    """Fill gaps within each series; `starts` are the rows where one begins, `before` the value ahead of row 0 if its
    series began earlier. A gap at the begin of a series stays."""
    missing = is_missing(values)
    if not missing.any():
        return values
    source = np.where(missing, -1, np.arange(len(values)))
    source[starts] = starts
    source = np.maximum.accumulate(source)
    filled: Array = values[source]
    if before is not None:
        filled[source < 0] = before
    elif (source < 0).any():
        filled[source < 0] = values[source < 0]
    return filled
