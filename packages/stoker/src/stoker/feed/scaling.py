"""Scaling: what each series is centered on and divided by, so that normalizing is a step of the gather.

    zero    (x - mean) / standard deviation        max    x / largest absolute value

Statistics are those of the whole series, not of the window, so a value is the same in every window that holds it. They are computed in
float64 over finite values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.sampling.views import Lengths

Method = Literal["zero", "max"]

_PIECE_STEPS = 2**20


class Scales(NamedTuple):
    """One row a series, one number for each of the column's; values become (x - centers) / divisors."""

    centers: Array
    divisors: Array


class SeriesScales(Protocol):
    """Scales that were fitted before, such as `stoker.split.SeriesScaler`."""

    data: str
    """The identity of the store that they were fitted on."""
    fitted_on: str
    """The fingerprint of the subset that they were fitted on, or "all"."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scaled columns."""

    def scales(self, column: str) -> Scales:
        """Centers and divisors of a column, one row per series."""

    def describe(self) -> dict[str, Any]:
        """Plain values that differ where scaled values could; a resumed run compares them."""


def series_scales(values: Array, lengths: Lengths, method: Method) -> Scales:
    """Return the scales of all series; reads the column once."""
    flat = values.reshape(len(values), values.shape[1] if values.ndim == 2 else 1)
    kind = flat.dtype if flat.dtype.kind == "f" and flat.dtype.itemsize > 2 else np.dtype(np.float64)
    shape = (lengths.num_series, flat.shape[1])
    centers, divisors = np.zeros(shape, dtype=kind), np.ones(shape, dtype=kind)
    ends = lengths.bounds()
    measure = _finite_moments if method == "zero" else _finite_largest
    for first, last in _pieces(ends, whole=flat.dtype != np.float16):
        part = flat[ends[first] : ends[last]]
        # Compiled kernels cannot calculate with float16.
        part = part.astype(np.float32) if part.dtype == np.float16 else part
        measure(part, ends[first : last + 1] - ends[first], centers[first:last], divisors[first:last])
    return Scales(centers, divisors)


def _pieces(bounds: Array, *, whole: bool) -> Iterator[tuple[int, int]]:
    """Runs of series that are measured together: all, or as many as keep a copy of their values small."""
    first = 0
    while first < len(bounds) - 1:
        last = len(bounds) - 1
        if not whole:
            last = min(last, max(first + 1, int(np.searchsorted(bounds, bounds[first] + _PIECE_STEPS, side="right")) - 1))
        yield first, last
        first = last


@kernel
def _finite_moments(values: Array, bounds: Array, centers: Array, divisors: Array) -> None:
    for i in range(len(bounds) - 1):
        for k in range(values.shape[1]):
            total, count = 0.0, 0
            for t in range(bounds[i], bounds[i + 1]):
                x = np.float64(values[t, k])
                if np.isfinite(x):
                    total += x
                    count += 1
            mean = total / count if count else 0.0
            squares = 0.0
            for t in range(bounds[i], bounds[i + 1]):
                x = np.float64(values[t, k])
                if np.isfinite(x):
                    squares += (x - mean) * (x - mean)
            deviation = np.sqrt(squares / count) if count else 0.0
            centers[i, k] = mean
            # A constant series has a deviation of rounding errors; dividing by them would make noise of it.
            divisors[i, k] = deviation if deviation > 1e-7 * abs(mean) and deviation > 0 else 1.0


@kernel
def _finite_largest(values: Array, bounds: Array, centers: Array, divisors: Array) -> None:
    for i in range(len(bounds) - 1):
        for k in range(values.shape[1]):
            largest = 0.0
            for t in range(bounds[i], bounds[i + 1]):
                x = abs(np.float64(values[t, k]))
                if np.isfinite(x) and x > largest:
                    largest = x
            divisors[i, k] = largest if largest > 0 else 1.0
