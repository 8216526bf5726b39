"""Numbers of a column, block by block, in the type that goes into tensors. Nothing is rounded, cut or wrapped silently.

What is missing is NaN in floats and the least int64 in times; whole numbers have no such value, so a gap there is an error.
A column that is already as it should be is one block, where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.sequences_columns import TableColumn
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
    if pa.types.is_temporal(kind) and not isinstance(kind, pa.MonthDayNanoIntervalType):
        return np.dtype(np.int64)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype())
    row, value = column.first_value()
    if value is None:
        raise BadValue(f"column {column.name!r} has no values (type {kind}), where numbers are needed. Leave it out of columns=.")
    raise column.bad(row, value, f"and its type is {kind}, where a number is needed. Encode it to numbers first")


def number_blocks(column: TableColumn, dtype: np.dtype[Any], *, truncate: bool = False) -> Iterator[tuple[int, Array]]:
    """The first row of each block and its values, contiguous and of `dtype`; `truncate` lets floats lose their fractions."""
    start = 0
    for part in column.parts:
        if isinstance(part, np.ndarray) and part.dtype == dtype and part.flags.c_contiguous and part.flags.aligned:
            yield start, part
        else:
            for begin in range(0, len(part), BLOCK_ROWS):
                values, gaps = plain_values(part[begin : begin + BLOCK_ROWS])
                yield start + begin, _cast(column, start + begin, values, gaps, dtype, truncate)
        start += len(part)


def plain_values(part: Any) -> tuple[Array, Array | None]:
    """A part as NumPy numbers (times as int64), and which of them are missing; NaN is not counted as missing."""
    if isinstance(part, np.ndarray):
        if part.dtype.kind not in "mM":
            return part, None
        numbers = part.view(np.int64) if part.dtype.isnative else part.astype(part.dtype.newbyteorder("=")).view(np.int64)
        gaps = numbers == MISSING_TIME
        return numbers, gaps if gaps.any() else None
    import pyarrow as pa
    import pyarrow.compute as pc

    from stoker.store.sharing import to_numpy

    kind = part.type
    gaps = to_numpy(pc.is_null(part)) if part.null_count else None
    if pa.types.is_temporal(kind):
        part = part.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_boolean(kind) and gaps is not None:
        part = part.fill_null(False)
    return to_numpy(part), gaps


def _cast(column: TableColumn, row: int, values: Array, gaps: Array | None, dtype: np.dtype[Any], truncate: bool) -> Array:
    is_time = column.kind.kind in "mM" if isinstance(column.kind, np.dtype) else _is_temporal(column.kind)
    if gaps is not None and not is_time and dtype.kind != "f":
        raise column.bad(
            row + int(gaps.argmax()), None, f"which {dtype} cannot hold. Fill the gaps, or pass dtype='float64'"
        )
    result = cast_numbers(column, row, values, gaps, dtype, truncate=truncate)
    if gaps is not None:
        result[gaps] = np.nan if dtype.kind == "f" else MISSING_TIME
    return np.ascontiguousarray(result)


def cast_numbers(
    column: TableColumn, row: int, values: Array, gaps: Array | None, dtype: np.dtype[Any], *, truncate: bool = False
) -> Array:
    """The values in another type, each checked; those that are missing may be anything. `row` is the first one's."""
    with np.errstate(all="ignore"):
        result = values.astype(dtype)  # a copy, also where the type is the same: what is missing is written into it
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
        return np.isfinite(values) & ~np.isfinite(result)
    if target == "b":
        return (values != 0) & (values != 1)
    bad = ~truncate & (result.astype(values.dtype) != values) if source == "f" else result.astype(values.dtype) != values
    bad |= (values < 0) != (result < 0) if not truncate else np.zeros(len(values), dtype=bool)
    for floats, integers in ((values, result), (result, values)):
        if floats.dtype.kind == "f" and integers.dtype.kind in "iu":
            # What a float beyond an integer type becomes depends on the processor, and may even come back the same.
            bounds, wide = np.iinfo(integers.dtype), floats.astype(np.float64)
            bad |= ~((wide > float(bounds.min) - 1.0) & (wide < float(bounds.max) + (0.0 if bounds.bits > 53 else 1.0)))
            if bounds.bits == 64 and bounds.min < 0:
                bad &= wide != float(bounds.min)
    return np.asarray(bad)


def _is_temporal(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_temporal(kind))
