"""Contexts: the keys of a table, numbered by first appearance or as they are listed, and the number of each row's context.

Keys are numbers (integers, times and floats, by their bits) or strings and categories, which Arrow numbers. `number_contexts` needs
kernels for numbers; `find_listed` does without, as numba alone would take 90 MB in a pack of bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._types import Array
from stoker.encode.sequences.columns import BLOCK_ROWS, TableColumn, number_blocks, number_type, plain_gaps, plain_values
from stoker.errors import BadValueError, OptionError
from stoker.store import from_numpy, to_numpy

NO_PLACE = -1
"""The context of a row that is left out."""


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The contexts of a table."""

    rows: Array
    """The number of each row's context, int32; `NO_PLACE` where it has none."""
    num_contexts: int
    """Including those without rows."""
    keys: Any
    """The key of each context: a NumPy array of numbers, or an Arrow array; None where they have none."""
    num_left_out: int
    """Rows whose key is not listed."""


def number_contexts(column: TableColumn, *, listed: TableColumn | None, keeps_missing: bool) -> Contexts:
    """Number the keys of all rows.

    `listed` are the contexts to use, in their order; rows of other keys are left out. A missing key is an error; with
    `keeps_missing`, all rows without a key form one context that has no rows, numbered by first appearance.
    """
    if is_text(column):
        rows, keys = number_texts(column, listed, keeps_missing)
    else:
        rows, keys = _number_numbers(column, listed, keeps_missing)
    num_left_out = int((rows == NO_PLACE).sum()) if listed is not None else 0
    if listed is None and keeps_missing:
        keys = _with_missing(rows, keys)
    return Contexts(rows=rows, num_contexts=len(keys), keys=keys, num_left_out=num_left_out)


def is_text(column: TableColumn) -> bool:
    """Whether keys are strings, bytes or categories; raises `BadValueError` for types that cannot be a key."""
    if isinstance(column.kind, np.dtype):
        return False
    kind = column.kind
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(value) or pa.types.is_decimal(value) or pa.types.is_interval(value):
        row, found = column.first_value()
        raise column.bad(row, found, f"and its type is {kind}, which cannot be a key. Make the key integers or strings")
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind))


def missing_key(column: TableColumn, row: int) -> BadValueError:
    """The error for a row without a key."""
    return BadValueError(
        f"the key {column.name!r} is missing in row {row + 1:,}. Every row needs a key: fill it, or remove the row."
    )


def refuse_repeats(listed: TableColumn, numbers: Array) -> None:
    """Raise an error for a context that is listed twice: the numbers of distinct keys are 0, 1, 2, …"""
    repeats = numbers != np.arange(len(numbers))
    if repeats.any():
        row = int(repeats.argmax())
        raise listed.bad(row, listed.value(row), f"as in row {int(numbers[row]) + 1:,}. List each context once")


# ---- keys that are numbers: as int64 words that are equal where the keys are ----


def _number_numbers(column: TableColumn, listed: TableColumn | None, keeps_missing: bool) -> tuple[Array, Any]:
    from stoker.encode.sequences.kernels import Numbering  # loads numba

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
    """Blocks of rows: the rows, the words of their keys without missing ones, and which keys are missing."""
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
    """Whether a part can be used as it is, all at once."""
    if not isinstance(part, np.ndarray):
        return not part.null_count and str(part.type) in ("int64", "uint64")
    return part.dtype.kind in "iu" and part.dtype.itemsize == 8 and part.dtype.isnative and part.flags.c_contiguous


def _as_words(values: Array) -> Array:
    """Numbers as int64: floats by their bits (0.0 and -0.0 are one), uint64 by its bits, all others by value."""
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
            raise BadValueError(f"{listed.name} has no key in row {start + int(gaps.argmax()) + 1:,}. Every context needs a key.")
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
        if pa.types.is_temporal(column.kind):
            narrow = column.kind.bit_width == 32
            return pa.array(words, pa.int64()).cast(pa.int32() if narrow else pa.int64()).view(column.kind)
    elif column.kind.kind in "mM":
        return words.view(column.kind.newbyteorder("="))
    return words.view(dtype) if dtype.itemsize == 8 else words.astype(dtype)


def _with_missing(rows: Array, keys: Any) -> Any:
    """Insert the context of all rows without a key before those that first appear after its first row."""
    gaps = rows == NO_PLACE
    if not gaps.any():
        return keys
    number = int(rows[: int(gaps.argmax())].max(initial=-1)) + 1
    rows[rows >= number] += 1
    given = keys if not isinstance(keys, np.ndarray) else pa.array(keys)
    return pa.concat_arrays([given[:number], pa.nulls(1, given.type), given[number:]])


# ---- keys that are strings or categories ----


def number_texts(column: TableColumn, listed: TableColumn | None, keeps_missing: bool) -> tuple[Array, Any]:
    """The number of each row's key, `NO_PLACE` where it has none or is not listed; and the keys by their numbers."""
    keys = _simple(pa.chunked_array(column.parts, type=column.kind))
    if keys.null_count and not keeps_missing:
        raise missing_key(column, int(to_numpy(pc.is_null(keys).combine_chunks()).argmax()))
    wanted = None if listed is None else _listed_texts(column, listed, keys.type)
    if pa.types.is_dictionary(keys.type):
        return _number_categories(column, keys, wanted, keeps_missing)
    if wanted is None:
        encoded = keys.dictionary_encode()
        found = [chunk.indices for chunk in encoded.chunks]
        distinct = encoded.chunk(0).dictionary.drop_null() if encoded.num_chunks else pa.array([], keys.type)
    else:
        found, distinct = pc.index_in(keys, value_set=wanted).chunks, wanted
    rows = np.empty(column.num_rows, dtype=np.int32)
    start = 0
    for chunk in found:
        rows[start : start + len(chunk)] = _numbers(chunk)
        start += len(chunk)
    return rows, distinct


def _simple(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow cannot dictionary-encode string views."""
    if pa.types.is_string_view(keys.type):
        return keys.cast(pa.large_string())
    return keys.cast(pa.large_binary()) if pa.types.is_binary_view(keys.type) else keys


def _numbers(found: pa.Array) -> Array:
    return to_numpy(found.fill_null(NO_PLACE) if found.null_count else found)


def _number_categories(
    column: TableColumn, keys: pa.ChunkedArray, wanted: pa.Array | None, keeps_missing: bool
) -> tuple[Array, Any]:
    """Through the distinct strings: two categories of one string are one key, and unused categories are none."""
    keys = keys.unify_dictionaries()
    categories = keys.chunk(0).dictionary if keys.num_chunks else pa.array([], keys.type.value_type)
    encoded = categories.dictionary_encode()
    table = np.full(len(categories) + 1, NO_PLACE, dtype=np.int32)  # the last entry is for rows without a code
    table[:-1] = _numbers(encoded.indices if wanted is None else pc.index_in(categories, value_set=wanted))
    if not keeps_missing and categories.null_count:
        _refuse_nameless(column, keys, categories)
    rows = np.empty(column.num_rows, dtype=np.int32)
    start = 0
    for chunk in keys.chunks:
        for begin in range(0, len(chunk), BLOCK_ROWS):
            codes, gaps = plain_values(chunk.indices[begin : begin + BLOCK_ROWS])
            block = rows[start : start + len(codes)]
            block[:] = table[codes if gaps is None else np.where(gaps, len(categories), codes)]
            start += len(codes)
    return rows, _plain(_by_appearance(rows, encoded.dictionary) if wanted is None else wanted)


def _by_appearance(rows: Array, distinct: pa.Array) -> pa.Array:
    """Number the distinct strings again in order of first appearance in the rows."""
    from stoker.encode.sequences.kernels import Numbering  # loads numba

    appearing = Numbering(0, max(len(distinct) - 1, 0), len(distinct))
    for begin in range(0, len(rows), BLOCK_ROWS):
        block = rows[begin : begin + BLOCK_ROWS]
        appearing.add(block.astype(np.int64), block)
    return distinct.take(from_numpy(appearing.keys))


def _refuse_nameless(column: TableColumn, keys: pa.ChunkedArray, categories: pa.Array) -> None:
    nameless = int(to_numpy(pc.is_null(categories)).argmax())
    start = 0
    for chunk in keys.chunks:
        same = to_numpy(pc.fill_null(pc.equal(chunk.indices, nameless), False))
        if same.any():
            raise missing_key(column, start + int(same.argmax()))
        start += len(chunk)


def _plain(keys: pa.Array) -> Any:
    """Categories that are numbers become a NumPy array, as other numbers do."""
    kind = keys.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return to_numpy(keys) if is_number and not keys.null_count else keys


def _listed_texts(column: TableColumn, listed: TableColumn, kind: pa.DataType) -> pa.Array:
    """The listed contexts in the type of the keys."""
    texts = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not listed.num_rows:
        return pa.array([], texts)
    refuse_gaps(listed)
    given = pa.chunked_array([pa.array(part) for part in listed.parts])
    if pa.types.is_dictionary(given.type):
        given = given.cast(given.type.value_type)
    try:
        wanted = given.cast(texts).combine_chunks() if _is_texts(given.type) == _is_texts(texts) else None
    except pa.ArrowException:
        wanted = None
    if wanted is None:
        row, value = listed.first_value()
        raise listed.bad(row, value, f"but the key {column.name!r} is {texts}. List keys of the same type")
    refuse_repeats(listed, to_numpy(wanted.dictionary_encode().indices))
    return wanted


def _is_texts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


# ---- listed contexts among distinct keys, such as those of a store: by sorting, without kernels ----


def find_listed(keys: TableColumn, listed: TableColumn) -> tuple[Array, Any]:
    """The number of each key in the list, `NO_PLACE` where it is not there; and the listed keys in the type of `keys`."""
    if is_text(keys):
        return number_texts(keys, listed, False)
    dtype = number_type(keys)
    wanted = listed_words(keys, listed, dtype)
    order = np.argsort(wanted, kind="stable")
    ordered = wanted[order]
    _refuse_equal(listed, ordered, order)
    rows = np.full(keys.num_rows, NO_PLACE, dtype=np.int32)
    for block, words, _ in key_words(keys, False) if len(wanted) else ():
        places = np.minimum(np.searchsorted(ordered, words), len(ordered) - 1)
        rows[block] = np.where(ordered[places] == words, order[places], NO_PLACE)
    return rows, as_keys(wanted, keys, dtype)


def _refuse_equal(listed: TableColumn, ordered: Array, order: Array) -> None:
    """Raise an error for a context that is listed twice; equal keys are neighbours, the first row of them first."""
    begins = np.ones(len(ordered), dtype=bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    firsts = np.empty(len(ordered), dtype=np.int64)
    firsts[order] = order[begins][np.cumsum(begins) - 1]
    refuse_repeats(listed, firsts)
