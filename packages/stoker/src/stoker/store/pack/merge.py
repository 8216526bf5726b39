"""Merging: several sorted runs become one, with a bounded part of each in memory; and `seal_run`: that run becomes a store.

Where keys are equal, rows of the earlier run come first; with a time, rows are ordered by time and the earlier run wins ties. So the
result does not depend on where one run ended and the next began.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._disk import remove_file
from stoker.errors import BadValueError, TimeOrderError
from stoker.store.arrow import from_bfloat16, from_numpy, from_texts, to_numpy
from stoker.store.formats.base import RowLocation, RowPlace, place_fields
from stoker.store.formats.csv import conversion
from stoker.store.formats.words import meanings, type_of
from stoker.store.manifest import (
    VERSION,
    ColumnEntry,
    Manifest,
    SourceEntry,
    Text,
    format_version,
    parse_frequency,
)
from stoker.store.pack.blocks import RowBlock, concatenate, join_segments, sort_blocks
from stoker.store.pack.column_types import ColumnPlan
from stoker.store.pack.misfits import misfit_error
from stoker.store.pack.plan import PackPlan
from stoker.store.pack.regular import OffGridError, StepRules
from stoker.store.pack.sorted_runs import ReadableRun, RepeatedKeyError, SortedRun, UnsortedTimesError
from stoker.store.pack.values import LocalTimes, one_array, show_time, to_numbers
from stoker.store.pack.wide import wide_series
from stoker.store.shards import ColumnFile, NonFiniteCount, TextFile, entry_of

Bound = tuple[Any, ...]  # (key,) or (key, time)

FAN_IN = 256


class RunCursor:
    """A position in a run, and the rows after it that are in memory."""

    def __init__(self, run: ReadableRun, block_bytes: int, time_index: int | None) -> None:
        self._run = run
        self._time_index = time_index
        # Each row may be a segment of its own, with a key and counts that the sort needs.
        row_bytes = sum(file.dtype.itemsize for file in run.step) + (32 if run.layout.key is not None else 128)
        self._block_rows = max(block_bytes // row_bytes, 16)
        # The next series to read, how many of its rows are read, and rows read in all.
        self._series = self._in_series = self._rows = 0
        self._block: RowBlock | None = None

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
            series=[file.read(first, first + len(counts)) for file in run.series],
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

    def bound(self, index: int) -> Bound:
        """Key (and time) of the first (0) or the last (-1) row in memory."""
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
        return taken


def merge_runs(
    runs: Sequence[ReadableRun],
    out: SortedRun,
    *,
    time_index: int | None,
    unique_keys: bool,
    memory_bytes: int,
    progress: Callable[[], None] = lambda: None,
    rules: StepRules | None = None,
) -> None:
    """Merge `runs` into `out`; `progress` is called after each block.

    With `unique_keys` a key that two runs hold raises `RepeatedKeyError`. `rules` are applied to the merged rows.
    """
    # Blocks are proportional to their run, so that all cover about the same keys and the cursors advance together.
    total = sum(run.num_steps for run in runs) or 1
    sizes = [memory_bytes * run.num_steps // total for run in runs]
    cursors = [RunCursor(run, size, time_index) for run, size in zip(runs, sizes, strict=True)]
    while True:
        live = [cursor for cursor in cursors if cursor.load()]
        if not live:
            if rules is not None:
                _add(out, None, rules, memory_bytes)
            return
        bound = min((cursor.bound(-1) for cursor in live if cursor.has_more), default=None)
        parts = [part for cursor in live if (part := cursor.take(bound, equal=False)) is not None]
        if parts:
            block = parts[0] if len(parts) == 1 else sort_blocks(parts, time_index)
            if unique_keys and len(join_segments(block).keys) < len(block.keys):
                keys = block.keys.to_pylist()
                raise RepeatedKeyError(next(a for a, b in itertools.pairwise(keys) if a == b))
            _add(out, block, rules, memory_bytes)
            progress()
        else:
            holders = [cursor for cursor in live if cursor.bound(0) == bound]
            if unique_keys and len(holders) > 1:
                raise RepeatedKeyError(holders[0].bound(0)[0])
            for block in _equal_blocks(holders, bound, memory_bytes // 4):
                _add(out, block, rules, memory_bytes)
                progress()


def _add(out: SortedRun, block: RowBlock | None, rules: StepRules | None, memory_bytes: int) -> None:
    """Append merged rows as the rules want them; with None, the rows that the rules still keep."""
    if rules is not None:
        row_bytes = sum(dtype.itemsize for dtype in out.layout.step) + 64  # with the indices of a row that is added
        for part in rules.apply(block, max(memory_bytes // row_bytes, 16)):
            out.add(part)
    elif block is not None:
        out.add(block)


def _equal_blocks(holders: Sequence[RunCursor], bound: Bound | None, block_bytes: int) -> Iterator[RowBlock]:
    """The rows of one key (and time) that fill whole blocks, run by run."""
    parts: list[RowBlock] = []
    for cursor in holders:
        while cursor.load() and cursor.bound(0) == bound:
            part = cursor.take(bound, equal=True)
            if part is None:
                raise RuntimeError("a merge made no progress")
            parts.append(part)
            if sum(part.num_bytes for part in parts) >= block_bytes:
                yield concatenate(parts)
                parts = []
    if parts:
        yield concatenate(parts)


def explain_disorder(plan: PackPlan, found: UnsortedTimesError) -> TimeOrderError:
    """Find the first two rows of the series whose times do not increase, by reading the sources again: errors may be slow."""
    last: _TimedRow | None = None
    for row in _timed_rows(plan, found.key):
        if plan.options.sort and row[1] != found.behind:
            continue  # after a sort only equal times are left to refuse
        if last is not None and not last[1] < row[1]:
            return _disorder(plan, found.key, last, row)
        last = row
    return TimeOrderError(
        f"the times of series {found.key!r} do not increase: {found.before} is followed by {found.behind}. Pass sort=True."
    )


def explain_off_grid(plan: PackPlan, found: OffGridError) -> TimeOrderError:
    """Name the first row whose time is not a step of the frequency, and the row before it."""
    options, field = plan.options, plan.step[plan.time_index or 0]
    unit = field.unit or "ns"
    places = {found.before: show_time(found.before, unit), found.time: show_time(found.time, unit)}
    for place, time, shown in _timed_rows(plan, found.key):
        if time in places and " in row " not in places[time]:
            places[time] = f"{shown} in {place}"
    return TimeOrderError(
        f"the time {field.name!r}{_series_shown(plan, found.key)} is not on the grid of freq={options.freq!r}: {places[found.time]} is "
        f"between two steps after {places[found.before]}. Fix the row, choose another freq=, or only declare it with Time(regular=False).",
        parameter="freq",
    )


def explain_repeated(plan: PackPlan, found: RepeatedKeyError) -> BadValueError:
    """Name the two rows that have the same key, where the sources can be read again."""
    places: list[str] = []
    for source, schema in zip(plan.sources, plan.schemas, strict=True):
        if len(places) > 1 or any(source.once for source in plan.sources):
            break
        for task in source.read(schema, start=RowLocation(), chunk_bytes=plan.options.chunk_bytes):
            chunk = task()
            places += [RowPlace.of(source, chunk.begin.row + row) for row in _rows_of(plan, chunk.table, found.key, 0)]
    where = f" (in {places[0]}, and in {places[1]})" if len(places) > 1 else ""
    return BadValueError(
        f"{plan.key.name if plan.key else 'row'} {found.key!r} occurs twice{where}, but each row is a whole series. Make the key unique.",
        parameter="series",
        column=plan.key.name if plan.key else None,
        **(place_fields(places[1]) if len(places) > 1 else {}),
    )


_TimedRow = tuple[str, Any, str]  # the place of a row, its time as stored, and as written in the source


def _timed_rows(plan: PackPlan, key: Any) -> Iterator[_TimedRow]:
    """The rows of a series with their times, read from the sources; none of a stream that cannot be read again."""
    if any(source.once for source in plan.sources):
        return
    field = plan.step[plan.time_index or 0]
    rules = plan.options.times
    local = LocalTimes(rules) if rules is not None and rules.timezone is not None else None
    rows_before, first_series = 0, 0
    for number, source in enumerate(plan.sources):
        if plan.grouping == "wide":
            first_series, first_here = first_series + len(wide_series(plan.schemas[number], plan.options)), first_series
            if not first_here <= key < first_series:
                continue
        if plan.grouping == "file" and number != key:
            continue
        rows_here = 0
        for task in source.read(plan.schemas[number], start=RowLocation(), chunk_bytes=plan.options.chunk_bytes):
            chunk = task()
            rows_here = chunk.end.row
            column = one_array(chunk.table.column(field.name))
            for row in _rows_of(plan, chunk.table, key, rows_before + chunk.begin.row):
                place = RowPlace.of(source, chunk.begin.row + row)
                values = column[row].values if plan.rows_are_series else column.slice(row, 1)
                times = to_numbers(values, field, partial(_here, place))
                times = times if local is None else local.to_utc(times, lambda rows: [0] * len(rows), partial(_here, place))
                for shown, time in zip(values.to_pylist(), times.tolist(), strict=True):
                    yield place, time, str(shown)
        rows_before += rows_here


def _rows_of(plan: PackPlan, table: pa.Table, key: Any, rows_before: int) -> list[int]:
    """Rows of a chunk that belong to the series."""
    if plan.key is not None:
        keys = one_array(table.column(plan.key.name))
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        if plan.key.kind == "timestamp":
            keys = from_numpy(to_numbers(keys, plan.key, str))
        same = pc.fill_null(pc.equal(keys, pa.scalar(key, keys.type)), False)
        return [int(i) for i in np.flatnonzero(to_numpy(same))]
    if plan.grouping == "row":
        row = int(key) - rows_before
        return [row] if 0 <= row < table.num_rows else []
    return list(range(table.num_rows))


def _here(place: str, _: int) -> str:
    return place


def _series_shown(plan: PackPlan, key: Any) -> str:
    if plan.key is None:
        return ""
    shown = repr(key)
    if plan.key.kind == "timestamp":
        shown = show_time(key, plan.key.unit or "s")
    return f" of {plan.key.name} {shown}"


def _disorder(plan: PackPlan, key: Any, before: _TimedRow, behind: _TimedRow) -> TimeOrderError:
    name, is_equal = plan.options.time, before[1] == behind[1]
    advice = "Time(duplicates='first') (or last, keep)" if is_equal else "sort=True"
    if is_equal and plan.grouping == "wide" and plan.options.timezone is None:
        advice += "; local times repeat when daylight saving ends: pass Time(timezone=) for these"
    return TimeOrderError(
        f"the time {name!r}{_series_shown(plan, key)} does not increase: {behind[2]} in {behind[0]} "
        f"{'equals' if is_equal else 'is before'} {before[2]} in {before[0]}. Fix the rows, or pass {advice}.",
        parameter="duplicates" if is_equal else "sort",
        column=name,
        **place_fields(behind[0]),
    )


# Sealing: the one run that is left becomes the shards of a store, and the manifest that names them.

_PART = 1 << 20  # series handled at a time
_NAMES = 1 << 16  # names made at a time: they may be long


def seal_run(
    run: SortedRun,
    plan: PackPlan,
    *,
    work: Path,
    folder: Path,
    categories: Mapping[str, TextFile],
    missing: Mapping[str, int],
    sources: Sequence[SourceEntry],
    notes: Sequence[str],
) -> Manifest:
    """Move all files of the run to their final names, and return the manifest. The store exists only once that is written."""
    _refuse_values_as_categories(run, plan, categories)
    texts = {name: file.seal(folder) for name, file in categories.items()}
    starts: Sequence[int] | ColumnFile  # where each series begins
    if is_uniform := run.num_series == 0 or run.shortest == run.longest:
        starts = range(0, run.num_steps + 1, max(run.shortest, 1))
    else:
        starts = _write_offsets(run, work)
    offsets = starts.seal(folder) if isinstance(starts, ColumnFile) else None
    key_column = _key_column(run, plan, work)
    key = None if key_column is None else _seal_series(folder, *key_column, None, missing)
    entries = [key] if key is not None else []
    order = [*plan.schema.names, *(field.name for field in plan.step)]
    for field, file, tally in zip(plan.step, run.step, run.tallies, strict=True):
        values, words = file.seal(folder), texts.get(field.name)
        if field.has_mark:  # rules add and remove rows, so missing codes and times are those of the store
            entries.append(entry_of(field, values, words, missing=tally.nan))
        else:
            entries.append(entry_of(field, values, words, missing=missing.get(field.name, 0), nonfinite=tally.at(starts)))
    for field, column in zip(plan.series, run.series, strict=True):
        entries.append(_seal_series(folder, field, column, texts.get(field.name), missing))
    entries.sort(key=lambda entry: -1 if entry.level == "series" and entry is key else order.index(entry.name))
    manifest = Manifest(
        format="stoker",
        version=VERSION,
        digest="",
        num_series=run.num_series,
        num_steps=run.num_steps,
        length=max(run.shortest, 0) if is_uniform else None,
        offsets=offsets,
        key=key.name if key is not None else None,
        time=plan.options.time if plan.time_index is not None else None,
        columns=entries,
        notes=list(notes),
        sources=list(sources),
        freq=None if plan.options.freq is None else parse_frequency(plan.options.freq, "freq").text,
        sql=plan.options.sql,
    )
    return msgspec.structs.replace(manifest, version=format_version(manifest))


def _refuse_values_as_categories(run: SortedRun, plan: PackPlan, categories: Mapping[str, TextFile]) -> None:
    """Refuse a category of text most of whose values are numbers or times: the words came first, so the column was taken for words."""
    if all(source.typed for source in plan.sources):
        return
    csv = plan.options.csv
    for field, file in zip(plan.step, run.step, strict=True):
        is_file_name = field.name == plan.sources[0].name_column
        if field.kind != "category" or field.name in plan.options.dtypes or is_file_name:
            continue
        texts = categories[field.name].read(0, categories[field.name].rows)
        for mask in meanings(texts, decimal=csv.decimal, time_format=csv.time_format).values():
            is_value = np.append(to_numpy(mask), False)  # the last: the code -1
            rows = values = 0
            for start in range(0, file.rows if is_value.any() else 0, _PART):
                codes = file.read(start, min(start + _PART, file.rows))
                rows, values = rows + int((codes >= 0).sum()), values + int(is_value[codes].sum())
            if 2 * values > rows or 2 * int(is_value.sum()) > len(texts):
                kind = type_of(texts.filter(mask), conversion(csv))
                raise misfit_error(plan.sources, field.name, {field.name: kind}, plan.options.dtypes)


def _write_offsets(run: SortedRun, work: Path) -> ColumnFile:
    column = ColumnFile.create(_fresh(work, "offsets"), np.dtype("<i8"))
    column.append(np.zeros(1, dtype="<i8"))
    end = 0
    for start in range(0, run.num_series, _PART):
        ends = end + np.cumsum(run.counts.read(start, min(start + _PART, run.num_series)))
        column.append(ends)
        end = int(ends[-1])
    return column


def _fresh(work: Path, name: str) -> Path:
    """A path in the work folder, without the files of an earlier attempt."""
    path = work / f"final.{name}"
    remove_file(path)
    remove_file(path.with_name(path.name + "o"))
    return path


def _seal_series(
    folder: Path, field: ColumnPlan, column: ColumnFile | TextFile, texts: Text | None, missing: Mapping[str, int]
) -> ColumnEntry:
    """Seal a column with one value per series."""
    count = missing.get(field.name, 0)
    if isinstance(column, TextFile):
        return entry_of(field, None, column.seal(folder), missing=count)
    tally = NonFiniteCount()
    for start in range(0, column.rows, _PART):
        values = column.read(start, min(start + _PART, column.rows))
        tally.add(from_bfloat16(values) if field.kind == "bfloat16" else values, first_step=start)
    return entry_of(field, column.seal(folder), texts, missing=count, nonfinite=tally.at(None))


def _key_column(run: SortedRun, plan: PackPlan, work: Path) -> tuple[ColumnPlan, ColumnFile | TextFile] | None:
    """The column that names the series: the key, or the file (and column) each came from."""
    if plan.key is not None:
        return plan.key, run.keys
    if plan.grouping == "row" or (plan.grouping != "wide" and any(source.path is None for source in plan.sources)):
        return None
    name = "series"
    while name in {field.name for field in plan.step}:
        name += "_"
    field = ColumnPlan(name=name, arrow=pa.string(), level="series", kind="text", dtype=np.dtype("|u1"))
    column = TextFile.create(_fresh(work, "names"))
    names: Iterator[str] = (source.name for source in plan.sources)
    if plan.grouping == "wide":
        # The name of the column; that of its file is needed only where there are several.
        files = [f"{source.name}:" if len(plan.sources) > 1 else "" for source in plan.sources]
        schemas = zip(files, plan.schemas, strict=True)
        names = (file + name for file, schema in schemas for name in wide_series(schema, plan.options))
    while part := list(itertools.islice(names, _NAMES)):
        column.append(from_texts(part))
    return field, column
