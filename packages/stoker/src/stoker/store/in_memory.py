"""Stores in memory, made of arrays. A column may be

a list of 1-D or 2-D arrays    one array per series
a 3-D array                    [series, steps, width]
a 2-D array                    [series, steps]; with `lengths` [steps of all series, width]
a 1-D array                    with `lengths`: the steps of all series end to end, or one value per series;
                               beside lists or 2-D arrays: one value per series; alone: one series
a list of strings              one string per series
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker._types import Array
from stoker.errors import OptionError
from stoker.store.manifest import DTYPES
from stoker.store.shards import Column, Level, NonFiniteCount, Texts


def columns_from_arrays(
    columns: Mapping[str, Any], lengths: Sequence[int] | Array | None
) -> tuple[dict[str, Column], dict[str, Array], Array]:
    """The schema, the values and the offsets of a store in memory; see `store_from_arrays`."""
    if not columns:
        raise OptionError("from_arrays needs at least one column, like from_arrays(x=array).", parameter="columns")
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
                raise OptionError(f"column {name!r} has {len(given):,} strings, but there are {len(counts):,} series.", column=name)
            schema[name] = Column(name=name, dtype=None, level="series", kind="text", texts=given)
            continue
        level, flat = _flatten(name, given, counts, end_to_end=end_to_end)
        dtype = flat.dtype.newbyteorder("<")
        if dtype.str not in DTYPES or flat.ndim > 2:
            raise OptionError(
                f"column {name!r} has dtype {flat.dtype} and {flat.ndim} axes; expected plain numbers with at most one row per step.",
                column=name,
            )
        flat = flat.astype(dtype, copy=False).view()
        flat.flags.writeable = False
        width = flat.shape[1] if flat.ndim == 2 else None
        tally = NonFiniteCount()
        tally.add(flat, first_step=0)
        nonfinite = tally.at(offsets if level == "step" else None)
        schema[name] = Column(name=name, dtype=flat.dtype, level=level, kind="number", width=width, nonfinite=nonfinite)
        values[name] = flat
    return schema, values, offsets


def _read(name: str, given: Any) -> Texts | list[Array] | Array:
    """A column as strings, as one array per series, or as one array."""
    try:
        if isinstance(given, list | tuple) and given and all(isinstance(text, str) for text in given):
            return Texts.of(given)
        is_list = isinstance(given, list | tuple) and len(given) > 0 and np.ndim(given[0]) >= 1
        arrays = [np.asarray(row) for row in given] if is_list else [np.asarray(given)]
        for array in arrays:
            if array.ndim == 0:
                raise ValueError(f"found {array.dtype} without an axis")
        return arrays if is_list else arrays[0]
    except ValueError as error:  # rows of unequal lengths, things that are not arrays at all, or strings that are not Unicode
        raise OptionError(f"column {name!r} cannot be read as arrays: {str(error).rstrip('.')}.", column=name) from error


def _lengths(columns: Mapping[str, Texts | list[Array] | Array], lengths: Sequence[int] | Array | None) -> Array:
    """The length of each series, from `lengths` or from the first column that shows it."""
    if lengths is not None:
        counts = np.asarray(lengths)
        if counts.ndim != 1 or (counts.dtype.kind not in "iu" and counts.size) or (counts < 0).any():
            raise OptionError(
                f"lengths must be integers from 0, one per series; found {counts.dtype} of shape {counts.shape}.",
                parameter="lengths",
            )
        return counts.astype(np.int64)
    for given in columns.values():
        if _shows_series(given):
            return np.array([len(row) for row in given], dtype=np.int64)
    return np.array([max(len(given) for given in columns.values())], dtype=np.int64)


def _shows_series(given: Texts | list[Array] | Array) -> bool:
    return isinstance(given, list) or (isinstance(given, np.ndarray) and given.ndim >= 2)


def _flatten(name: str, given: list[Array] | Array, counts: Array, *, end_to_end: bool) -> tuple[Level, Array]:
    """All steps in one array, or one value per series; without `end_to_end`, an array is never taken for all steps."""
    if isinstance(given, list):
        lengths = np.array([len(row) for row in given], dtype=np.int64)
        if not np.array_equal(lengths, counts):
            shown = f"{len(lengths):,} series against {len(counts):,}"
            if len(lengths) == len(counts):
                i = int(np.flatnonzero(lengths != counts)[0])
                shown = f"series {i:,}: {lengths[i]:,} against {counts[i]:,}"
            raise OptionError(f"column {name!r} has other lengths than the columns before it ({shown}).", column=name)
        # An empty list has no type of its own: it must not turn the integers of the others into floats.
        parts = [row for row in given if len(row)] or given[:1]
        if len({part.shape[1:] for part in parts}) > 1:
            raise OptionError(
                f"column {name!r} has series of different widths: {sorted({part.shape[1:] for part in parts})[:2]}.", column=name
            )
        return "step", np.concatenate(parts)
    if end_to_end and given.ndim in (1, 2) and len(given) == counts.sum():
        return "step", np.ascontiguousarray(given)
    if given.ndim >= 2 and len(given) == len(counts) and (counts == given.shape[1]).all():
        return "step", np.ascontiguousarray(given).reshape(len(given) * given.shape[1], *given.shape[2:])
    if given.ndim in (1, 2) and len(given) == len(counts):
        return "series", np.ascontiguousarray(given)
    raise OptionError(
        f"column {name!r} has shape {given.shape}, which fits neither {len(counts):,} series nor their {counts.sum():,} steps.",
        column=name,
    )
