"""Other forms of data: decimals as floats, stores as Arrow tables, and arrays as stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.errors import OptionError, StoreDamagedError
from stoker.store.manifest import DTYPES
from stoker.store.shards import Column, Level, NonFiniteCount, StoredColumns, Texts, fill_null, from_numpy, from_texts, to_numpy

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
    return pa.table({name: _checked(store, column) for name, column in store.schema.items()})


def _checked(store: StoredColumns, column: Column) -> pa.Array:
    """Arrow trusts offsets and codes and would read beyond its buffers, so they are validated here."""
    try:
        array = _flat(store, column)
        if column.level == "step" and store.uniform_length:
            array = pa.FixedSizeListArray.from_arrays(array, store.uniform_length)
        elif column.level == "step":
            array = pa.LargeListArray.from_arrays(from_numpy(store.offsets), array)
        array.validate(full=True)
    except pa.ArrowException as error:
        raise StoreDamagedError(f"{store.name}: column {column.name!r} is not valid: {error}. Run `stoker verify`.") from error
    return array


def _flat(store: StoredColumns, column: Column) -> pa.Array:
    """All values of a column, as times or categories with nulls where they are."""
    if column.kind == "text" and column.texts is not None:
        return from_texts(column.texts)
    values = store.column(column.name)
    if column.kind == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    flat = from_numpy(values.reshape(-1))
    if column.kind in ("timestamp", "duration"):
        unit, _, zone = (column.unit or "ns").partition(", ")
        kind = pa.timestamp(unit, zone or None) if column.kind == "timestamp" else pa.duration(unit)
        flat = pa.Array.from_buffers(kind, len(flat), _validity(values != np.iinfo(np.int64).min) + flat.buffers()[1:])
    elif column.kind == "category" and column.texts is not None:
        codes = pa.Array.from_buffers(pa.int32(), len(flat), _validity(values >= 0) + flat.buffers()[1:])
        flat = pa.DictionaryArray.from_arrays(codes, from_texts(column.texts))
    return pa.FixedSizeListArray.from_arrays(flat, column.width) if column.width is not None else flat


# Stores in memory. A column may be
#
#     a list of 1-D or 2-D arrays    one array per series
#     a 3-D array                    [series, steps, width]
#     a 2-D array                    [series, steps]; with `lengths` [steps of all series, width]
#     a 1-D array                    with `lengths`: the steps of all series end to end, or one value per series;
#                                    beside lists or 2-D arrays: one value per series; alone: one series
#     a list of strings              one string per series


def columns_from_arrays(
    columns: Mapping[str, Any], lengths: Sequence[int] | Array | None
) -> tuple[dict[str, Column], dict[str, Array], Array]:
    """The schema, the values and the offsets of a store in memory; see `store_from_arrays`."""
    if not columns:
        raise OptionError("from_arrays needs at least one column, like from_arrays(x=array).")
    read = {name: _read(name, given) for name, given in columns.items()}
    counts = _lengths(read, lengths)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    offsets.flags.writeable = False
    end_to_end = lengths is not None or not any(_shows_series(given) for given in read.values())
    schema: dict[str, Column] = {}
    values: dict[str, Array] = {}
    for name, given in read.items():
        if isinstance(given, Texts):
            if len(given) != len(counts):
                raise OptionError(f"column {name!r} has {len(given):,} strings, but there are {len(counts):,} series.")
            schema[name] = Column(name=name, dtype=None, level="series", kind="text", texts=given)
            continue
        level, flat = _flatten(name, given, counts, end_to_end=end_to_end)
        dtype = flat.dtype.newbyteorder("<")
        if dtype.str not in DTYPES or flat.ndim > 2:
            raise OptionError(
                f"column {name!r} has dtype {flat.dtype} and {flat.ndim} axes; expected plain numbers with at most one row per step."
            )
        flat = flat.astype(dtype, copy=False).view()
        flat.flags.writeable = False
        width = flat.shape[1] if flat.ndim == 2 else None
        tally = NonFiniteCount()
        tally.add(flat, first_step=0)
        found = tally.at(offsets if level == "step" else None)
        schema[name] = Column(name=name, dtype=flat.dtype, level=level, kind="number", width=width, nonfinite=found)
        values[name] = flat
    return schema, values, offsets


def _read(name: str, given: Any) -> Texts | list[Array] | Array:
    """A column as strings, as one array per series, or as one array."""
    if isinstance(given, list | tuple) and given and all(isinstance(text, str) for text in given):
        return Texts.of(given)
    try:
        is_list = isinstance(given, list | tuple) and len(given) > 0 and np.ndim(given[0]) >= 1
        arrays = [np.asarray(one) for one in given] if is_list else [np.asarray(given)]
        for array in arrays:
            if array.ndim == 0:
                raise ValueError(f"found {array.dtype} without an axis")
        return arrays if is_list else arrays[0]
    except ValueError as error:  # rows of unequal lengths, or things that are not arrays at all
        raise OptionError(f"column {name!r} cannot be read as arrays: {str(error).rstrip('.')}.") from error


def _lengths(columns: Mapping[str, Texts | list[Array] | Array], lengths: Sequence[int] | Array | None) -> Array:
    """The length of each series, from `lengths` or from the first column that shows it."""
    if lengths is not None:
        counts = np.asarray(lengths)
        if counts.ndim != 1 or (counts.dtype.kind not in "iu" and counts.size) or (counts < 0).any():
            raise OptionError(f"lengths must be integers from 0, one per series; found {counts.dtype} of shape {counts.shape}.")
        return counts.astype(np.int64)
    for given in columns.values():
        if _shows_series(given):
            return np.array([len(one) for one in given], dtype=np.int64)
    return np.array([max(len(given) for given in columns.values())], dtype=np.int64)


def _shows_series(given: Texts | list[Array] | Array) -> bool:
    return isinstance(given, list) or (isinstance(given, np.ndarray) and given.ndim >= 2)


def _flatten(name: str, given: list[Array] | Array, counts: Array, *, end_to_end: bool) -> tuple[Level, Array]:
    """All steps in one array, or one value per series; without `end_to_end`, an array is never taken for all steps."""
    if isinstance(given, list):
        found = np.array([len(one) for one in given], dtype=np.int64)
        if not np.array_equal(found, counts):
            shown = f"{len(found):,} series against {len(counts):,}"
            if len(found) == len(counts):
                i = int(np.flatnonzero(found != counts)[0])
                shown = f"series {i:,}: {found[i]:,} against {counts[i]:,}"
            raise OptionError(f"column {name!r} has other lengths than the columns before it ({shown}).")
        # An empty list has no type of its own: it must not turn the integers of the others into floats.
        parts = [one for one in given if len(one)] or given[:1]
        if len({one.shape[1:] for one in parts}) > 1:
            raise OptionError(f"column {name!r} has series of different widths: {sorted({one.shape[1:] for one in parts})[:2]}.")
        return "step", np.concatenate(parts)
    if end_to_end and given.ndim in (1, 2) and len(given) == counts.sum():
        return "step", np.ascontiguousarray(given)
    if given.ndim >= 2 and len(given) == len(counts) and (counts == given.shape[1]).all():
        return "step", np.ascontiguousarray(given).reshape(len(given) * given.shape[1], *given.shape[2:])
    if given.ndim in (1, 2) and len(given) == len(counts):
        return "series", np.ascontiguousarray(given)
    raise OptionError(
        f"column {name!r} has shape {given.shape}, which fits neither {len(counts):,} series nor their {counts.sum():,} steps."
    )
