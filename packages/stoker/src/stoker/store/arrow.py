"""Arrow and NumPy: columns, strings and decimals in both, and whole stores as Arrow tables. Numbers are shared where both allow it.

from_numpy, to_numpy, fill_null    numbers
from_texts, lay_texts              strings
decimals_as_floats                 decimals, as the nearest float64
store_to_arrow, steps_to_arrow     a store as a table with a row per series, or per step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker._types import Array
from stoker.errors import StoreDamagedError
from stoker.store.shards import Column, StoredColumns, Texts

# `pa.array`, `pa.scalar`, `pa.Array.to_numpy` and `pa.Array.fill_null` import
# pandas where it is installed: half a second and 50 MB that a pack, and each process of a shared one, does not need.


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


def fill_null(values: pa.Array, value: float) -> pa.Array:
    """Numbers or booleans with `value` where they are null.

    Example:
        >>> import pyarrow as pa
        >>> fill_null(pa.array([1, None]), -1).to_pylist()
        [1, -1]
    """
    if not values.null_count:
        return values
    return pc.fill_null(values, from_numpy(np.array([value])).cast(values.type)[0])


def from_bfloat16(halves: Array) -> Array:
    """The float32 of each bfloat16, given as its upper 16 bits."""
    return (halves.astype("<u4") << np.uint32(16)).view("<f4")


def from_texts(texts: Sequence[str]) -> pa.Array:
    """Strings as an Arrow array; those of a store are shared.

    Example:
        >>> from_texts(["a", "b"]).to_pylist()
        ['a', 'b']
    """
    laid = texts if isinstance(texts, Texts) else Texts.of(texts)
    return pa.Array.from_buffers(pa.large_string(), len(laid), [None, pa.py_buffer(laid.offsets), pa.py_buffer(laid.utf8)])


def lay_texts(values: pa.Array) -> Texts:
    """Strings of an Arrow array as a store holds them."""
    values = pa.concat_arrays([values.cast(pa.large_string())])
    offsets = np.frombuffer(values.buffers()[1], dtype="<i8")[values.offset : values.offset + len(values) + 1]
    data = values.buffers()[2]
    utf8 = np.frombuffer(data, dtype="|u1") if data is not None else np.empty(0, dtype="|u1")
    begin, end = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    laid = offsets - begin if len(offsets) else np.zeros(1, dtype="<i8")
    laid.flags.writeable = False
    return Texts(utf8[begin:end], laid)


# Decimals as the nearest float64, like `float("19.99")`. Arrow's own cast multiplies by a power of ten and rounds twice: 19.99 becomes
# 19.990000000000002, and so does a tenth of all amounts of money. Here a number of at most 2**53 units is divided once, which rounds
# once; others are converted through their strings.

_EXACT_UNITS = 2**53
_EXACT_POWERS = 22  # powers of ten up to this one are float64 without rounding


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
    # The decimals as integers of their smallest unit; `few` are exact as float64.
    width = values.type.byte_width
    word = np.dtype(f"<i{min(width, 8)}")
    count = len(values) * width // word.itemsize
    words = np.frombuffer(values.buffers()[1], dtype=word, count=count, offset=values.offset * width).reshape(len(values), -1)
    units = words[:, 0]
    few = (units >= -_EXACT_UNITS) & (units <= _EXACT_UNITS)
    for number in range(1, words.shape[1]):
        few &= words[:, number] == units >> 63  # nothing but the sign
    numbers = units / 10.0**values.type.scale
    if not few.all():
        many = np.flatnonzero(~few)
        # The bytes under a null may be anything, so nulls are among these; their values do not matter.
        numbers[many] = to_numpy(fill_null(_through_texts(values.take(from_numpy(many))), 0.0))
    valid = _validity(to_numpy(values.is_valid()))
    return pa.Array.from_buffers(pa.float64(), len(values), [*valid, from_numpy(numbers).buffers()[1]])


def _through_texts(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()).cast(pa.float64())


def _validity(valid: Array) -> list[pa.Buffer | None]:
    return [None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))]


# Stores as Arrow tables.


def store_to_arrow(store: StoredColumns) -> pa.Table:
    """One row per series: large (or fixed-size) lists of steps, plain columns of what belongs to a series. Numbers are shared."""
    return pa.table({name: _valid(store, column, _listed) for name, column in store.schema.items()})


def steps_to_arrow(store: StoredColumns, first: int = 0, last: int | None = None) -> pa.Table:
    """Return the series `first` to `last` as a table with a row per step; values per series are repeated."""
    last = len(store) if last is None else last
    offsets = store.offsets[first : last + 1]
    start, stop = int(offsets[0]), int(offsets[-1])
    owners = from_numpy(np.repeat(np.arange(first, last), np.diff(offsets)))
    columns: dict[str, pa.Array] = {}
    if store.key is None:
        columns["series" if "series" not in store.schema else "series_"] = owners
    for name, column in store.schema.items():
        values = _valid(store, column, _flat)
        columns[name] = values.slice(start, stop - start) if column.level == "step" else values.take(owners)
    return pa.table(columns)


def _listed(store: StoredColumns, column: Column) -> pa.Array:
    """A column with a row per series."""
    array = _flat(store, column)
    if column.level == "step" and store.uniform_length:
        return pa.FixedSizeListArray.from_arrays(array, store.uniform_length)
    return pa.LargeListArray.from_arrays(from_numpy(store.offsets), array) if column.level == "step" else array


def _valid(store: StoredColumns, column: Column, make: Callable[[StoredColumns, Column], pa.Array]) -> pa.Array:
    """Arrow trusts offsets and codes and would read beyond its buffers, so they are validated here."""
    try:
        array = make(store, column)
        array.validate(full=True)
    except pa.ArrowException as error:
        raise StoreDamagedError(
            f"{store.name}: column {column.name!r} is not valid: {error}. Run `stoker inspect --verify`."
        ) from error
    return array


def _flat(store: StoredColumns, column: Column) -> pa.Array:
    """All values of a column, as times or categories with nulls where they are."""
    if column.kind == "text" and column.texts is not None:
        return from_texts(column.texts)
    values = store.column(column.name)
    if column.kind == "bfloat16":
        values = from_bfloat16(values)
    flat = from_numpy(values.reshape(-1))
    if column.kind in ("timestamp", "duration"):
        unit, _, zone = (column.unit or "ns").partition(", ")
        kind = pa.timestamp(unit, zone or None) if column.kind == "timestamp" else pa.duration(unit)
        flat = pa.Array.from_buffers(kind, len(flat), _validity(values != np.iinfo(np.int64).min) + flat.buffers()[1:])
    elif column.kind == "category" and column.texts is not None:
        codes = pa.Array.from_buffers(pa.int32(), len(flat), _validity(values >= 0) + flat.buffers()[1:])
        flat = pa.DictionaryArray.from_arrays(codes, from_texts(column.texts))
    return pa.FixedSizeListArray.from_arrays(flat, column.width) if column.width is not None else flat
