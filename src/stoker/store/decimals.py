"""Decimals as float64, each the nearest one, as `float("19.99")` gives.

Arrow's own cast multiplies by a power of ten and rounds twice: 19.99 becomes 19.990000000000002, and so does a tenth of all
amounts of money. Here a number of at most 2**53 units is divided once, which rounds once; others go by way of their text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.store.sharing import from_numpy, to_numpy

_EXACT_UNITS = 2**53
_EXACT_POWERS = 22
"""Powers of ten up to this one are float64 without rounding."""


def decimals_as_floats(values: pa.Array) -> pa.Array:
    """An Arrow array of decimals as one of float64; what is missing stays missing."""
    if not len(values) or not 0 <= values.type.scale <= _EXACT_POWERS:
        return _through_texts(values)
    units, few = _units(values)
    numbers = units / 10.0**values.type.scale
    if not few.all():
        many = np.flatnonzero(~few)
        # What lies under a gap may be anything, so that gaps are among those; there, too, it does not matter.
        numbers[many] = to_numpy(_through_texts(values.take(from_numpy(many))).fill_null(0.0))
    floats = from_numpy(numbers)
    if not values.null_count:
        return floats
    return pa.Array.from_buffers(
        pa.float64(), len(values), [from_numpy(to_numpy(values.is_valid())).buffers()[1], floats.buffers()[1]]
    )


def _units(values: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The decimals as whole numbers of their smallest unit, and which of them are exact as float64."""
    width = values.type.byte_width
    word = np.dtype(f"<i{min(width, 8)}")
    start = values.offset * width
    words = np.frombuffer(values.buffers()[1], dtype=word, count=len(values) * width // word.itemsize, offset=start)
    words = words.reshape(len(values), -1)
    units = words[:, 0]
    few = (units >= -_EXACT_UNITS) & (units <= _EXACT_UNITS)
    for number in range(1, words.shape[1]):
        few &= words[:, number] == units >> 63  # nothing but the sign
    return units, few


def _through_texts(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()).cast(pa.float64())
