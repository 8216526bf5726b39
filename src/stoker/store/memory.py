"""Stores without packing: `store_from_arrays` over arrays in memory, `map_time_moe` over the files of a Time-MoE folder.

A column of `store_from_arrays` may be

    a list of 1-D or 2-D arrays    one array per series
    a 3-D array                    [series, steps, width]
    a 2-D array                    [series, steps]; with `lengths` [steps of all series, width]
    a 1-D array                    with `lengths`: the steps of all series end to end, or one value per series;
                                   beside lists or 2-D arrays: one value per series; alone: one series
    a list of strings              one string per series
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from stoker._text import readable_bytes
from stoker._types import Array
from stoker.errors import OptionError, SourceTooLargeError
from stoker.store.formats.time_moe import COLUMN, BinFile, SequenceEntries, TimeMoeSource
from stoker.store.manifest import DTYPES, NonFinite
from stoker.store.shards import Column, Level, Texts
from stoker.store.store import Store


def store_from_arrays(columns: Mapping[str, Any], *, lengths: Sequence[int] | Array | None = None) -> Store:
    """Build a store in memory that shares the given arrays where they are contiguous.

    Args:
        columns: arrays by name; see the module docstring for their shapes.
        lengths: the number of steps of each series, where arrays hold the steps of all series end to end.

    Raises:
        OptionError: a column has a type or shape that does not fit the others.

    Example:
        >>> store = store_from_arrays({"x": [[1.0, 2.0], [3.0]], "name": ["a", "b"]})
        >>> store[1]["x"].tolist(), store[1]["name"]
        ([3.0], 'b')
    """
    if not columns:
        raise OptionError("from_arrays needs at least one column, like from_arrays(x=array).")
    read = {name: _read(name, given) for name, given in columns.items()}
    counts = _lengths(read, lengths)
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
        flat = _storable(name, flat)
        flat.flags.writeable = False
        width = flat.shape[1] if flat.ndim == 2 else None
        schema[name] = Column(
            name=name, dtype=flat.dtype, level=level, kind="number", width=width, nonfinite=_nonfinite(flat, level, counts)
        )
        values[name] = flat
    uniform = int(counts[0]) if len(counts) and (counts == counts[0]).all() else None
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64) if uniform is None else None
    if offsets is not None:
        offsets.flags.writeable = False
    return Store(schema, values, num_series=len(counts), length=uniform, offsets=offsets, name="<memory>")


def _read(name: str, given: Any) -> Texts | list[Array] | Array:
    """A column as strings, as one array per series, or as one array."""
    if isinstance(given, list | tuple) and given and all(isinstance(text, str) for text in given):
        return Texts.of(given)
    try:
        if isinstance(given, list | tuple) and given and np.ndim(given[0]) >= 1:
            return [_with_axis(np.asarray(one)) for one in given]
        return _with_axis(np.asarray(given))
    except ValueError as error:  # rows of unequal lengths, or things that are not arrays at all
        raise OptionError(f"column {name!r} cannot be read as arrays: {str(error).rstrip('.')}.") from error


def _with_axis(array: Array) -> Array:
    if array.ndim == 0:
        raise ValueError(f"found {array.dtype} without an axis")
    return array


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
            raise OptionError(f"column {name!r} has other lengths than the columns before it ({_first_difference(found, counts)}).")
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


def _first_difference(found: Array, expected: Array) -> str:
    if len(found) != len(expected):
        return f"{len(found):,} series against {len(expected):,}"
    i = int(np.flatnonzero(found != expected)[0])
    return f"series {i:,}: {found[i]:,} against {expected[i]:,}"


def _storable(name: str, flat: Array) -> Array:
    dtype = flat.dtype.newbyteorder("<")
    if dtype.str not in DTYPES or flat.ndim > 2:
        raise OptionError(
            f"column {name!r} has dtype {flat.dtype} and {flat.ndim} axes; expected plain numbers with at most one row per step."
        )
    return flat.astype(dtype, copy=False).view()


def _nonfinite(flat: Array, level: Level, counts: Array) -> NonFinite:
    from stoker.store.shards import NonFiniteCount

    tally = NonFiniteCount()
    tally.add(flat, first_step=0)
    step = tally.first_step
    if step is None or level == "series":
        return NonFinite(nan=tally.nan, inf=tally.inf, first=None if step is None else [step, 0])
    ends = np.cumsum(counts)
    series = int(np.searchsorted(ends, step, side="right"))
    return NonFinite(nan=tally.nan, inf=tally.inf, first=[series, step - int(ends[series] - counts[series])])


# Time-MoE folders in place: stores over maps of their files, so that terabytes need no copy.
#
# The series of a store are end to end in one array, and a folder may have several files. So a folder becomes several stores: one for
# each stretch of series that are end to end in a file, in the order of `meta.json`. Series that span files, or that have to be
# scaled back, cannot be mapped and are read into memory.

MAX_STRETCHES = 4096
"""More of them would be slower than a packed store, and need as many maps."""
MEMORY_SHARE = 0.5
"""Of the free memory, for series that cannot be mapped."""


def map_time_moe(folder: str | os.PathLike[str]) -> list[Store]:
    """Map the series of a Time-MoE folder, in the order of its `meta.json`, as stores with the column "sequence".

    Sizes of files and offsets of sequences are checked; values are not read.

    Args:
        folder: a folder with `meta.json` and `.bin` files, as `is_time_moe` recognises it.

    Returns:
        One store for each stretch of sequences that are end to end in one file.

    Raises:
        SourceInvalidError: the folder is not a Time-MoE data set, or damaged.
        SourceTooLargeError: the sequences are too scattered to map, or too large to read into memory.
    """
    path = Path(folder)
    source = TimeMoeSource(path, path.name)
    all_sequences = _all_sequences(source)
    stretches = _stretches(source, all_sequences)
    if len(stretches) > MAX_STRETCHES:
        raise SourceTooLargeError(
            f"{source.label} has its sequences in {len(stretches):,} separate stretches, at most {MAX_STRETCHES:,} are mapped. "
            f"Pack it: stoker pack {path} {path.name}.stoker"
        )
    copied = sum(int(all_sequences.lengths[first:last].sum()) for first, last, part in stretches if part is None)
    _check_memory(source, copied * source.meta.dtype.itemsize)
    maps: dict[Path, Array] = {}
    return [_store(source, all_sequences.slice(first, last), part, maps, first) for first, last, part in stretches]


def _all_sequences(source: TimeMoeSource) -> SequenceEntries:
    groups = [sequences for _, sequences in source.sequences(pa.schema([]))]
    if not groups:
        source.schema()  # raises: there is nothing
    joined = {
        name: np.concatenate([getattr(group, name) for group in groups])
        for name in ("offsets", "lengths", "scaled", "means", "stds")
    }
    return SequenceEntries(**joined, others=pa.concat_tables([group.others for group in groups]))


def _stretches(source: TimeMoeSource, sequences: SequenceEntries) -> list[tuple[int, int, BinFile | None]]:
    """Ranges of sequences that are end to end in one file, with that file; None for those that have to be copied."""
    parts = source.meta.parts
    offsets, lengths = sequences.offsets, sequences.lengths
    begins = np.array([part.begin for part in parts], dtype=np.int64)
    ends = np.array([part.end for part in parts], dtype=np.int64)
    at = np.maximum(np.searchsorted(begins, offsets, side="right") - 1, 0)
    in_one_file = offsets + lengths <= (ends[at] if len(parts) else 0)
    # An empty sequence has no position: it joins its neighbour.
    file = np.where(in_one_file & ~sequences.scaled, at, -1)
    follows = (offsets[1:] == offsets[:-1] + lengths[:-1]) | (file[1:] < 0)
    cuts = np.flatnonzero((file[1:] != file[:-1]) | ~follows) + 1
    bounds = [0, *cuts.tolist(), len(offsets)]
    return [
        (first, last, parts[int(file[first])] if file[first] >= 0 else None) for first, last in pairwise(bounds) if last > first
    ]


def _check_memory(source: TimeMoeSource, num_bytes: int) -> None:
    free = int(psutil.virtual_memory().available * MEMORY_SHARE)
    if num_bytes > free:
        raise SourceTooLargeError(
            f"{source.label} has {readable_bytes(num_bytes)} of sequences that are scaled or span files, so they cannot be mapped, "
            f"and at most {readable_bytes(free)} are read into memory. Pack it: stoker pack {source.path} {source.path.name}.stoker"
        )


def _store(source: TimeMoeSource, sequences: SequenceEntries, part: BinFile | None, maps: dict[Path, Array], first: int) -> Store:
    if part is None:
        offsets, values = source.values(sequences)
    else:
        if part.path not in maps:
            maps[part.path] = np.memmap(part.path, source.meta.dtype, mode="r") if part.end > part.begin else np.empty(0)
        begin = int(sequences.offsets[0])
        offsets = np.zeros(len(sequences.lengths) + 1, dtype=np.int64)
        np.cumsum(sequences.lengths, out=offsets[1:])
        # A plain view: a subclass of arrays would make every slice slower.
        values = np.asarray(maps[part.path])[begin - part.begin : begin - part.begin + int(offsets[-1])]
    values = values.astype(source.meta.dtype, copy=False).view()
    values.flags.writeable = offsets.flags.writeable = False
    lengths = sequences.lengths
    uniform = int(lengths[0]) if (lengths == lengths[0]).all() else None
    where = f"{source.path}" if part is None else f"{part.path}"
    return Store(
        {COLUMN: Column(name=COLUMN, dtype=values.dtype, level="step", kind="number")},
        {COLUMN: values},
        num_series=len(lengths),
        length=uniform,
        offsets=None if uniform is not None else offsets,
        name=f"{where} (sequences {first:,} to {first + len(lengths) - 1:,})",
    )
