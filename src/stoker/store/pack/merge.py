"""Merging: several sorted runs become one, with a bounded part of each in memory.

Where keys are equal, rows of the earlier run come first; with a time, rows are ordered by time and the earlier run wins ties. So the
result does not depend on where one run ended and the next began.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.errors import TimeOrderError
from stoker.store.formats.base import RowLocation
from stoker.store.interop import from_numpy, to_numpy
from stoker.store.pack.blocks import RowBlock, concatenate, join_segments, sort_block
from stoker.store.pack.plan import ColumnPlan, PackPlan
from stoker.store.pack.sorted_runs import Key, RepeatedKeyError, SortedRun, UnsortedTimesError
from stoker.store.pack.values import one_array, to_numbers

Bound = tuple[Any, ...]
"""(key,) or (key, time)."""

FAN_IN = 256


class CursorMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a run has been merged: whole series, rows of the next one, and rows in total."""

    series: int
    in_series: int
    rows: int


class RunCursor:
    """A position in a run, and the rows after it that are in memory."""

    def __init__(self, run: SortedRun, block_bytes: int, time_index: int | None, mark: CursorMark | None) -> None:
        self._run = run
        self._time_index = time_index
        # Each row may be a segment of its own, with a key and counts that the sort needs.
        row_bytes = sum(file.dtype.itemsize for file in run.step) + (32 if run.layout.key is not None else 128)
        self._block_rows = max(block_bytes // row_bytes, 16)
        taken = mark or CursorMark(series=0, in_series=0, rows=0)
        self._taken = taken
        # The next series to read, how many of its rows are read, and rows read in all.
        self._series, self._in_series, self._rows = taken.series, taken.in_series, taken.rows
        self._block: RowBlock | None = None

    def mark(self) -> CursorMark:
        """What has been taken so far."""
        return self._taken

    def load(self) -> bool:
        """Have rows in memory if any are left; False at the end. Half a block is refilled, so that all cursors advance together."""
        while self.has_more and (self._block is None or len(self._block.step[0]) < self._block_rows // 2):
            more = self._read()
            self._block = more if self._block is None else join_segments(concatenate([self._block, more]))
        return self._block is not None

    def _read(self) -> RowBlock:
        run, first, limit = self._run, self._series, self._block_rows
        stop = min(first + limit, run.num_series)
        counts = run.counts.read(first, stop)
        counts[0] -= self._in_series
        ends = np.cumsum(counts)
        over = 0
        if ends[-1] > limit:  # the series that does not fit is cut, and continues with the next read
            counts = counts[: int(np.searchsorted(ends, limit, side="left")) + 1]
            over = int(ends[len(counts) - 1]) - limit
            counts[-1] -= over
        num_rows = int(counts.sum())
        block = RowBlock(
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

    def _loaded(self) -> RowBlock:
        if self._block is None:
            raise RuntimeError("no rows are loaded")
        return self._block

    def take(self, bound: Bound | None, *, equal: bool) -> RowBlock | None:
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

    def _cut(self, block: RowBlock, whole: int, extra: int) -> RowBlock | None:
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
        taken = RowBlock(block.keys[:segments], counts, [v[:rows] for v in block.step], [v[:segments] for v in block.series])
        rest = RowBlock(block.keys[whole:], left, [v[rows:] for v in block.step], [v[whole:] for v in block.series])
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
    runs: Sequence[SortedRun],
    out: SortedRun,
    *,
    time_index: int | None,
    unique_keys: bool,
    memory_bytes: int,
    marks: Sequence[CursorMark] | None,
    progress: Callable[[Sequence[CursorMark], int], None],
) -> None:
    """Merge `runs` into `out`, from `marks` on. `progress` gets the cursors, and the bytes merged since its last call.

    With `unique_keys` a key that two runs hold raises `RepeatedKeyError`.
    """
    # Blocks are proportional to their run, so that all cover about the same keys and the cursors advance together.
    total = sum(run.num_steps for run in runs) or 1
    sizes = [memory_bytes * run.num_steps // total for run in runs]
    cursors = [RunCursor(run, sizes[i], time_index, marks[i] if marks else None) for i, run in enumerate(runs)]
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
                raise RepeatedKeyError(next(a for a, b in itertools.pairwise(keys) if a == b))
            out.add(block)
            progress([cursor.mark() for cursor in cursors], block.num_bytes)
        else:
            holders = [cursor for cursor in live if cursor.first() == bound]
            if unique_keys and len(holders) > 1:
                raise RepeatedKeyError(holders[0].first()[0])
            for block in _equal_blocks(holders, bound, memory_bytes // 4):
                out.add(block)
                progress([cursor.mark() for cursor in cursors], block.num_bytes)


def _equal_blocks(holders: Sequence[RunCursor], bound: Bound | None, block_bytes: int) -> Iterator[RowBlock]:
    """The rows of one key (and time) that fill whole blocks, run by run."""
    parts: list[RowBlock] = []
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


def explain_disorder(plan: PackPlan, found: UnsortedTimesError) -> TimeOrderError:
    """Find the first two rows of the series whose times do not increase, by reading the sources again: errors may be slow."""
    index = plan.time_index
    field = plan.step[index if index is not None else 0]
    last: tuple[str, Any, str] | None = None
    rows_before = 0
    for number, source in enumerate(plan.sources):
        if plan.grouping == "file" and number != found.key:
            continue
        rows_here = 0
        for task in source.read(plan.schema, start=RowLocation(), chunk_bytes=plan.options.chunk_bytes):
            chunk = task()
            rows_here = chunk.end.row
            column = one_array(chunk.table.column(field.name))
            for row in _rows_of(plan, chunk.table, found, rows_before + chunk.begin.row):
                place = f"row {chunk.begin.row + row + 1:,} of {source.label}"
                values = column[row].values if plan.rows_are_series else column.slice(row, 1)
                for shown, time in zip(values.to_pylist(), to_numbers(values, field, partial(_here, place)).tolist(), strict=True):
                    if last is not None and not last[1] < time:
                        return _error(plan, found, field.name, last, (place, time, str(shown)))
                    last = (place, time, str(shown))
        rows_before += rows_here
    return TimeOrderError(
        f"the times of series {found.key!r} do not increase: {found.before} is followed by {found.behind}. Pass sort=True."
    )


def _rows_of(plan: PackPlan, table: pa.Table, found: UnsortedTimesError, rows_before: int) -> list[int]:
    """Rows of a chunk that belong to the series."""
    if plan.key is not None:
        keys = one_array(table.column(plan.key.name))
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        if plan.key.kind == "timestamp":
            keys = from_numpy(to_numbers(keys, plan.key, str))
        same = pc.fill_null(pc.equal(keys, pa.scalar(found.key, keys.type)), False)
        return [int(i) for i in np.flatnonzero(to_numpy(same))]
    if plan.grouping == "row":
        row = int(found.key) - rows_before
        return [row] if 0 <= row < table.num_rows else []
    return list(range(table.num_rows))


def _error(
    plan: PackPlan, found: UnsortedTimesError, name: str, before: tuple[str, Any, str], behind: tuple[str, Any, str]
) -> TimeOrderError:
    series = f" of {plan.key.name} {_shown_key(plan.key, found.key)}" if plan.key is not None else ""
    relation = "equals" if before[1] == behind[1] else "is before"
    return TimeOrderError(
        f"the time {name!r}{series} does not increase: {behind[2]} in {behind[0]} {relation} {before[2]} in {before[0]}. "
        "Fix the rows, or pass sort=True."
    )


def _shown_key(field: ColumnPlan, key: Key) -> str:
    if field.kind != "timestamp":
        return repr(key)
    return str(np.array([key], dtype=np.int64).view(f"datetime64[{(field.unit or 's').partition(',')[0]}]")[0])


def _here(place: str, _: int) -> str:
    return place
