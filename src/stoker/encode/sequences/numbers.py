"""Numbers of a column, block by block, in the type that goes into tensors. Nothing is rounded, cut or wrapped silently.

What is missing is NaN in floats and the least int64 in times; whole numbers have no such value, so a gap there is an error.
A column that is already as it should be is one block, where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.sequences.columns import TableColumn
from stoker.errors import BadValue
from stoker.store.column import MISSING_TIME

Array = npt.NDArray[Any]

BLOCK_ROWS = 1 << 16
"""Rows that are converted at a time: they stay in the second-level cache until they are used."""


def number_type(column: TableColumn) -> np.dtype[Any]:
    """The type of a column's numbers; times are int64. Raises `BadValue` where it holds none."""
    if isinstance(column.kind, np.dtype):
        return np.dtype(np.int64) if column.kind.kind in "mM" else column.kind.newbyteorder("=")
    import pyarrow as pa

    kind = column.kind
    if _is_time(kind):
        return np.dtype(np.int64)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return found
    row, value = column.first_value()
    if value is None:
        raise BadValue(f"column {column.name!r} has no values (type {kind}), where numbers are needed. Leave it out of columns=.")
    raise column.bad(row, value, f"and its type is {kind}, where a number is needed. Encode it to numbers first")


def number_blocks(column: TableColumn, dtype: np.dtype[Any], *, truncate: bool = False) -> Iterator[tuple[int, Array]]:
    """The first row of each block and its values, contiguous and of `dtype`; `truncate` lets floats lose their fractions."""
    start = 0
    for part in column.parts:
        size = max(len(part), 1) if _is_plain(part, dtype) else BLOCK_ROWS
        for begin in range(0, len(part), size):
            values, gaps = plain_values(part[begin : begin + size])
            if values.dtype != dtype or gaps is not None:
                values = _converted(column, start + begin, values, gaps, dtype, truncate)
            yield start + begin, np.ascontiguousarray(values)
        start += len(part)


def _is_plain(part: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a part can be used where it lies."""
    if isinstance(part, np.ndarray):
        return part.dtype.kind in "biuf" and part.dtype == dtype and part.flags.c_contiguous and part.flags.aligned
    import pyarrow as pa

    return not part.null_count and not pa.types.is_boolean(part.type)


def plain_values(part: Any) -> tuple[Array, Array | None]:
    """A part as NumPy numbers (times as int64), and which of them are missing; NaN is not counted as missing."""
    if isinstance(part, np.ndarray):
        if part.dtype.kind not in "mM":
            return part if part.dtype.isnative else part.astype(part.dtype.newbyteorder("=")), None
        numbers = np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("=")).view(np.int64)
        gaps = numbers == MISSING_TIME
        return numbers, gaps if gaps.any() else None
    import pyarrow as pa
    import pyarrow.compute as pc

    from stoker.store.sharing import to_numpy

    gaps = to_numpy(pc.is_null(part)) if part.null_count else None
    if _is_time(part.type):
        part = part.view(pa.int32() if part.type.bit_width == 32 else pa.int64())
    return to_numpy(part), gaps


def plain_gaps(part: Any) -> Array | None:
    """Which values of a part are missing, NaN and NaT too; None where none is."""
    if isinstance(part, np.ndarray):
        gaps = np.isnan(part) if part.dtype.kind == "f" else np.isnat(part) if part.dtype.kind in "mM" else None
    else:
        import pyarrow.compute as pc

        from stoker.store.sharing import to_numpy

        gaps = to_numpy(pc.is_null(part, nan_is_null=True))
    return gaps if gaps is not None and gaps.any() else None


def _is_time(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_temporal(kind)) and not pa.types.is_interval(kind)


def _converted(column: TableColumn, row: int, values: Array, gaps: Array | None, dtype: np.dtype[Any], truncate: bool) -> Array:
    is_time = column.kind.kind in "mM" if isinstance(column.kind, np.dtype) else _is_time(column.kind)
    if gaps is not None and not is_time and dtype.kind != "f":
        raise column.bad(row + int(gaps.argmax()), None, f"which {dtype} cannot hold. Fill the gaps, or pass dtype='float64'")
    result = cast_numbers(column, row, values, gaps, dtype, truncate=truncate)
    if gaps is not None:
        result[gaps] = np.nan if dtype.kind == "f" else MISSING_TIME
    return result


def cast_numbers(
    column: TableColumn, row: int, values: Array, gaps: Array | None, dtype: np.dtype[Any], *, truncate: bool = False
) -> Array:
    """A copy in another type, each value checked; those that are missing may be anything. `row` is the first one's."""
    with np.errstate(all="ignore"):
        result = values.astype(dtype)
        # NumPy calls the way from 64-bit integers to float64 safe, which it is not.
        if values.dtype == dtype or (values.dtype.itemsize < 8 and np.can_cast(values.dtype, dtype, casting="safe")):
            return result
        bad = _differs(values, result, truncate)
    if gaps is not None:
        bad &= ~gaps
    if bad.any():
        i = int(bad.argmax())
        raise column.bad(row + i, values[i].item(), f"which {dtype} cannot hold. Choose another dtype, or fix the row")
    return result


def _differs(values: Array, result: Array, truncate: bool) -> Array:
    """Which numbers are not the same after a cast; floats may round to narrower floats, but not overflow."""
    source, target = values.dtype.kind, result.dtype.kind
    if source == "f" and target == "f":
        return np.asarray(np.isfinite(values) & ~np.isfinite(result))
    if target == "b":
        return np.asarray((values != 0) & (values != 1))
    if source == "f":
        whole = np.trunc(values.astype(np.float64))
        outside = ~_fits(whole, result.dtype)
        return outside if truncate else outside | (whole != values)
    bad = (result.astype(values.dtype) != values) | ((values < 0) != (result < 0))
    return np.asarray(bad | ~_fits(result.astype(np.float64), values.dtype) if target == "f" else bad)


def _fits(whole: Array, dtype: np.dtype[Any]) -> Array:
    """Which float64 lie in an integer type: what others become depends on the processor, and may even come back the same."""
    bounds = np.iinfo(dtype)
    return np.asarray((whole >= float(bounds.min)) & (whole < float(bounds.max) + (0.0 if bounds.bits > 53 else 1.0)))
