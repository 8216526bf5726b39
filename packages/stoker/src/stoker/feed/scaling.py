"""Scaling: what each series is centered on and divided by, so that normalizing is a step of the gather.

    zero    (x - mean) / standard deviation        max    x / largest absolute value

Statistics are those of the whole series, not of the window, so a value is the same in every window that holds it. They are computed in
float64 over finite values. With `compat`, they are what NumPy gives for the type of the column, rounding, NaN and all: that is what
Time-MoE does, and weights trained there expect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.sampling.views import Lengths

Method = Literal["zero", "max"]

_PAIRWISE = 128
_PIECE_STEPS = 2**20


class Scales(NamedTuple):
    """One row a series, one number for each of the column's; values become (x - centers) / divisors."""

    centers: Array
    divisors: Array
    truncate: bool
    """Whether results are truncated to integers, as Time-MoE does to columns of integers."""


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


def series_scales(values: Array, lengths: Lengths, method: Method, *, compat: bool) -> Scales:
    """The scales of all series; reads the column once."""
    flat = values.reshape(len(values), values.shape[1] if values.ndim == 2 else 1)
    kind = flat.dtype if flat.dtype.kind == "f" and flat.dtype.itemsize > 2 else np.dtype(np.float64)
    if compat and flat.dtype.kind == "f":
        kind = flat.dtype
    shape = (lengths.num_series, flat.shape[1])
    centers, divisors = np.zeros(shape, dtype=kind), np.ones(shape, dtype=kind)
    ends = lengths.bounds()
    if not compat:
        measure = _finite_moments if method == "zero" else _finite_largest
        for first, last in _pieces(ends, whole=flat.dtype != np.float16):
            part = flat[ends[first] : ends[last]]
            # Compiled kernels cannot calculate with float16.
            part = part.astype(np.float32) if part.dtype == np.float16 else part
            measure(part, ends[first : last + 1] - ends[first], centers[first:last], divisors[first:last])
    elif flat.dtype in (np.float32, np.float64) and flat.shape[1] == 1:
        (_numpy_moments if method == "zero" else _numpy_largest)(flat[:, 0], ends, centers[:, 0], divisors[:, 0])
    else:
        _by_numpy(flat, ends, centers, divisors, method)
    return Scales(centers, divisors, compat and flat.dtype.kind in "iu")


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


@kernel
def _pairwise(values: Array, start: int, count: int, mean: Any, squares: bool) -> Any:
    """The sum of values, or of their squared distances from the mean, added up in the order in which NumPy does it."""
    zero = values.dtype.type(0)
    if count > _PAIRWISE:
        half = count // 2
        half -= half % 8
        return _pairwise(values, start, half, mean, squares) + _pairwise(values, start + half, count - half, mean, squares)
    if count < 8:
        total = zero
        for i in range(start, start + count):
            x = values[i] - mean if squares else values[i]
            total += x * x if squares else x
        return total
    sums = np.empty(8, dtype=values.dtype)
    for j in range(8):
        x = values[start + j] - mean if squares else values[start + j]
        sums[j] = x * x if squares else x
    whole = count - count % 8
    for i in range(8, whole, 8):
        for j in range(8):
            x = values[start + i + j] - mean if squares else values[start + i + j]
            sums[j] += x * x if squares else x
    total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))
    for i in range(start + whole, start + count):
        x = values[i] - mean if squares else values[i]
        total += x * x if squares else x
    return total


@kernel
def _numpy_moments(values: Array, bounds: Array, centers: Array, divisors: Array) -> None:
    one = values.dtype.type(1)
    zero = values.dtype.type(0)
    for i in range(len(bounds) - 1):
        count = bounds[i + 1] - bounds[i]
        if count:
            # NumPy divides in float64, which holds any count, and rounds once to the type of the values.
            total = zero + _pairwise(values, bounds[i], count, zero, False)
            mean = values.dtype.type(np.float64(total) / np.float64(count))
            squares = zero + _pairwise(values, bounds[i], count, mean, True)
            deviation = np.sqrt(values.dtype.type(np.float64(squares) / np.float64(count)))
            centers[i] = mean
            divisors[i] = one if deviation == zero else deviation


@kernel
def _numpy_largest(values: Array, bounds: Array, centers: Array, divisors: Array) -> None:
    for i in range(len(bounds) - 1):
        largest = values.dtype.type(0)
        for t in range(bounds[i], bounds[i + 1]):
            x = abs(values[t])
            if x > largest or np.isnan(x):
                largest = x
            if np.isnan(x):
                break
        divisors[i] = values.dtype.type(1) if largest == 0 else largest


def _by_numpy(values: Array, bounds: Array, centers: Array, divisors: Array, method: Method) -> None:
    """For the types whose sums NumPy makes in ways of their own, ask NumPy."""
    with np.errstate(all="ignore"):
        for i, (start, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            for k in range(values.shape[1] if stop > start else 0):
                series = np.ascontiguousarray(values[start:stop, k])
                if method == "zero":
                    deviation = series.std()
                    centers[i, k] = series.mean()
                else:
                    deviation = np.abs(series).max()
                divisors[i, k] = deviation if deviation != 0 else 1
