"""Sharing: NumPy values seen as Arrow ones and back, without a copy.

`pa.array` and `to_numpy` would do, but they import pandas wherever that is installed: half a second and 50 MB that a pack
does not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.store.column import Texts


def from_numpy(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers or truth values as an Arrow array; only truth values are copied, as Arrow packs them into bits."""
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def to_numpy(values: pa.Array) -> npt.NDArray[Any]:
    """The values of an array of numbers or truth values that has no gaps, read-only; truth values are unpacked."""
    if not len(values):
        return np.empty(0, dtype=values.type.to_pandas_dtype())
    data = values.buffers()[1]
    if pa.types.is_boolean(values.type):
        bits = np.frombuffer(data, dtype=np.uint8)
        return np.unpackbits(bits, count=values.offset + len(values), bitorder="little")[values.offset :].view(np.bool_)
    dtype: np.dtype[Any] = np.dtype(values.type.to_pandas_dtype())
    return np.frombuffer(data, dtype=dtype, count=len(values), offset=values.offset * dtype.itemsize)


def from_texts(texts: Sequence[str]) -> pa.Array:
    """Texts as an Arrow array; those of a store are shared."""
    laid = texts if isinstance(texts, Texts) else Texts.of(texts)
    return pa.Array.from_buffers(pa.large_string(), len(laid), [None, pa.py_buffer(laid.offsets), pa.py_buffer(laid.utf8)])
