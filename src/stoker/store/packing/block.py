"""Blocks: rows on their way to the disk, cut into segments of one series each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.store.sharing import from_numpy, to_numpy

Array = npt.NDArray[Any]
_KEY_BYTES, _TEXT_KEY_BYTES = 48, 128

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

    @property
    def sorting_bytes(self) -> int:
        """Memory that sorting this block takes beside its result: the block, and numbers for each segment."""
        return self.num_bytes + len(self.keys) * (_TEXT_KEY_BYTES if pa.types.is_large_string(self.keys.type) else _KEY_BYTES)

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
    return values[order] if isinstance(values, np.ndarray) else values.take(from_numpy(order))


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
    codes = _codes(block.keys)
    order = stable_order(codes)
    counts = block.counts[order]
    if time_index is None:
        starts = np.cumsum(block.counts) - block.counts
        shift = starts[order] - (np.cumsum(counts) - counts)
        rows = np.repeat(shift, counts) + np.arange(counts.sum())
    else:
        by_time = stable_order(block.step[time_index])
        rows = by_time[stable_order(np.repeat(codes, block.counts)[by_time])]
    return Block(
        keys=block.keys.take(from_numpy(order)),
        counts=counts,
        step=[values[rows] for values in block.step],
        series=[take(values, order) for values in block.series],
    )


def _codes(keys: pa.Array) -> Array:
    """Numbers in the order of the keys."""
    if not pa.types.is_large_string(keys.type):
        return to_numpy(keys)
    encoded = keys.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), dtype=np.int64)
    rank[to_numpy(pc.array_sort_indices(encoded.dictionary))] = np.arange(len(rank))
    return np.asarray(rank[to_numpy(encoded.indices)])


def stable_order(values: Array) -> Array:
    """What `np.argsort(values, kind="stable")` gives. NumPy sorts 16-bit numbers in linear time, so wider integers are
    sorted by their 16-bit digits, the least first: several times faster (benchmarks/bench_sort.py)."""
    if values.dtype.kind not in "iu" or len(values) < 2:
        return np.argsort(values, kind="stable")
    low, high = int(values.min()), int(values.max())
    # Wraps around where the span exceeds int64, and comes out right all the same: differences fit into uint64.
    rest = values.astype(np.uint64) - np.uint64(low % 2**64)
    order: Array = np.argsort((rest & np.uint64(0xFFFF)).astype(np.uint16), kind="stable")
    for shift in range(16, (high - low).bit_length(), 16):
        digits = (rest >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def join_segments(block: Block) -> Block:
    """Join neighbouring segments of the same key. Only for rows that are steps: it drops nothing but repeated keys."""
    if len(block.keys) < 2:
        return block
    fresh = np.ones(len(block.keys), dtype=bool)
    fresh[1:] = to_numpy(pc.not_equal(block.keys[:-1], block.keys[1:]))
    if fresh.all():
        return block
    firsts = np.flatnonzero(fresh)
    return Block(
        keys=block.keys.take(from_numpy(firsts)),
        counts=np.add.reduceat(block.counts, firsts),
        step=block.step,
        series=[take(values, firsts) for values in block.series],
    )
