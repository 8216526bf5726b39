"""The header of a `.npy` file, parsed strictly: plain numbers of known size, and exactly as many bytes as it declares.

No code ever runs: object arrays are refused by their dtype, before any value is read.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy_format

from stoker.errors import BadValue, SourceEmpty, SourceInvalid

MAX_HEADER_BYTES = 64 << 10
_NUMBERS = frozenset("b1 i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8".split())
_TIME_UNITS = frozenset({"s", "ms", "us", "ns"})
_REFUSED = {
    "O": "Python objects, which could run code",
    "U": "texts",
    "S": "texts",
    "V": "records",
    "c": "complex numbers",
}


@dataclass(frozen=True, slots=True)
class Header:
    """What the header says: the type as it is in the file, the shape, and where values begin."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int

    @property
    def values_bytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def arrow_type(self) -> pa.DataType:
        """Type of one value."""
        kind = self.dtype.kind
        if kind in "mM":
            unit = np.datetime_data(self.dtype)[0]
            return pa.timestamp(unit) if kind == "M" else pa.duration(unit)
        return pa.from_numpy_dtype(self.dtype.newbyteorder("="))


def read_header(file: BinaryIO, num_bytes: int, label: str) -> Header:
    """Parse the header at the begin of `file`, which has `num_bytes` in all."""
    magic = file.read(npy_format.MAGIC_LEN)
    if magic[:6] != npy_format.MAGIC_PREFIX or len(magic) < npy_format.MAGIC_LEN:
        raise SourceInvalid(f"{label} is not a .npy file: it begins with {magic[:6]!r}, expected {npy_format.MAGIC_PREFIX!r}.")
    version = (magic[6], magic[7])
    if version not in ((1, 0), (2, 0)):
        raise SourceInvalid(
            f"{label} has .npy version {version[0]}.{version[1]}; 1.0 and 2.0 are read. Save it again with plain numbers."
        )
    length_bytes = 2 if version == (1, 0) else 4
    prefix = file.read(length_bytes)
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise SourceInvalid(f"{label} declares a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read. Is it damaged?")
    text = file.read(length)
    if len(prefix) + len(text) < length_bytes + length:
        raise SourceInvalid(
            f"{label} ends inside its header, after {len(magic) + len(prefix) + len(text):,} bytes. Fetch or make it again."
        )
    parse: Any = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    try:
        shape, fortran_order, dtype = parse(io.BytesIO(prefix + text), max_header_size=MAX_HEADER_BYTES)
    except Exception as error:  # NumPy's parser lets many kinds through, SyntaxError and RecursionError among them
        raise SourceInvalid(
            f"{label} has a damaged .npy header: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    header = Header(dtype, tuple(shape), bool(fortran_order), len(magic) + length_bytes + length)
    _check(header, num_bytes, label)
    return header


def _check(header: Header, num_bytes: int, label: str) -> None:
    dtype, shape = header.dtype, header.shape
    if dtype.kind in "mM":
        unit = np.datetime_data(dtype)
        if unit[0] not in _TIME_UNITS or unit[1] != 1:
            raise SourceInvalid(
                f"{label} holds {dtype}; times are read in s, ms, us or ns. Save it again with .astype('datetime64[ns]')."
            )
    elif dtype.str[1:] not in _NUMBERS or dtype.names is not None or dtype.subdtype is not None:
        what = _REFUSED.get(dtype.kind, "no plain numbers")
        raise SourceInvalid(
            f"{label} holds {what} (dtype {str(dtype)[:60]}); expected numbers. Save it again as float32, int64 or the like."
        )
    if any(isinstance(length, bool) or length < 0 for length in shape):
        raise SourceInvalid(f"{label} has a damaged .npy header: shape {shape}.")
    expected = header.offset + header.values_bytes
    if num_bytes != expected:
        state = "cut off" if num_bytes < expected else "longer than it says"
        raise SourceInvalid(
            f"{label} is {state}: {num_bytes:,} bytes found, {expected:,} expected for {dtype} {shape}. Fetch or make it again."
        )
    if len(shape) not in (1, 2):
        raise SourceInvalid(
            f"{label} has {len(shape)} axes {shape}; expected 1 (steps) or 2 (series, steps). Save it again with another shape."
        )
    if shape[0] and not header.values_bytes:
        raise SourceEmpty(f"{label} has the shape {shape}, so it holds no value.")


def to_arrow(values: np.ndarray[Any, Any], label: str) -> pa.Array:
    """One axis of values, of either byte order, as an Arrow array with the same bits; NaT becomes null."""
    native = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    if native.dtype.kind == "b":
        if native.size and int(native.view(np.uint8).max()) > 1:
            raise BadValue(f"{label} holds booleans that are neither 0 nor 1. Is it damaged?")
        return pa.array(native)
    if native.dtype.kind in "mM":
        return pa.array(native)
    return pa.Array.from_buffers(pa.from_numpy_dtype(native.dtype), native.size, [None, pa.py_buffer(native)])


def to_lists(values: np.ndarray[Any, Any], label: str) -> pa.Array:
    """Two axes of values: one list a row."""
    rows, width = values.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    return pa.LargeListArray.from_arrays(pa.array(offsets), to_arrow(values.reshape(-1), label))
