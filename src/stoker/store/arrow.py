"""Stores as Arrow tables: one row a series, numbers shared and not copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.errors import StoreDamaged
from stoker.store.column import Column
from stoker.store.sharing import from_numpy, from_texts
from stoker.store.store import Store

Array = npt.NDArray[Any]


def store_to_arrow(store: Store) -> pa.Table:
    """One row a series: large lists (or fixed-size ones) of steps, plain columns of what belongs to a series."""
    return pa.table({name: _checked(store, column) for name, column in store.schema.items()})


def _checked(store: Store, column: Column) -> pa.Array:
    """Arrow trusts offsets and codes and would read beyond its buffers, so a store that lies is refused here."""
    try:
        array = _level(store, column, _flat(store, column))
        array.validate(full=True)
    except pa.ArrowException as error:
        raise StoreDamaged(f"{store.name}: column {column.name!r} is not valid: {error}. Run `stoker verify`.") from error
    return array


def _flat(store: Store, column: Column) -> pa.Array:
    if column.kind == "text" and column.texts is not None:
        return from_texts(column.texts)
    values = store.column(column.name)
    if column.kind == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    flat = _kind(column, values, from_numpy(values.reshape(-1)))
    return pa.FixedSizeListArray.from_arrays(flat, column.width) if column.width is not None else flat


def _kind(column: Column, values: Array, flat: pa.Array) -> pa.Array:
    """Plain numbers as what they stand for, with what is missing marked."""
    if column.kind in ("timestamp", "duration"):
        unit, _, zone = (column.unit or "ns").partition(", ")
        kind = pa.timestamp(unit, zone or None) if column.kind == "timestamp" else pa.duration(unit)
        return pa.Array.from_buffers(kind, len(flat), _validity(values != np.iinfo(np.int64).min) + flat.buffers()[1:])
    if column.kind == "category" and column.texts is not None:
        codes = pa.Array.from_buffers(pa.int32(), len(flat), _validity(values >= 0) + flat.buffers()[1:])
        return pa.DictionaryArray.from_arrays(codes, from_texts(column.texts))
    return flat


def _validity(valid: Array) -> list[pa.Buffer | None]:
    return [None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))]


def _level(store: Store, column: Column, flat: pa.Array) -> pa.Array:
    if column.level == "series":
        return flat
    if store.uniform_length:
        return pa.FixedSizeListArray.from_arrays(flat, store.uniform_length)
    return pa.LargeListArray.from_arrays(from_numpy(store.offsets), flat)
