"""Values: a column of a table as NumPy arrays, and back as its own type.

Numbers, decimals, times and durations become int64 or float64, whatever is exact; everything else becomes strings. A type comes
back as it was: booleans, integers with missing values, decimals, dates, time zones, categories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from stoker.errors import BadValueError
from stoker.extend import Array

Family = Literal["number", "time", "text"]


@dataclass(frozen=True, kw_only=True)
class Values:
    """A column: `data` holds 0 where `valid` is False."""

    family: Family
    data: Any
    """int64 or float64; of strings the codes of `words`."""
    valid: Array
    words: Any = None
    """The distinct strings, an Arrow array."""

    def __len__(self) -> int:
        return len(self.data)


def family_of(kind: pa.DataType) -> Family | None:
    """What values of a type are; None where they cannot be learned."""
    if pa.types.is_dictionary(kind):
        return family_of(kind.value_type) and "text"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "time"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        return "number"
    return "text" if is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind) else None


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are strings."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_string_view(inner))


def read_values(name: str, column: pa.ChunkedArray | pa.Array, *, family: Family | None = None) -> Values:
    """The values of a column.

    Args:
        name: Its name, for messages.
        column: The column.
        family: "text" reads numbers and times as strings, for categories.

    Raises:
        BadValueError: Its type cannot be learned, or a value is infinite.
    """
    kind = column.type
    natural = family_of(kind)
    if natural is None:
        raise BadValueError(
            f"column {name!r} is of the type {kind}; expected numbers, booleans, strings, dates or times. Drop or convert it."
        )
    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    if family == "text" or natural == "text":
        return _read_words(column)
    try:
        whole = _to_plain(column)
    except pa.ArrowInvalid:
        raise BadValueError(
            f"column {name!r} has integers above {2**63 - 1:,}, which int64 does not hold. Convert it to float64."
        ) from None
    array = whole.combine_chunks() if whole.num_chunks != 1 else whole.chunk(0)
    valid = np.ones(len(array), bool) if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    data = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    if data.dtype.kind == "f":
        data = data.astype(np.float64, copy=False)
        nan = np.isnan(data)
        if nan.any():
            valid = valid & ~nan
            data = np.where(nan, 0.0, data)
        infinite = np.flatnonzero(np.isinf(data))
        if len(infinite):
            raise BadValueError(
                f"column {name!r}, row {infinite[0]:,}: found {data[infinite[0]]}; expected a finite number. Replace or drop it."
            )
    return Values(family=natural, data=data, valid=valid)


def _to_plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers or floats that hold the values exactly."""
    kind = column.type
    if pa.types.is_decimal(kind):  # as integers of its last place
        try:
            wide = column.cast(pa.decimal128(38, kind.scale))
            return pa.chunked_array([_with_scale(chunk, 0).cast(pa.int64()) for chunk in wide.chunks], pa.int64())
        except pa.ArrowInvalid:  # more digits than int64 holds
            return column.cast(pa.float64())
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return column.cast(pa.int32()).cast(pa.int64())
    return column.cast(pa.int64(), safe=pa.types.is_integer(kind))


def _read_words(column: pa.ChunkedArray) -> Values:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    if pa.types.is_time(column.type) or pa.types.is_duration(column.type):  # Arrow does not read their strings
        column = column.cast(_count_type(column.type))
    coded = column.dictionary_encode().unify_dictionaries()
    coded = coded.combine_chunks() if coded.num_chunks != 1 else coded.chunk(0)
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.chunk(0) if coded.num_chunks else pa.array([], coded.type)
    indices = coded.indices
    valid = indices.is_valid().to_numpy(zero_copy_only=False)
    data = indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return Values(family="text", data=data, valid=valid, words=coded.dictionary.cast(pa.string()))


def _count_type(kind: pa.DataType) -> pa.DataType:
    """The integers that hold a time or a duration."""
    return pa.int32() if pa.types.is_time32(kind) else pa.int64()


def to_column(data: Array, valid: Array, kind: pa.DataType) -> pa.Array:
    """Numbers or times, as `read_values` has them, as a column of this type."""
    mask = None if valid.all() else ~valid
    if pa.types.is_floating(kind):
        return pa.array(data.astype(np.float64), mask=mask).cast(kind)
    if pa.types.is_decimal(kind):
        if data.dtype.kind == "f":
            return pa.array(np.round(data, kind.scale), mask=mask).cast(kind, safe=False)
        return _with_scale(pa.array(data, mask=mask).cast(pa.decimal128(38, 0)), kind.scale).cast(kind)
    numbers = np.rint(data).astype(np.int64) if data.dtype.kind == "f" else data.astype(np.int64)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.array(numbers.astype(np.int32), mask=mask).cast(kind)
    if pa.types.is_integer(kind):
        bounds = np.iinfo(kind.to_pandas_dtype())
        numbers = np.clip(numbers, max(bounds.min, np.iinfo(np.int64).min), min(bounds.max, np.iinfo(np.int64).max))
    return pa.array(numbers, mask=mask).cast(kind)


def _with_scale(column: pa.Array, scale: int) -> pa.Array:
    """The same digits with the point elsewhere: 1999 with scale 2 is 19.99."""
    column = pa.concat_arrays([column]) if column.offset else column
    return pa.Array.from_buffers(pa.decimal128(38, scale), len(column), column.buffers(), offset=column.offset)


def to_words(words: list[str | None], kind: pa.DataType) -> pa.Array:
    """Strings as a column of this type: what `read_values` made strings of comes back."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.array(words, pa.string())
    if pa.types.is_time(inner) or pa.types.is_duration(inner):
        text = text.cast(_count_type(inner))
    plain = pa.nulls(len(words), inner) if pa.types.is_null(inner) else text if inner == pa.string() else text.cast(inner)
    return plain.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else plain
