"""Contexts: the keys of a table, numbered by first appearance or as they are listed, and the number of each row's.

Here are keys that are numbers: whole ones, times and floats. Texts and categories are in `texts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.sequences.columns import TableColumn
from stoker.encode.sequences.numbers import BLOCK_ROWS, number_blocks, number_type, plain_gaps, plain_values
from stoker.errors import BadValue, OptionError

Array = npt.NDArray[Any]

NO_PLACE = -1
"""The context of a row that is left out, and the place of one that is cut off."""


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The contexts of a table."""

    rows: Array
    """The number of each row's context, int32; `NO_PLACE` where it has none."""
    num_contexts: int
    """Also those without rows."""
    keys: Any
    """The key of each context: a NumPy array of numbers, or an Arrow array; None where they have none."""
    num_left_out: int
    """Rows whose key is not listed."""


def number_contexts(column: TableColumn, *, listed: TableColumn | None, keeps_missing: bool) -> Contexts:
    """Number the keys of all rows.

    `listed` are the contexts to use, in their order; rows of other keys are left out. A missing key is an error, or, with
    `keeps_missing`, all rows without a key are one context that has no rows, numbered where it first appears.
    """
    if is_text(column):
        from stoker.encode.sequences.texts import number_texts

        rows, keys = number_texts(column, listed, keeps_missing)
    else:
        rows, keys = _number_numbers(column, listed, keeps_missing)
    num_left_out = int((rows == NO_PLACE).sum()) if listed is not None else 0
    if listed is None and keeps_missing:
        keys = _with_missing(rows, keys)
    return Contexts(rows=rows, num_contexts=len(keys), keys=keys, num_left_out=num_left_out)


def is_text(column: TableColumn) -> bool:
    """Whether keys are texts, bytes or categories; raises `BadValue` for what can be no key."""
    if isinstance(column.kind, np.dtype):
        return False
    import pyarrow as pa

    kind = column.kind
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(value) or pa.types.is_decimal(value) or pa.types.is_interval(value):
        row, found = column.first_value()
        raise column.bad(row, found, f"and its type is {kind}, which cannot be a key. Make the key whole numbers or texts")
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind))


def missing_key(column: TableColumn, row: int) -> BadValue:
    """The error for a row without a key."""
    return BadValue(f"the key {column.name!r} is missing in row {row + 1:,}. Every row needs a key: fill it, or leave the row out.")


def refuse_repeats(listed: TableColumn, numbers: Array) -> None:
    """Numbers of distinct keys rise one by one."""
    repeats = numbers != np.arange(len(numbers))
    if repeats.any():
        row = int(repeats.argmax())
        raise listed.bad(row, listed.value(row), f"as in row {int(numbers[row]) + 1:,}. List each context once")


def _number_numbers(column: TableColumn, listed: TableColumn | None, keeps_missing: bool) -> tuple[Array, Any]:
    from stoker.encode.sequences.numbering import Numbering  # brings the compiler, which takes much memory

    dtype = number_type(column)
    rows = np.empty(column.num_rows, dtype=np.int32)
    if listed is not None:
        wanted = listed_words(column, listed, dtype)
        numbering = Numbering(*_span([wanted]), len(wanted))
        numbers = np.empty(len(wanted), dtype=np.int32)
        numbering.add(wanted, numbers)
        refuse_repeats(listed, numbers)
    else:
        numbering = Numbering(*_span(words for _, words, _ in key_words(column, keeps_missing)), len(rows))
    for block, words, gaps in key_words(column, keeps_missing):
        numbers = rows[block] if gaps is None else np.empty(len(words), dtype=np.int32)
        numbering.add(words, numbers, frozen=listed is not None)
        if gaps is not None:
            rows[block] = NO_PLACE
            rows[block][~gaps] = numbers
    return rows, as_keys(numbering.keys, column, dtype)


def key_words(column: TableColumn, keeps_missing: bool) -> Iterator[tuple[slice, Array, Array | None]]:
    """Some rows, their keys as int64 that are equal where the keys are, and which rows are missing: those have no key there."""
    start = 0
    for part in column.parts:
        size = max(len(part), 1) if _is_plain(part) else BLOCK_ROWS
        for begin in range(start, start + len(part), size):
            values, gaps = plain_values(part[begin - start : begin - start + size])
            block = slice(begin, begin + len(values))
            if values.dtype.kind == "f":
                nan = np.isnan(values)
                gaps = nan if gaps is None else gaps | nan
            if gaps is None or not gaps.any():
                yield block, _as_words(values), None
            elif not keeps_missing:
                raise missing_key(column, begin + int(gaps.argmax()))
            else:
                yield block, _as_words(values[~gaps]), gaps
        start += len(part)


def _is_plain(part: Any) -> bool:
    """Whether a part can be used where it lies, all at once."""
    if not isinstance(part, np.ndarray):
        return not part.null_count and str(part.type) in ("int64", "uint64")
    return part.dtype.kind in "iu" and part.dtype.itemsize == 8 and part.dtype.isnative and part.flags.c_contiguous


def _as_words(values: Array) -> Array:
    """Numbers as int64: floats by their bits (the two zeros are one), uint64 by its bits, all others by value."""
    if values.dtype.kind == "f":
        values = values.astype(np.float64) + 0.0
    words = np.ascontiguousarray(values)
    return words.view(np.int64) if words.dtype.itemsize == 8 else words.astype(np.int64)


def _span(blocks: Any) -> tuple[int, int]:
    low, high = 2**63 - 1, -(2**63)
    for words in blocks:
        if len(words):
            low, high = min(low, int(words.min())), max(high, int(words.max()))
    return (low, high) if low <= high else (0, 0)


def listed_words(column: TableColumn, listed: TableColumn, dtype: np.dtype[Any]) -> Array:
    """The listed contexts as the words of the key's column."""
    if not listed.num_rows:
        return np.empty(0, dtype=np.int64)
    refuse_gaps(listed)
    if is_text(listed):
        row, value = listed.first_value()
        raise listed.bad(row, value, f"but the key {column.name!r} is {column.kind}. List keys of the same type")
    if _unit(listed) != _unit(column):
        raise OptionError(f"{listed.name} is {listed.kind}, but the key {column.name!r} is {column.kind}. Give both the same type.")
    return np.concatenate([_as_words(values) for _, values in number_blocks(listed, dtype)])


def refuse_gaps(listed: TableColumn) -> None:
    """Every listed context needs a key."""
    start = 0
    for part in listed.parts:
        gaps = plain_gaps(part)
        if gaps is not None:
            raise BadValue(f"{listed.name} has no key in row {start + int(gaps.argmax()) + 1:,}. Every context needs a key.")
        start += len(part)


def _unit(column: TableColumn) -> str | None:
    """The unit of times, None for numbers."""
    if isinstance(column.kind, np.dtype):
        return np.datetime_data(column.kind)[0] if column.kind.kind in "mM" else None
    unit: str | None = getattr(column.kind, "unit", None)
    return unit


def as_keys(words: Array, column: TableColumn, dtype: np.dtype[Any]) -> Any:
    """Words as the keys they stand for."""
    if dtype.kind == "f":
        return words.view(np.float64).astype(dtype)
    if not isinstance(column.kind, np.dtype):
        import pyarrow as pa

        if pa.types.is_temporal(column.kind):
            narrow = column.kind.bit_width == 32
            return pa.array(words, pa.int64()).cast(pa.int32() if narrow else pa.int64()).view(column.kind)
    elif column.kind.kind in "mM":
        return words.view(column.kind.newbyteorder("="))
    return words.view(dtype) if dtype.itemsize == 8 else words.astype(dtype)


def _with_missing(rows: Array, keys: Any) -> Any:
    """Make room for the context of all rows without a key, before those that first appear behind its first row."""
    import pyarrow as pa

    gaps = rows == NO_PLACE
    if not gaps.any():
        return keys
    number = int(rows[: int(gaps.argmax())].max(initial=-1)) + 1
    rows[rows >= number] += 1
    given = keys if not isinstance(keys, np.ndarray) else pa.array(keys)
    return pa.concat_arrays([given[:number], pa.nulls(1, given.type), given[number:]])
