"""Keys: numbers of any kind as unsigned 64-bit numbers in the same order, so that one sort and one sketch serve all of them.

It stands between the raw values and all that is counted. Law: a < b exactly if the key of a is below that of b; and a key gives
its number back, bit for bit. The keys of floats put -0.0 before 0.0; NaN and infinite numbers have none.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Keys = npt.NDArray[np.uint64]
Form = Literal["float", "int", "uint"]
"""How numbers are held: float64, int64, or uint64."""

SMALL = 65_536
"""Up to so many values the plain way of NumPy ends before kernels would be loaded: 0.08 s of CPU for normals, against 0.65 s."""

_SIGN = np.uint64(2**63)
_KERNELS = "stoker.encode.statistics.kernels"


def compiled(num_values: int) -> Any:
    """The kernels, or None where so few values are to come that the plain way, which has the same results, is sooner done."""
    return importlib.import_module(_KERNELS) if num_values > SMALL or _KERNELS in sys.modules else None


def float_keys(values: Array) -> tuple[Keys, int, int, int]:
    """The keys of all finite values (float64), in their order; how many are NaN, and infinite; and the first infinite (or -1)."""
    values = np.require(values, requirements=["C", "ALIGNED"]).view()
    kernels = compiled(len(values))
    if kernels is None:
        bits, infinite, finite = values.view(np.uint64), np.isinf(values), np.isfinite(values)
        found = np.where(bits >= _SIGN, ~bits, bits | _SIGN)[finite]
        num_infinite = int(np.count_nonzero(infinite))
        first = int(infinite.argmax()) if num_infinite else -1
        return found, len(values) - len(found) - num_infinite, num_infinite, first
    values.flags.writeable = False  # one kind of array, as kernels are compiled for each
    keys = np.empty(len(values), dtype=np.uint64)
    num_keys, num_nan, num_infinite, first = kernels.write_float_keys(values, keys)
    return keys[:num_keys], num_nan, num_infinite, first


def whole_keys(values: Array) -> Keys:
    """The keys of whole numbers (int64 or uint64), as an array of its own."""
    return values.astype(np.uint64) if values.dtype.kind == "u" else values.view(np.uint64) ^ _SIGN


def decode_keys(keys: Keys, form: Form) -> Array:
    """The numbers of keys: float64, int64 or uint64."""
    if form == "uint":
        return keys.copy()
    if form == "int":
        return (keys ^ _SIGN).view(np.int64)
    return np.where(keys >= _SIGN, keys ^ _SIGN, ~keys).view(np.float64)


def decode_floats(keys: Keys, form: Form) -> npt.NDArray[np.float64]:
    """The numbers of keys as float64, which rounds integers above 2**53."""
    return decode_keys(keys, form).astype(np.float64, copy=False)


def write_float_keys(values: Array, keys: Array) -> tuple[int, int, int, int]:
    """Write the keys of the finite values; see `float_keys` for what is returned."""
    bits = values.view(np.uint64)
    num_keys = num_nan = num_infinite = 0
    first = -1
    for i in range(len(values)):
        value, word = values[i], bits[i]
        keys[num_keys] = ~word if word >= _SIGN else word | _SIGN
        infinite = abs(value) == np.inf
        num_nan += value != value
        num_infinite += infinite
        num_keys += not (infinite or value != value)
        if infinite and first < 0:
            first = i
    return num_keys, num_nan, num_infinite, first
