"""Time-MoE's binary folders in place: stores over maps of their files, so that terabytes need no copy.

A store has its series end to end in one array, and a folder may have several files. So a folder becomes several stores: one for
each stretch of series that lie end to end within a file, in the order of `meta.json`. What cannot be mapped is read into memory:
series that span files, and series that have to be scaled back.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa

from stoker.errors import SourceTooLarge
from stoker.store.column import Column
from stoker.store.sources.timemoe import COLUMN, Sequences, TimeMoeSource
from stoker.store.sources.timemoe_meta import Part
from stoker.store.store import Store
from stoker.units import readable_bytes

Array = npt.NDArray[Any]

MOST_STRETCHES = 4096
"""More of them would be slower than a packed store, and take as many maps."""
MEMORY_SHARE = 0.5
"""Of the free memory, for series that cannot be mapped."""


def map_time_moe(folder: str | os.PathLike[str]) -> list[Store]:
    """The series of one folder in the order of its `meta.json`, as stores with the column "sequence".

    Sizes of files and places of sequences are checked; values are not read.
    """
    path = Path(folder)
    source = TimeMoeSource(path, path.name)
    all_sequences = _all_sequences(source)
    stretches = _stretches(source, all_sequences)
    if len(stretches) > MOST_STRETCHES:
        raise SourceTooLarge(
            f"{source.label} has its sequences in {len(stretches):,} separate stretches, at most {MOST_STRETCHES:,} are mapped. "
            f"Pack it: stoker pack {path} {path.name}.stoker"
        )
    copied = sum(int(all_sequences.lengths[first:last].sum()) for first, last, part in stretches if part is None)
    _check_memory(source, copied * source.meta.dtype.itemsize)
    maps: dict[Path, Array] = {}
    return [_store(source, all_sequences.slice(first, last), part, maps, first) for first, last, part in stretches]


def _all_sequences(source: TimeMoeSource) -> Sequences:
    groups = [sequences for _, sequences in source.sequences(pa.schema([]))]
    if not groups:
        source.schema()  # raises: there is nothing
    joined = {
        name: np.concatenate([getattr(group, name) for group in groups])
        for name in ("offsets", "lengths", "scaled", "means", "stds")
    }
    return Sequences(**joined, others=pa.concat_tables([group.others for group in groups]))


def _stretches(source: TimeMoeSource, sequences: Sequences) -> list[tuple[int, int, Part | None]]:
    """Runs of sequences that lie end to end in one file, with that file; those that have to be copied come without one."""
    parts = source.meta.parts
    offsets, lengths = sequences.offsets, sequences.lengths
    begins = np.array([part.begin for part in parts], dtype=np.int64)
    ends = np.array([part.end for part in parts], dtype=np.int64)
    at = np.maximum(np.searchsorted(begins, offsets, side="right") - 1, 0)
    in_one_file = offsets + lengths <= (ends[at] if len(parts) else 0)
    # An empty sequence lies nowhere: it goes along with its neighbour.
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
        raise SourceTooLarge(
            f"{source.label} has {readable_bytes(num_bytes)} of sequences that are scaled or span files, so they cannot be mapped, "
            f"and at most {readable_bytes(free)} are read into memory. Pack it: stoker pack {source.path} {source.path.name}.stoker"
        )


def _store(source: TimeMoeSource, sequences: Sequences, part: Part | None, maps: dict[Path, Array], first: int) -> Store:
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
