"""Texts as keys: Arrow numbers them, by first appearance or by their place in a list; of categories only the distinct ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.encode.sequences.columns import TableColumn
from stoker.encode.sequences.contexts import NO_PLACE, missing_key, refuse_gaps, refuse_repeats
from stoker.encode.sequences.numbers import BLOCK_ROWS, plain_values
from stoker.store.sharing import from_numpy, to_numpy

Array = npt.NDArray[Any]


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
    from stoker.encode.sequences.numbering import Numbering  # brings the compiler, which takes much memory

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
