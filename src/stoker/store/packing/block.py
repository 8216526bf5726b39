"""Blocks: rows on their way to the disk, cut into segments of one series each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array = npt.NDArray[Any]
PerSeries = Any
"""One value a segment: a NumPy array of numbers, or an Arrow array of texts."""


@dataclass(frozen=True, slots=True)
class Block:
    """Segments end to end. The steps of segment i are rows `counts[:i].sum()` and the `counts[i]` behind it."""

    keys: pa.Array
    """One a segment: int64, uint64 or large_string."""
    counts: Array
    step: Sequence[Array]
    """One array a column, all steps end to end."""
    series: Sequence[PerSeries]
    """One array a column, one value a segment."""

    @property
    def num_bytes(self) -> int:
        """Memory of the block."""
        return sum(int(v.nbytes) for v in (*self.step, *self.series, self.keys, self.counts))

    def rises(self, time_index: int | None = None) -> bool:
        """Whether keys rise strictly, and with a time, whether times do not fall within a segment."""
        if len(self.keys) > 1 and not pc.all(pc.less(self.keys[:-1], self.keys[1:])).as_py():
            return False
        if time_index is None:
            return True
        times = self.step[time_index]
        falls = times[1:] < times[:-1]
        ends = np.cumsum(self.counts)[:-1]
        falls[ends[(ends > 0) & (ends < len(times))] - 1] = False
        return not falls.any()


def take(values: PerSeries, order: Array) -> PerSeries:
    """Values in another order."""
    return values[order] if isinstance(values, np.ndarray) else values.take(pa.array(order))


def concatenate(blocks: Sequence[Block]) -> Block:
    """Blocks end to end."""
    if len(blocks) == 1:
        return blocks[0]
    return Block(
        keys=pa.concat_arrays([block.keys for block in blocks]),
        counts=np.concatenate([block.counts for block in blocks]),
        step=[np.concatenate(columns) for columns in zip(*(block.step for block in blocks), strict=True)],
        series=[_join(columns) for columns in zip(*(block.series for block in blocks), strict=True)],
    )


def _join(parts: Sequence[PerSeries]) -> PerSeries:
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)


def sort_block(block: Block, time_index: int | None) -> Block:
    """Bring segments into the order of their keys; equal keys keep their order, or, with a time, rows follow the time.

    Segments of one key are not joined here: whoever writes them does that.
    """
    rank = np.asarray(pc.rank(block.keys, sort_keys="ascending", tiebreaker="dense").to_numpy(), dtype=np.int64)
    order = np.argsort(rank, kind="stable")
    counts = block.counts[order]
    if time_index is None:
        starts = np.cumsum(block.counts) - block.counts
        shift = starts[order] - (np.cumsum(counts) - counts)
        rows = np.repeat(shift, counts) + np.arange(counts.sum())
    else:
        rows = np.lexsort((block.step[time_index], np.repeat(rank, block.counts)))
    return Block(
        keys=block.keys.take(pa.array(order)),
        counts=counts,
        step=[values[rows] for values in block.step],
        series=[take(values, order) for values in block.series],
    )


def join_segments(block: Block) -> Block:
    """Join neighbouring segments of the same key. Only for rows that are steps: it drops nothing but repeated keys."""
    if len(block.keys) < 2:
        return block
    fresh = np.ones(len(block.keys), dtype=bool)
    fresh[1:] = np.asarray(pc.not_equal(block.keys[:-1], block.keys[1:]).to_numpy(zero_copy_only=False))
    if fresh.all():
        return block
    firsts = np.flatnonzero(fresh)
    return Block(
        keys=block.keys.take(pa.array(firsts)),
        counts=np.add.reduceat(block.counts, firsts),
        step=block.step,
        series=[take(values, firsts) for values in block.series],
    )
