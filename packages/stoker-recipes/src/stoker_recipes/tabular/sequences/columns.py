"""Columns of sequences: which of a table, their values as numbers, and their keys as contexts.

Numbers are read in blocks of the requested type: nothing is rounded, cut or wrapped silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.errors import BadValueError, OptionError
from stoker.extend import Array
from stoker.store import MISSING_TIME, from_numpy, to_numpy
from stoker_recipes.tabular.columns import TableColumn, is_time, plain_values, read_column


def read_table(table: Any, *, key: str, columns: Sequence[str] | None) -> tuple[TableColumn, list[TableColumn]]:
    """The key column and the columns of values, by default all others; all have the same number of rows."""
    names, take = _open(table)
    listed = ", ".join(map(str, names[:20])) or "none"
    if key not in names:
        raise OptionError(f"the table has no column {key!r} to group by; it has {listed}.")
    wanted = [name for name in names if name != key] if columns is None else _checked_names(columns)
    for name in wanted:
        if name not in names:
            raise OptionError(f"the table has no column {name!r}; it has {listed}.")
    if not wanted:
        raise OptionError(f"the table has no column to pad besides {key!r}. Add some, or name them with columns=.")
    keyed, *values = [read_column(name, take(name)) for name in [key, *wanted]]
    for column in values:
        if column.num_rows != keyed.num_rows:
            raise OptionError(
                f"column {column.name!r} has {column.num_rows:,} rows, but {key!r} has {keyed.num_rows:,}; "
                "expected the same number in all columns."
            )
    return keyed, values


def _checked_names(columns: Any) -> list[str]:
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise OptionError(f"columns is {columns!r}; expected a list of names.")
    if len(set(columns)) < len(columns):
        double = next(name for name in columns if columns.count(name) > 1)
        raise OptionError(f"columns names {double!r} twice.")
    return list(columns)


def _open(table: Any) -> tuple[list[str], Any]:
    """The names of a table, and a function from a name to its values."""
    if isinstance(table, Mapping):
        return list(table), table.__getitem__
    module = type(table).__module__.partition(".")[0]
    if type(table).__name__ == "LazyFrame":
        table = table.collect()
    columns = getattr(table, "columns" if module == "pandas" else "column_names", None)
    columns = getattr(table, "columns", None) if columns is None else columns
    if module not in ("pandas", "pyarrow", "polars") or columns is None:
        raise OptionError(
            f"the table is a {type(table).__name__}; expected a pandas or polars frame, an Arrow table, or a mapping of arrays. "
            "For files, use pack_sequences."
        )
    names = list(columns)
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise OptionError(f"the table has two columns named {double!r}. Rename one of them.")
    if module != "pandas":
        return names, table.column if module == "pyarrow" else table.get_column
    levels = [name for name in table.index.names if name is not None and name not in names]
    return [*names, *levels], lambda name: table[name] if name in names else table.index.get_level_values(name)


# ---- numbers: the values of a column, block by block, in the type of the tensors ----
# A missing value is NaN in floats and the smallest int64 in times; integers have no such value, so there it is an error. A column
# that has the right type already is one block, without a copy.

BLOCK_ROWS = 1 << 16
"""Rows that are converted at a time: they stay in the L2 cache until they are used."""


def number_type(column: TableColumn) -> np.dtype[Any]:
    """The type of a column's numbers; times are int64. Raises `BadValueError` for other types."""
    kind = column.kind
    if is_time(kind):
        return np.dtype(np.int64)
    if isinstance(kind, np.dtype):
        return kind.newbyteorder("=")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    row, value = column.first_value()
    if value is None:
        raise BadValueError(f"column {column.name!r} has no values (type {kind}); expected numbers. Leave it out of columns=.")
    raise column.bad(row, value, f"and its type is {kind}; expected a number. Encode it first")


def number_blocks(column: TableColumn, dtype: np.dtype[Any], *, truncate: bool = False) -> Iterator[tuple[int, Array]]:
    """The first row of each block and its values, contiguous and of `dtype`; `truncate` drops fractions."""
    start = 0
    for part in column.parts:
        size = max(len(part), 1) if _is_plain(part, dtype) else BLOCK_ROWS
        for begin in range(0, len(part), size):
            values, gaps = plain_values(part[begin : begin + size])
            if values.dtype != dtype or gaps is not None:
                values = _cast(column, start + begin, values, gaps, dtype, truncate)
            yield start + begin, np.ascontiguousarray(values)
        start += len(part)


def _is_plain(part: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a part can be used as it is."""
    if isinstance(part, np.ndarray):
        return part.dtype.kind in "biuf" and part.dtype == dtype and part.flags.c_contiguous and part.flags.aligned
    return not part.null_count and not pa.types.is_boolean(part.type)


def _cast(column: TableColumn, row: int, values: Array, gaps: Array | None, dtype: np.dtype[Any], truncate: bool) -> Array:
    """A copy in another type, each value checked except missing ones. `row` is that of the first value."""
    if gaps is not None and not is_time(column.kind) and dtype.kind != "f":
        raise column.bad(row + int(gaps.argmax()), None, f"which {dtype} cannot hold. Fill the gaps, or pass dtype='float64'")
    with np.errstate(all="ignore"):
        result = values.astype(dtype)
        # NumPy calls the cast from 64-bit integers to float64 safe, which it is not.
        if values.dtype != dtype and (values.dtype.itemsize == 8 or not np.can_cast(values.dtype, dtype, casting="safe")):
            bad = _differs(values, result, truncate)
            if gaps is not None:
                bad &= ~gaps
            if bad.any():
                i = int(bad.argmax())
                raise column.bad(row + i, values[i].item(), f"which {dtype} cannot hold. Choose another dtype, or fix the row")
    if gaps is not None:
        result[gaps] = np.nan if dtype.kind == "f" else MISSING_TIME
    return result


def _differs(values: Array, result: Array, truncate: bool) -> Array:
    """Which numbers differ after a cast; floats may round to narrower floats, but not overflow."""
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
    """Which float64 fit an integer type; the cast of others depends on the processor."""
    bounds = np.iinfo(dtype)
    return np.asarray((whole >= float(bounds.min)) & (whole < float(bounds.max) + (0.0 if bounds.bits > 53 else 1.0)))


# ---- contexts: keys numbered by first appearance or as they are listed, and the number of each row's context ----
# Keys are numbers (integers, times and floats, by their bits) or strings and categories, which Arrow numbers. `number_keys` needs
# kernels for numbers; `find_listed` does without, as numba alone would take 90 MB in a pack of bounded memory.

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
    """The key of each context: a NumPy array of numbers, or an Arrow array."""
    num_left_out: int
    """Rows whose key is not listed."""


def number_keys(column: TableColumn, *, listed: TableColumn | None, keeps_missing: bool) -> Contexts:
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
        row, first = column.first_value()
        raise column.bad(row, first, f"and its type is {kind}, which cannot be a key. Make the key integers or strings")
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
    from stoker_recipes.tabular.sequences.kernels import Numbering  # loads numba

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
        size = max(len(part), 1) if _are_words(part) else BLOCK_ROWS
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


def _are_words(part: Any) -> bool:
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
    """Every listed context needs a key; NaN and NaT are missing too."""
    start = 0
    for part in listed.parts:
        if not isinstance(part, np.ndarray):
            gaps = to_numpy(pc.is_null(part, nan_is_null=True))
        elif part.dtype.kind in "fmM":
            gaps = np.isnan(part) if part.dtype.kind == "f" else np.isnat(part)
        else:
            gaps = np.zeros(1, dtype=bool)
        if gaps.any():
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
    listed = keys if not isinstance(keys, np.ndarray) else pa.array(keys)
    return pa.concat_arrays([listed[:number], pa.nulls(1, listed.type), listed[number:]])


def number_texts(column: TableColumn, listed: TableColumn | None, keeps_missing: bool) -> tuple[Array, Any]:
    """The number of each row's key, `NO_PLACE` where it has none or is not listed; and the keys by their numbers."""
    keys = pa.chunked_array(column.parts, type=column.kind)
    if pa.types.is_string_view(keys.type) or pa.types.is_binary_view(keys.type):  # which Arrow cannot dictionary-encode
        keys = keys.cast(pa.large_string() if pa.types.is_string_view(keys.type) else pa.large_binary())
    if keys.null_count and not keeps_missing:
        raise missing_key(column, int(to_numpy(pc.is_null(keys).combine_chunks()).argmax()))
    wanted = None if listed is None else _listed_texts(column, listed, keys.type)
    if pa.types.is_dictionary(keys.type):
        return _number_categories(column, keys, wanted, keeps_missing)
    if wanted is None:
        encoded = keys.dictionary_encode()
        numbered = [chunk.indices for chunk in encoded.chunks]
        distinct = encoded.chunk(0).dictionary.drop_null() if encoded.num_chunks else pa.array([], keys.type)
    else:
        numbered, distinct = pc.index_in(keys, value_set=wanted).chunks, wanted
    rows = np.empty(column.num_rows, dtype=np.int32)
    start = 0
    for chunk in numbered:
        rows[start : start + len(chunk)] = _numbers(chunk)
        start += len(chunk)
    return rows, distinct


def _numbers(indices: pa.Array) -> Array:
    return to_numpy(indices.fill_null(NO_PLACE) if indices.null_count else indices)


def _number_categories(
    column: TableColumn, keys: pa.ChunkedArray, wanted: pa.Array | None, keeps_missing: bool
) -> tuple[Array, Any]:
    """Through the distinct strings: two categories of one string are one key, and unused categories are none."""
    keys = keys.unify_dictionaries()
    categories = keys.chunk(0).dictionary if keys.num_chunks else pa.array([], keys.type.value_type)
    encoded = categories.dictionary_encode()
    table = np.full(len(categories) + 1, NO_PLACE, dtype=np.int32)  # the last entry is for rows without a code
    table[:-1] = _numbers(encoded.indices if wanted is None else pc.index_in(categories, value_set=wanted))
    nameless = int(to_numpy(pc.is_null(categories)).argmax()) if categories.null_count and not keeps_missing else None
    rows = np.empty(column.num_rows, dtype=np.int32)
    start = 0
    for chunk in keys.chunks:
        for begin in range(0, len(chunk), BLOCK_ROWS):
            codes, gaps = plain_values(chunk.indices[begin : begin + BLOCK_ROWS])
            codes = codes if gaps is None else np.where(gaps, len(categories), codes)
            if nameless is not None and (codes == nameless).any():
                raise missing_key(column, start + int((codes == nameless).argmax()))
            rows[start : start + len(codes)] = table[codes]
            start += len(codes)
    distinct = _by_appearance(rows, encoded.dictionary) if wanted is None else wanted
    kind = distinct.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return rows, to_numpy(distinct) if is_number and not distinct.null_count else distinct  # as other keys that are numbers


def _by_appearance(rows: Array, distinct: pa.Array) -> pa.Array:
    """Number the distinct strings again in order of first appearance in the rows."""
    from stoker_recipes.tabular.sequences.kernels import Numbering  # loads numba

    appearing = Numbering(0, max(len(distinct) - 1, 0), len(distinct))
    for begin in range(0, len(rows), BLOCK_ROWS):
        block = rows[begin : begin + BLOCK_ROWS]
        appearing.add(block.astype(np.int64), block)
    return distinct.take(from_numpy(appearing.keys))


def _listed_texts(column: TableColumn, listed: TableColumn, kind: pa.DataType) -> pa.Array:
    """The listed contexts in the type of the keys."""
    texts = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not listed.num_rows:
        return pa.array([], texts)
    refuse_gaps(listed)
    values = pa.chunked_array([pa.array(part) for part in listed.parts])
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    try:
        wanted = values.cast(texts).combine_chunks() if _is_texts(values.type) == _is_texts(texts) else None
    except pa.ArrowException:
        wanted = None
    if wanted is None:
        row, value = listed.first_value()
        raise listed.bad(row, value, f"but the key {column.name!r} is {texts}. List keys of the same type")
    refuse_repeats(listed, to_numpy(wanted.dictionary_encode().indices))
    return wanted


def _is_texts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


# ---- listed contexts among distinct keys, such as those of a store: without kernels ----


def find_listed(keys: TableColumn, listed: TableColumn) -> tuple[Array, Any]:
    """The number of each key in the list, `NO_PLACE` where it is not there; and the listed keys in the type of `keys`."""
    if is_text(keys):
        return number_texts(keys, listed, False)
    dtype = number_type(keys)
    wanted = listed_words(keys, listed, dtype)
    refuse_repeats(listed, to_numpy(pa.array(wanted).dictionary_encode().indices))
    rows = np.empty(keys.num_rows, dtype=np.int32)
    for block, words, _ in key_words(keys, False):
        rows[block] = _numbers(pc.index_in(pa.array(words), value_set=pa.array(wanted)))
    return rows, as_keys(wanted, keys, dtype)
