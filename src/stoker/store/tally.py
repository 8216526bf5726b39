"""Tallies: how many values of a column are not finite, and which is the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Tally:
    """Running counts over the values of one column."""

    __slots__ = ("first_step", "inf", "nan")

    def __init__(self, *, nan: int = 0, inf: int = 0, first_step: int | None = None) -> None:
        self.nan = nan
        self.inf = inf
        self.first_step = first_step

    def add(self, values: Array, *, first_step: int) -> None:
        """Count `values`, which begin at step `first_step` of the column."""
        if values.dtype.kind != "f" or _surely_finite(values):
            return
        bad = ~np.isfinite(values)
        if not bad.any():
            return
        nan = int(np.isnan(values).sum())
        self.nan += nan
        self.inf += int(bad.sum()) - nan
        if self.first_step is None:
            rows = bad if bad.ndim == 1 else bad.any(axis=1)
            self.first_step = first_step + int(rows.argmax())


def _surely_finite(values: Array) -> bool:
    """A sum is finite only if all its terms are: one pass, no temporary. (A sum that overflows proves nothing.)"""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum(dtype=np.float32 if values.dtype.itemsize == 2 else None)))
