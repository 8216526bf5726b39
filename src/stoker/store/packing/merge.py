"""Merging runs: several sorted runs become one, with a bounded part of each in memory.

Where keys are equal, rows of the earlier run come first; with a time, rows follow the time and the earlier run wins
ties. So the result does not depend on where one run ended and the next began.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.store.packing.block import Block, concatenate, join_segments, sort_block
from stoker.store.packing.run import RepeatedKey, Run

Array = npt.NDArray[Any]
Bound = tuple[Any, ...]
"""(key,) or (key, time)."""

FAN_IN = 256


class CursorMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a run has been merged: whole series, rows of the next one, and rows in all."""

    series: int
    in_series: int
    rows: int


class Cursor:
    """A place in a run, and the rows behind it that are in memory."""

    def __init__(self, run: Run, block_bytes: int, time_index: int | None, mark: CursorMark | None) -> None:
        self._run = run
        self._time_index = time_index
        # Each row may be a segment of its own, with a key and numbers that the sort needs.
        row_bytes = sum(file.dtype.itemsize for file in run.step) + (32 if run.layout.key is not None else 128)
        self._block_rows = max(block_bytes // row_bytes, 16)
        taken = mark or CursorMark(series=0, in_series=0, rows=0)
        self._taken = taken
        # The next series to read, how many of its rows are read, and rows read in all.
        self._series, self._in_series, self._rows = taken.series, taken.in_series, taken.rows
        self._block: Block | None = None

    def mark(self) -> CursorMark:
        """What was taken so far."""
        return self._taken

    def load(self) -> bool:
        """Have rows in memory if any are left; False at the end. Half a block is topped up, so that all cursors of a
        merge move on together."""
        while self.has_more and (self._block is None or len(self._block.step[0]) < self._block_rows // 2):
            more = self._read()
            self._block = more if self._block is None else join_segments(concatenate([self._block, more]))
        return self._block is not None

    def _read(self) -> Block:
        run, first, limit = self._run, self._series, self._block_rows
        stop = min(first + limit, run.num_series)
        counts = run.counts.read(first, stop)
        counts[0] -= self._in_series
        ends = np.cumsum(counts)
        over = 0
        if ends[-1] > limit:  # the series that does not fit is cut, and goes on with the next read
            counts = counts[: int(np.searchsorted(ends, limit, side="left")) + 1]
            over = int(ends[len(counts) - 1]) - limit
            counts[-1] -= over
        num_rows = int(counts.sum())
        block = Block(
            keys=run.read_keys(first, first + len(counts)),
            counts=counts,
            step=[file.read(self._rows, self._rows + num_rows) for file in run.step],
            series=run.read_series(first, first + len(counts)),
        )
        already = self._in_series if len(counts) == 1 else 0
        self._series = first + len(counts) - (1 if over else 0)
        self._in_series = already + int(counts[-1]) if over else 0
        self._rows += num_rows
        return block

    @property
    def has_more(self) -> bool:
        """Whether rows remain on disk behind those in memory."""
        return self._series < self._run.num_series

    def first(self) -> Bound:
        """Key (and time) of the first row in memory."""
        return self._at(0)

    def last(self) -> Bound:
        """Key (and time) of the last row in memory."""
        return self._at(-1)

    def _at(self, index: int) -> Bound:
        block = self._loaded()
        key = block.keys[index].as_py()
        if self._time_index is None:
            return (key,)
        return (key, block.step[self._time_index][index].item() if block.counts[index] else float("-inf"))

    def _loaded(self) -> Block:
        if self._block is None:
            raise RuntimeError("no rows are loaded")
        return self._block

    def take(self, bound: Bound | None, *, equal: bool) -> Block | None:
        """Remove and return the rows before `bound` (or, with `equal`, those at it); all rows without a bound."""
        block = self._loaded()
        if bound is None:
            return self._cut(block, len(block.keys), 0)
        key = pa.scalar(bound[0], block.keys.type)
        before = int(pc.sum(pc.less(block.keys, key)).as_py())
        at = before < len(block.keys) and block.keys[before].as_py() == bound[0]
        if self._time_index is None or not at:
            return self._cut(block, before + (1 if equal and at else 0), 0)
        start = int(block.counts[:before].sum())
        times = block.step[self._time_index][start : start + int(block.counts[before])]
        if not len(times):
            return self._cut(block, before + 1, 0)
        return self._cut(block, before, int(np.searchsorted(times, bound[1], side="right" if equal else "left")))

    def _cut(self, block: Block, whole: int, extra: int) -> Block | None:
        """Split behind `whole` series and `extra` rows of the next; keep the second part."""
        if extra and extra == block.counts[whole]:
            whole, extra = whole + 1, 0
        segments = whole + (1 if extra else 0)
        if not segments:
            return None
        rows = int(block.counts[:whole].sum()) + extra
        counts, left = block.counts[:segments].copy(), block.counts[whole:].copy()
        if extra:
            counts[-1] = extra
            left[0] -= extra
        taken = Block(block.keys[:segments], counts, [v[:rows] for v in block.step], [v[:segments] for v in block.series])
        rest = Block(block.keys[whole:], left, [v[rows:] for v in block.step], [v[whole:] for v in block.series])
        self._block = rest if len(rest.keys) else None
        self._taken = self._behind(whole, extra, rows)
        return taken

    def _behind(self, whole: int, extra: int, rows: int) -> CursorMark:
        """Where the cursor is once `whole` series and `extra` rows are taken."""
        taken = self._taken
        if self._block is None:
            return CursorMark(series=self._series, in_series=self._in_series, rows=taken.rows + rows)
        in_series = extra + (taken.in_series if whole == 0 else 0)
        return CursorMark(series=taken.series + whole, in_series=in_series, rows=taken.rows + rows)


def merge_runs(
    runs: Sequence[Run],
    out: Run,
    *,
    time_index: int | None,
    unique_keys: bool,
    memory_bytes: int,
    marks: Sequence[CursorMark] | None,
    progress: Callable[[Sequence[CursorMark], int], None],
) -> None:
    """Merge `runs` into `out`, from `marks` on. `progress` gets what has been merged, and the bytes since its last call.

    With `unique_keys` a key that two runs hold raises `RepeatedKey`.
    """
    # Blocks follow the size of their run, so that all cover about the same keys and the cursors move on together.
    total = sum(run.num_steps for run in runs) or 1
    sizes = [memory_bytes * run.num_steps // total for run in runs]
    cursors = [Cursor(run, sizes[i], time_index, marks[i] if marks else None) for i, run in enumerate(runs)]
    while True:
        live = [cursor for cursor in cursors if cursor.load()]
        if not live:
            return
        bound = min((cursor.last() for cursor in live if cursor.has_more), default=None)
        parts = [part for cursor in live if (part := cursor.take(bound, equal=False)) is not None]
        if parts:
            block = sort_block(concatenate(parts), time_index)
            if unique_keys and len(join_segments(block).keys) < len(block.keys):
                keys = block.keys.to_pylist()
                raise RepeatedKey(next(a for a, b in itertools.pairwise(keys) if a == b))
            out.add(block)
            progress([cursor.mark() for cursor in cursors], block.num_bytes)
        else:
            holders = [cursor for cursor in live if cursor.first() == bound]
            if unique_keys and len(holders) > 1:
                raise RepeatedKey(holders[0].first()[0])
            for block in _equal_blocks(holders, bound, memory_bytes // 4):
                out.add(block)
                progress([cursor.mark() for cursor in cursors], block.num_bytes)


def _equal_blocks(holders: Sequence[Cursor], bound: Bound | None, block_bytes: int) -> Iterator[Block]:
    """The rows of one key (and time) that fills whole blocks, run by run."""
    parts: list[Block] = []
    for cursor in holders:
        while cursor.load() and cursor.first() == bound:
            part = cursor.take(bound, equal=True)
            if part is None:
                raise RuntimeError("a merge made no progress")
            parts.append(part)
            if sum(one.num_bytes for one in parts) >= block_bytes:
                yield concatenate(parts)
                parts = []
    if parts:
        yield concatenate(parts)
