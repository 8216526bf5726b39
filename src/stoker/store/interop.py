"""NumPy and Arrow: arrays seen as each other without a copy, decimals as floats, and stores as Arrow tables.

`pa.array` and `pa.Array.to_numpy` import pandas where it is installed: half a second and 50 MB that a pack does not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker._types import Array
from stoker.errors import StoreDamagedError
from stoker.store.shards import Column, Texts
from stoker.store.store import Store


def from_numpy(values: npt.NDArray[Any]) -> pa.Array:
    """A NumPy array of numbers or booleans as an Arrow array. Only booleans are copied, as Arrow packs them into bits.

    Example:
        >>> import numpy as np
        >>> from_numpy(np.array([1, 2])).to_pylist()
        [1, 2]
    """
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def to_numpy(values: pa.Array) -> npt.NDArray[Any]:
    """An Arrow array of numbers or booleans without nulls as a read-only NumPy array.

    Example:
        >>> import pyarrow as pa
        >>> to_numpy(pa.array([0.5, 2.0])).tolist()
        [0.5, 2.0]
    """
    if not len(values):
        return np.empty(0, dtype=values.type.to_pandas_dtype())
    data = values.buffers()[1]
    if pa.types.is_boolean(values.type):
        bits = np.frombuffer(data, dtype=np.uint8)
        return np.unpackbits(bits, count=values.offset + len(values), bitorder="little")[values.offset :].view(np.bool_)
    dtype: np.dtype[Any] = np.dtype(values.type.to_pandas_dtype())
    return np.frombuffer(data, dtype=dtype, count=len(values), offset=values.offset * dtype.itemsize)


def from_texts(texts: Sequence[str]) -> pa.Array:
    """Strings as an Arrow array; those of a store are shared.

    Example:
        >>> from_texts(["a", "b"]).to_pylist()
        ['a', 'b']
    """
    laid = texts if isinstance(texts, Texts) else Texts.of(texts)
    return pa.Array.from_buffers(pa.large_string(), len(laid), [None, pa.py_buffer(laid.offsets), pa.py_buffer(laid.utf8)])


# Decimals as the nearest float64, like `float("19.99")`. Arrow's own cast multiplies by a power of ten and rounds twice: 19.99 becomes
# 19.990000000000002, and so does a tenth of all amounts of money. Here a number of at most 2**53 units is divided once, which rounds
# once; others are converted through their strings.

_EXACT_UNITS = 2**53
_EXACT_POWERS = 22
"""Powers of ten up to this one are float64 without rounding."""


def decimals_as_floats(values: pa.Array) -> pa.Array:
    """An Arrow array of decimals as float64, each the nearest; nulls stay null.

    Example:
        >>> import decimal
        >>> import pyarrow as pa
        >>> decimals_as_floats(pa.array([decimal.Decimal("19.99"), None])).to_pylist()
        [19.99, None]
    """
    if not len(values) or not 0 <= values.type.scale <= _EXACT_POWERS:
        return _through_texts(values)
    units, few = _units(values)
    numbers = units / 10.0**values.type.scale
    if not few.all():
        many = np.flatnonzero(~few)
        # The bytes under a null may be anything, so nulls are among these; their values do not matter.
        numbers[many] = to_numpy(_through_texts(values.take(from_numpy(many))).fill_null(0.0))
    floats = from_numpy(numbers)
    if not values.null_count:
        return floats
    return pa.Array.from_buffers(
        pa.float64(), len(values), [from_numpy(to_numpy(values.is_valid())).buffers()[1], floats.buffers()[1]]
    )


def _units(values: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The decimals as integers of their smallest unit, and which of them are exact as float64."""
    width = values.type.byte_width
    word = np.dtype(f"<i{min(width, 8)}")
    start = values.offset * width
    words = np.frombuffer(values.buffers()[1], dtype=word, count=len(values) * width // word.itemsize, offset=start)
    words = words.reshape(len(values), -1)
    units = words[:, 0]
    few = (units >= -_EXACT_UNITS) & (units <= _EXACT_UNITS)
    for number in range(1, words.shape[1]):
        few &= words[:, number] == units >> 63  # nothing but the sign
    return units, few


def _through_texts(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()).cast(pa.float64())


# Stores as Arrow tables.


def store_to_arrow(store: Store) -> pa.Table:
    """One row per series: large (or fixed-size) lists of steps, plain columns of what belongs to a series. Numbers are shared."""
    return pa.table({name: _checked(store, column) for name, column in store.schema.items()})


def _checked(store: Store, column: Column) -> pa.Array:
    """Arrow trusts offsets and codes and would read beyond its buffers, so they are validated here."""
    try:
        array = _level(store, column, _flat(store, column))
        array.validate(full=True)
    except pa.ArrowException as error:
        raise StoreDamagedError(f"{store.name}: column {column.name!r} is not valid: {error}. Run `stoker verify`.") from error
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
    """Plain numbers as times or categories, with nulls marked."""
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
