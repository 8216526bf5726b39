"""Places: where each row goes. A counting sort without a sort: rows count themselves in, one pass, in their order.

    context of each row ──► lengths of the sequences ──► where each begins ──► place of each row ──► values at their places

The numbers of the contexts and the places share one array of 4 bytes a row; nothing else is as long as the table.
Kernels move bytes of 1, 2, 4 or 8 and so are compiled at most four times, whatever the types of the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._kernels import kernel, prefetch
from stoker._types import Array
from stoker.encode.sequences.columns import BLOCK_ROWS, TableColumn, number_blocks, number_type, plain_gaps, plain_values
from stoker.errors import BadValueError, OptionError
from stoker.sampling.permutation import mix
from stoker.store.interop import from_numpy, to_numpy

MAX_NARROW = 2**31 - 1
_NO_STARTS = np.empty(0, dtype=np.int32)


@kernel
def _count(contexts: Array, limit: int, lengths: Array) -> None:
    for i in range(len(contexts)):
        context = contexts[i]
        if context >= 0 and lengths[context] < limit:
            lengths[context] += 1


@kernel
def _place(contexts: Array, limit: int, starts: Array, steps: int, filled: Array, places: Array) -> None:
    """`places` may be `contexts` itself. Sequences begin at `starts`, or, where that is empty, every `steps`."""
    even = len(starts) == 0
    for i in range(len(contexts)):
        context = np.int64(contexts[i])
        place = np.int64(-1)
        if context >= 0 and filled[context] < limit:
            place = (context * steps if even else np.int64(starts[context])) + filled[context]
            filled[context] += 1
        places[i] = place


@kernel
def _put(places: Array, values: Array, target: Array) -> None:
    for i in range(len(places)):
        if places[i] >= 0:
            target[places[i]] = values[i]


def count_rows(contexts: Array, num_contexts: int, limit: int) -> Array:
    """How many rows each context has, at most `limit`: int32."""
    lengths = np.zeros(num_contexts, dtype=np.int32)
    _count(contexts, min(limit, MAX_NARROW), lengths)
    return lengths


def start_steps(lengths: Array, end_steps: int) -> Array:
    """Where each sequence begins if all are end to end, each with `end_steps` behind it; and the end of the last."""
    num_cells = int(lengths.sum(dtype=np.int64)) + end_steps * len(lengths)
    starts = np.zeros(len(lengths) + 1, dtype=np.int32 if num_cells <= MAX_NARROW else np.int64)
    np.add(lengths, end_steps, out=starts[1:])
    np.cumsum(starts, out=starts)
    return starts


def place_rows(contexts: Array, lengths: Array, limit: int, *, starts: Array | None, steps: int, num_cells: int) -> Array:
    """The place of each row. The array of contexts is used up: it becomes the places, unless they do not fit into it."""
    places = contexts if num_cells <= MAX_NARROW else np.empty(len(contexts), dtype=np.int64)
    lengths[:] = 0  # and counted once more on the way: then they need no second array
    begins = _NO_STARTS if starts is None else starts
    _place(contexts, min(limit, MAX_NARROW), begins, steps, lengths, places)
    return places


def put_values(places: Array, values: Array, target: Array) -> None:
    """Write values to their places in a flat target of the same type; bytes are moved as they are."""
    word = np.dtype(f"u{target.dtype.itemsize}")
    plain = values.view(word)
    plain.flags.writeable = False  # kernels are compiled for each kind of array: this makes it one
    _put(places, plain, target.view(word))


@kernel
def _positions(lengths: Array, starts: Array, steps: int, divisor: int, forward: Array, length: Array, backward: Array) -> None:
    even = len(starts) == 0
    for i in range(len(lengths)):
        count = np.int64(lengths[i])
        first = i * steps if even else np.int64(starts[i])
        for step in range(count + 1):
            back = count - step
            forward[first + step] = step if divisor == 0 else step // divisor % 10
            length[first + step] = count if divisor == 0 else count // divisor % 10
            backward[first + step] = back if divisor == 0 else back // divisor % 10


def put_positions(lengths: Array, *, starts: Array | None, steps: int, divisor: int, targets: tuple[Array, Array, Array]) -> None:
    """Number the steps of each sequence and of the one behind it: from its begin, its length, and from its end.

    With a divisor of 1, 10, 100, … it is that decimal digit of each number; with 0 the number itself.
    """
    begins = _NO_STARTS if starts is None else starts
    _positions(lengths, begins, steps, divisor, *targets)


# Positions: the columns that tell a model of mostlyai-engine where in a sequence it is, and how that model's sequences end.
#
# Its sequences have one step more than rows, of zeros: there the model learns to end. Each step has three numbers: its own from
# the begin, the length, and its own from the end; from a `max_length` of 100 on they are split into decimal digits.

PREFIX = "tgt:/__"
DIGITS_FROM = 100
"""The `max_length` from which on numbers are split into digits."""

KINDS = ("sidx", "slen", "ridx")
"""From the begin, length, from the end."""


def position_names(max_length: int) -> list[tuple[tuple[str, str, str], int]]:
    """Names of the columns, three at a time, and what to divide by to get their digit (0: no digits, the number itself)."""
    if max_length < DIGITS_FROM:
        return [(_names("cat"), 0)]
    return [(_names(f"E{place}"), 10**place) for place in reversed(range(len(str(max_length))))]


def _names(suffix: str) -> tuple[str, str, str]:
    forward, length, backward = (f"{PREFIX}{kind}_{suffix}" for kind in KINDS)
    return forward, length, backward


# Numbering: int64 keys become 0, 1, 2, … as they first appear, or as they are listed.
#
# Keys that lie close together have a plain table; others a hash table that is asked for 32 keys at a time, so that memory answers
# all of them at once. No key is compared with more than a few others, and nothing is sorted (benchmarks/bench_sequences.py).

_FIRST_ROOM = 1 << 12
_AHEAD = 32


@kernel
def _number_close(keys: Array, low: int, high: int, table: Array, known: Array, count: int, frozen: bool, numbers: Array) -> Any:
    """Number keys by a table of all keys from `low` to `high`. Returns how many are known."""
    for i in range(len(keys)):
        key = keys[i]
        number = np.int32(-1)
        if low <= key <= high:
            number = table[key - low]
            if number < 0 and not frozen:
                number = np.int32(count)
                table[key - low] = number
                known[count] = key
                count += 1
        numbers[i] = number
    return count


@kernel
def _number_far(keys: Array, first: int, table: Array, known: Array, count: int, frozen: bool, numbers: Array) -> Any:
    """Number keys from the one at `first` on by a hash table. Returns how many are known, and where there was no more room."""
    mask = len(table) - 1
    asked = np.empty(_AHEAD, dtype=np.int64)
    while first < len(keys):
        num_asked = min(_AHEAD, len(keys) - first)
        for j in range(num_asked):
            asked[j] = np.int64(mix(np.uint64(keys[first + j])) & np.uint64(mask))
            prefetch(table, asked[j] * 4)
        for j in range(num_asked):
            seen = np.int64(table[asked[j]])
            prefetch(known, (seen if seen > 0 else 0) * 8)
        for j in range(num_asked):
            key, slot = keys[first + j], asked[j]
            number = table[slot]
            while number >= 0 and known[number] != key:
                slot = (slot + 1) & mask
                number = table[slot]
            if number < 0 and not frozen:
                if count == len(known):
                    return count, first + j
                number = np.int32(count)
                table[slot] = number
                known[count] = key
                count += 1
            numbers[first + j] = number
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
    """Numbers keys as they come: at most `num_keys`, from `low` to `high`."""

    def __init__(self, low: int, high: int, num_keys: int) -> None:
        self._low, self._high = low, high
        width = high - low + 1
        self._close = width <= max(num_keys, _FIRST_ROOM)
        self._known = np.empty(min(width, num_keys) if self._close else _FIRST_ROOM, dtype=np.int64)
        self._table = np.full(width if self._close else 2 * _FIRST_ROOM, -1, dtype=np.int32)
        self._count = 0

    def add(self, keys: Array, numbers: Array, *, frozen: bool = False) -> None:
        """Write the number of each key to `numbers`; with `frozen`, keys that are not known yet are -1."""
        keys = keys.view()
        keys.flags.writeable = False  # kernels are compiled for each kind of array: this makes it one
        if self._close:
            self._count = _number_close(keys, self._low, self._high, self._table, self._known, self._count, frozen, numbers)
            return
        first = 0
        while first < len(keys):
            self._count, first = _number_far(keys, first, self._table, self._known, self._count, frozen, numbers)
            if first < len(keys):
                self._grow()

    def _grow(self) -> None:
        """Four times the room. The table is at most half full, so that a key is found within a step or two."""
        known = np.empty(4 * len(self._known), dtype=np.int64)
        known[: self._count] = self._known
        self._known = known
        del self._table  # before the next: both together would be the largest thing in memory
        self._table = np.full(2 * len(known), -1, dtype=np.int32)
        _fill_far(known, self._count, self._table)

    @property
    def keys(self) -> Array:
        """All keys, by their numbers. Nothing can be added once they were asked for."""
        return self._known if self._count == len(self._known) else self._known[: self._count].copy()


# Contexts: the keys of a table, numbered by first appearance or as they are listed, and the number of each row's.
#
# Here are keys that are numbers: whole ones, times and floats. Texts and categories are in `texts`.

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
        rows, keys = number_texts(column, listed, keeps_missing)
    else:
        rows, keys = _number_numbers(column, listed, keeps_missing)
    num_left_out = int((rows == NO_PLACE).sum()) if listed is not None else 0
    if listed is None and keeps_missing:
        keys = _with_missing(rows, keys)
    return Contexts(rows=rows, num_contexts=len(keys), keys=keys, num_left_out=num_left_out)


def is_text(column: TableColumn) -> bool:
    """Whether keys are texts, bytes or categories; raises `BadValueError` for what can be no key."""
    if isinstance(column.kind, np.dtype):
        return False
    import pyarrow as pa

    kind = column.kind
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(value) or pa.types.is_decimal(value) or pa.types.is_interval(value):
        row, found = column.first_value()
        raise column.bad(row, found, f"and its type is {kind}, which cannot be a key. Make the key whole numbers or texts")
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind))


def missing_key(column: TableColumn, row: int) -> BadValueError:
    """The error for a row without a key."""
    return BadValueError(
        f"the key {column.name!r} is missing in row {row + 1:,}. Every row needs a key: fill it, or leave the row out."
    )


def refuse_repeats(listed: TableColumn, numbers: Array) -> None:
    """Numbers of distinct keys rise one by one."""
    repeats = numbers != np.arange(len(numbers))
    if repeats.any():
        row = int(repeats.argmax())
        raise listed.bad(row, listed.value(row), f"as in row {int(numbers[row]) + 1:,}. List each context once")


def _number_numbers(column: TableColumn, listed: TableColumn | None, keeps_missing: bool) -> tuple[Array, Any]:
    # brings the compiler, which takes much memory

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


# Texts as keys: Arrow numbers them, by first appearance or by their place in a list; of categories only the distinct ones.


def number_texts(column: TableColumn, listed: TableColumn | None, keeps_missing: bool) -> tuple[Array, Any]:
    """The number of each row's key, `NO_PLACE` where it has none or is not listed; and the keys by their numbers."""
    keys = _simple(pa.chunked_array(column.parts, type=column.kind))
    if keys.null_count and not keeps_missing:
        raise missing_key(column, _first_null(keys))
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
    """Arrow cannot number texts that are stored as views."""
    if pa.types.is_string_view(keys.type):
        return keys.cast(pa.large_string())
    return keys.cast(pa.large_binary()) if pa.types.is_binary_view(keys.type) else keys


def _first_null(keys: pa.ChunkedArray) -> int:
    return int(to_numpy(pc.is_null(keys).combine_chunks()).argmax())


def _numbers(found: pa.Array) -> Array:
    return to_numpy(found.fill_null(NO_PLACE) if found.null_count else found)


def _number_categories(
    column: TableColumn, keys: pa.ChunkedArray, wanted: pa.Array | None, keeps_missing: bool
) -> tuple[Array, Any]:
    """By way of the distinct texts: two categories of one text are one key, and a category that no row has is none."""
    keys = keys.unify_dictionaries()
    categories = keys.chunk(0).dictionary if keys.num_chunks else pa.array([], keys.type.value_type)
    encoded = categories.dictionary_encode()
    table = np.full(len(categories) + 1, NO_PLACE, dtype=np.int32)  # the last is for rows without a code
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
    """Number the distinct texts anew as they first appear in the rows."""
    # brings the compiler, which takes much memory

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
    """Categories may be numbers: those are NumPy's, as everywhere."""
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


# Listed contexts found among distinct keys, as those of a store are: by sorting, without kernels.
#
# A pack of bounded memory ends here, and the compiler of kernels alone would take 90 MB. Law: the same numbers, keys and errors
# as
# `number_contexts`.


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
    """Equal keys stand side by side; the first of them is that of the first row."""
    begins = np.ones(len(ordered), dtype=bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    firsts = np.empty(len(ordered), dtype=np.int64)
    firsts[order] = order[begins][np.cumsum(begins) - 1]
    refuse_repeats(listed, firsts)
