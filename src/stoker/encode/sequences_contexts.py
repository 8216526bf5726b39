"""Contexts: the keys of a table numbered, by first appearance or as they are listed, and the number of each row's.

Whole numbers, times and floats go through a table of their own: a plain one where they lie close together, else a hash table
that is asked for 32 rows at a time, so that memory answers all of them at once. Texts and categories are numbered by Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.sequences_columns import TableColumn
from stoker.encode.sequences_numbers import BLOCK_ROWS, number_blocks, number_type, plain_values
from stoker.encode.sequences_places import NO_PLACE
from stoker.errors import BadValue, OptionError
from stoker.kernel import kernel
from stoker.memory import prefetch
from stoker.order.keys import mix

Array = npt.NDArray[Any]

_FIRST_CONTEXTS = 1 << 12
_AHEAD = 32


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The contexts of a table."""

    rows: Array
    """The number of each row's context, int32; `NO_PLACE` where it has none."""
    keys: Any
    """The key of each context: a NumPy array, or an Arrow array of texts."""
    num_left_out: int
    """Rows whose key is not listed."""

    @property
    def num_contexts(self) -> int:
        """Contexts, also those without rows."""
        return len(self.keys)


@kernel
def _number_close(keys: Array, low: int, high: int, table: Array, known: Array, count: int, frozen: bool, rows: Array) -> Any:
    """Number keys by a table of all keys from `low` to `high`. Returns the count of contexts."""
    for i in range(len(keys)):
        key = keys[i]
        context = np.int32(-1)
        if low <= key <= high:
            context = table[key - low]
            if context < 0 and not frozen:
                context = np.int32(count)
                table[key - low] = context
                known[count] = key
                count += 1
        rows[i] = context
    return count


@kernel
def _number_far(keys: Array, first: int, table: Array, known: Array, count: int, frozen: bool, rows: Array) -> Any:
    """Number keys from row `first` on by a hash table. Returns the count of contexts, and the row where it got full."""
    mask = len(table) - 1
    asked = np.empty(_AHEAD, dtype=np.int64)
    while first < len(keys):
        num_asked = min(_AHEAD, len(keys) - first)
        for j in range(num_asked):
            asked[j] = np.int64(mix(np.uint64(keys[first + j])) & np.uint64(mask))
            prefetch(table, asked[j] * 4)
        for j in range(num_asked):
            prefetch(known, max(np.int64(table[asked[j]]), 0) * 8)
        for j in range(num_asked):
            key, slot = keys[first + j], asked[j]
            context = table[slot]
            while context >= 0 and known[context] != key:
                slot = (slot + 1) & mask
                context = table[slot]
            if context < 0 and not frozen:
                if count == len(known):
                    return count, first + j
                context = np.int32(count)
                table[slot] = context
                known[count] = key
                count += 1
            rows[first + j] = context
        first += num_asked
    return count, first


@kernel
def _fill_far(known: Array, count: int, table: Array) -> None:
    mask = len(table) - 1
    for i in range(count):
        slot = np.int64(mix(np.uint64(known[i])) & np.uint64(mask))
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = i


class Numbering:
    """Numbers int64 keys as they come. `span` is the least and the largest key there will be."""

    def __init__(self, span: tuple[int, int], num_rows: int) -> None:
        self._low, self._high = span
        width = self._high - self._low + 1
        self._close = width <= max(2 * num_rows, _FIRST_CONTEXTS)
        self._known = np.empty(min(width, num_rows) if self._close else _FIRST_CONTEXTS, dtype=np.int64)
        self._table = np.full(max(width, 1) if self._close else 2 * _FIRST_CONTEXTS, -1, dtype=np.int32)
        self._count = 0

    def add(self, keys: Array, rows: Array, *, frozen: bool = False) -> None:
        """Write the number of each key to `rows`; with `frozen`, unknown keys are -1 instead of new contexts."""
        keys = keys.view()
        keys.flags.writeable = False  # kernels are compiled for each kind of array: this makes it one
        if self._close:
            self._count = _number_close(keys, self._low, self._high, self._table, self._known, self._count, frozen, rows)
            return
        first = 0
        while first < len(keys):
            self._count, first = _number_far(keys, first, self._table, self._known, self._count, frozen, rows)
            if first < len(keys):
                self._grow()

    def _grow(self) -> None:
        """Four times the room. The table is at most half full, so that a key is found within a step or two."""
        known = np.empty(4 * len(self._known), dtype=np.int64)
        known[: self._count] = self._known[: self._count]
        self._known = known
        del self._table
        self._table = np.full(2 * len(known), -1, dtype=np.int32)
        _fill_far(known, self._count, self._table)

    @property
    def keys(self) -> Array:
        """All keys by their numbers."""
        return self._known[: self._count].copy()


def number_contexts(column: TableColumn, *, listed: TableColumn | None, keeps_missing: bool) -> Contexts:
    """Number the keys of all rows.

    `listed` are the contexts to use, in their order; rows of other keys are left out. A missing key is an error, or, with
    `keeps_missing`, all rows without a key are one context that has no rows, numbered where it first appears.
    """
    numbered = _number_texts if _is_text(column) else _number_numbers
    rows, keys = numbered(column, listed, keeps_missing)
    left_out = int((rows == NO_PLACE).sum()) if listed is not None else 0
    if listed is None and keeps_missing:
        keys = _with_missing(rows, keys)
    return Contexts(rows=rows, keys=keys, num_left_out=left_out)


def _is_text(column: TableColumn) -> bool:
    if column.is_numpy:
        return False
    import pyarrow as pa

    kind: Any = column.kind
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind):
        row, value = column.first_value()
        raise column.bad(row, value, f"and its type is {kind}, which cannot be a key. Make the key whole numbers or texts")
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind))


def _number_numbers(column: TableColumn, listed: TableColumn | None, keeps_missing: bool) -> tuple[Array, Array]:
    dtype = number_type(column)
    rows = np.empty(column.num_rows, dtype=np.int32)
    wanted = None if listed is None else _listed_numbers(column, listed, dtype)
    span = _span(_words(column, keeps_missing)) if wanted is None else _span(iter([(0, wanted, None)]))
    numbering = Numbering(span, max(len(rows), 0 if wanted is None else len(wanted)))
    if wanted is not None and listed is not None:
        numbers = np.empty(len(wanted), dtype=np.int32)
        numbering.add(wanted, numbers)
        _refuse_repeats(listed, numbers)
    for start, words, gaps in _words(column, keeps_missing):
        stop = start + len(words)
        numbering.add(words, rows[start:stop], frozen=wanted is not None)
        if gaps is not None:
            rows[start:stop][gaps] = NO_PLACE
    return rows, _keys(numbering.keys, column, dtype)


def _words(column: TableColumn, keeps_missing: bool) -> Iterator[tuple[int, Array, Array | None]]:
    """Keys as int64 that are equal where the keys are, and which of them are missing."""
    start = 0
    for part in column.parts:
        size = len(part) if _is_words(part) else BLOCK_ROWS
        for begin in range(0, len(part), size):
            values, gaps = plain_values(part[begin : begin + size])
            if values.dtype.kind == "f":
                nan = np.isnan(values)
                gaps = nan if gaps is None else gaps | nan
                gaps = gaps if gaps.any() else None
            if gaps is not None:
                if not keeps_missing:
                    raise missing_key(column, start + begin + int(gaps.argmax()))
                values = values.copy()
                values[gaps] = values[~gaps][0] if not gaps.all() else 0
            yield start + begin, as_words(values), gaps
        start += len(part)


def _is_words(part: Any) -> bool:
    """Whether a part can be used where it lies, all at once."""
    if not isinstance(part, np.ndarray):
        return not part.null_count and str(part.type) in ("int64", "uint64")
    return part.dtype.kind in "iu" and part.dtype.itemsize == 8 and part.flags.c_contiguous and part.dtype.isnative


def as_words(values: Array) -> Array:
    """Numbers as int64: floats by their bits (the two zeros are one), uint64 by its bits, all others by value."""
    if values.dtype.kind == "f":
        values = values.astype(np.float64) + 0.0
    words = np.ascontiguousarray(values)
    return words.view(np.int64) if words.dtype.itemsize == 8 else words.astype(np.int64)


def missing_key(column: TableColumn, row: int) -> BadValue:
    """The error for a row without a key."""
    return BadValue(f"the key {column.name!r} is missing in row {row + 1:,}. Every row needs a key: fill it, or leave the row out.")


def _span(blocks: Iterator[tuple[int, Array, Any]]) -> tuple[int, int]:
    low, high = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for _, words, _ in blocks:
        if len(words):
            low, high = min(low, int(words.min())), max(high, int(words.max()))
    return (low, high) if low <= high else (0, 0)


def _listed_numbers(column: TableColumn, listed: TableColumn, dtype: np.dtype[Any]) -> Array:
    """The listed contexts as the words of the key's column."""
    if _is_text(listed):
        row, value = listed.first_value()
        raise listed.bad(row, value, f"but the key {column.name!r} is {dtype}. List keys of the same type")
    if _unit(listed) != _unit(column):
        raise OptionError(f"contexts are {listed.kind}, but the key {column.name!r} is {column.kind}. Give both the same type.")
    number_type(listed)
    blocks = [as_words(values) for _, values in number_blocks(listed, dtype)]
    words = np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)
    missing = np.isnan(words.view(np.float64)) if dtype.kind == "f" else words == np.iinfo(np.int64).min
    if missing.any() and (dtype.kind == "f" or _unit(column) is not None):
        raise _missing_context(int(missing.argmax()))
    return words


def _missing_context(row: int) -> BadValue:
    return BadValue(f"contexts has no key in row {row + 1:,}. Every context needs a key.")


def _unit(column: TableColumn) -> str | None:
    """The unit of times, None for numbers."""
    if isinstance(column.kind, np.dtype):
        return np.datetime_data(column.kind)[0] if column.kind.kind in "mM" else None
    return getattr(column.kind, "unit", None)


def _refuse_repeats(listed: TableColumn, numbers: Array) -> None:
    """Numbers of distinct keys rise one by one."""
    repeats = numbers != np.arange(len(numbers))
    if repeats.any():
        row = int(repeats.argmax())
        value = next(value for number, value in enumerate(_values(listed)) if number == row)
        raise listed.bad(row, value, f"as in row {int(numbers[row]) + 1:,}. List each context once")


def _values(column: TableColumn) -> Iterator[object]:
    for part in column.parts:
        for one in part:
            yield one.as_py() if hasattr(one, "as_py") else one.item() if hasattr(one, "item") else one


def _keys(words: Array, column: TableColumn, dtype: np.dtype[Any]) -> Array:
    """Words as the keys they stand for."""
    if dtype.kind == "f":
        return words.view(np.float64).astype(dtype)
    if isinstance(column.kind, np.dtype) and column.kind.kind in "mM":
        return words.view(column.kind.newbyteorder("="))
    return words.view(dtype) if dtype.itemsize == 8 else words.astype(dtype)


def _number_texts(column: TableColumn, listed: TableColumn | None, keeps_missing: bool) -> tuple[Array, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    from stoker.store.sharing import to_numpy

    keys = pa.chunked_array(column.parts, type=column.kind)
    if keys.null_count and not keeps_missing:
        raise missing_key(column, int(to_numpy(pc.is_null(keys).combine_chunks()).argmax()))
    is_coded = pa.types.is_dictionary(column.kind)
    texts = column.kind.value_type if is_coded else column.kind
    wanted = None if listed is None else _listed_texts(column, listed, texts)
    if is_coded:
        return _number_codes(column, keys, wanted, keeps_missing)
    rows = np.empty(column.num_rows, dtype=np.int32)
    if wanted is None:
        encoded = keys.dictionary_encode()
        found = [chunk.indices for chunk in encoded.chunks]
        distinct = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], texts)
    else:
        found, distinct = pc.index_in(keys, value_set=wanted).chunks, wanted
    start = 0
    for chunk in found:
        rows[start : start + len(chunk)] = to_numpy(chunk.fill_null(NO_PLACE) if chunk.null_count else chunk)
        start += len(chunk)
    return rows, _plain_keys(distinct)


def _number_codes(column: TableColumn, keys: Any, wanted: Any, keeps_missing: bool) -> tuple[Array, Any]:
    """Categories: their codes are numbered, by way of the distinct texts they stand for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from stoker.store.sharing import from_numpy, to_numpy

    keys = keys.unify_dictionaries()
    categories = keys.chunk(0).dictionary if keys.num_chunks else pa.array([], column.kind.value_type)  # type: ignore[union-attr]
    encoded = categories.dictionary_encode()
    distinct = encoded.dictionary if wanted is None else wanted
    found = encoded.indices if wanted is None else pc.index_in(categories, value_set=wanted)
    table = np.full(len(categories) + 1, NO_PLACE, dtype=np.int32)  # the last is for codes that are missing
    table[:-1] = to_numpy(found.fill_null(NO_PLACE) if found.null_count else found)
    rows = np.empty(column.num_rows, dtype=np.int32)
    start = 0
    for chunk in keys.chunks:
        for begin in range(0, len(chunk), BLOCK_ROWS):
            codes, gaps = plain_values(chunk.indices[begin : begin + BLOCK_ROWS])
            if gaps is not None:
                codes = np.where(gaps, len(categories), codes)
            rows[start : start + len(codes)] = table[codes]
            start += len(codes)
    if wanted is not None:
        return rows, _plain_keys(distinct)
    return _by_appearance(column, rows, keeps_missing, lambda order: _plain_keys(distinct.take(from_numpy(order))), len(distinct))


def _by_appearance(column: TableColumn, rows: Array, keeps_missing: bool, keys: Any, num_keys: int) -> tuple[Array, Any]:
    """Number codes anew, as they appear; a category without a text is a missing key."""
    gaps = rows == NO_PLACE
    if gaps.any() and not keeps_missing:
        raise missing_key(column, int(gaps.argmax()))
    order = Numbering((0, max(num_keys - 1, 0)), max(len(rows), num_keys))
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        order.add(block.astype(np.int64), block)
    return rows, keys(order.keys)


def _listed_texts(column: TableColumn, listed: TableColumn, texts: Any) -> Any:
    """The listed contexts as texts of the key's type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from stoker.store.sharing import to_numpy

    if listed.is_numpy or not _is_text(listed):
        row, value = listed.first_value()
        raise listed.bad(row, value, f"but the key {column.name!r} is {texts}. List keys of the same type")
    given = pa.chunked_array(listed.parts, type=listed.kind)
    if pa.types.is_dictionary(given.type):
        given = given.cast(given.type.value_type)
    wanted = given.cast(texts).combine_chunks()
    if wanted.null_count:
        raise _missing_context(int(to_numpy(pc.is_null(wanted)).argmax()))
    encoded = wanted.dictionary_encode()
    _refuse_repeats(listed, to_numpy(encoded.indices))
    return wanted


def _plain_keys(keys: Any) -> Any:
    """Numbers as NumPy, texts as Arrow has them."""
    import pyarrow as pa

    from stoker.store.sharing import to_numpy

    kind = keys.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return to_numpy(keys) if is_number and not keys.null_count else keys


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
