"""The tasks of a pack on several machines, each a function of a plan that any process may run, also twice.

    inspect   some sources -> their schemas
    plan      all schemas -> which rows each task reads
    read      some rows of the sources -> sorted runs
    cut       all runs -> the borders of key ranges of equal work
    merge     one key range of all runs -> one run
    join      all ranges -> the store; its manifest is written last

A task leaves files in an `Exchange` and returns what names them, so a task that is run again leaves files that nothing names. The store
has the bytes of a pack by one process, because runs are merged in the order of the sources, and neither their borders nor those of
ranges show in the result. Categories get the codes of their first appearance: the lists of the tasks are joined in the order of the
sources.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from stoker._disk import check_path
from stoker._text import is_url
from stoker._types import Array
from stoker.errors import BadValueError, OptionError, SourceChangedError, StoreExistsError, StoreNotFoundError
from stoker.store.arrow import from_texts
from stoker.store.formats.base import DataSource, InferredTypeError, KnownSource, RowLocation
from stoker.store.manifest import MANIFEST_NAME, MAX_BYTES, WORK_NAME, Manifest, SourceEntry, dump
from stoker.store.object_storage import open_bucket
from stoker.store.pack.blocks import Shaper
from stoker.store.pack.exchange import Attempt, open_exchange
from stoker.store.pack.merge import CursorMark, merge_runs, seal_run
from stoker.store.pack.options import PackOptions
from stoker.store.pack.packer import (
    explaining,
    hash_source,
    list_sources,
    nothing_to_pack,
    plan_pack,
    refuse_settled,
    run_layout,
    run_notes,
    stat_source,
    widen_for_gaps,
)
from stoker.store.pack.plan import PackPlan, plan_with_types, settled_types
from stoker.store.pack.regular import IntegerGapsError, OffGridError, RulesMark, StepRules
from stoker.store.pack.sorted_runs import BackgroundWriter, RunLayout, RunMark, SortedRun, Sorter, UnsortedTimesError, read_ahead
from stoker.store.pack.stored_runs import HASH_BYTES, StoredRun, cut_runs, stored_texts
from stoker.store.pack.values import Categories, MissingIntegersError
from stoker.store.remote import uploading
from stoker.store.shards import ColumnMark, TextFile
from stoker.store.writer import make_work, new_store

TASKS = 64
"""Tasks of a small pack, as far as its sources can be cut."""
MIN_TASK_BYTES, MAX_TASK_BYTES = 8 << 20, 1 << 30
MAX_RUNS = 8
"""Runs that one task leaves; more are merged first, so that a range does not read too many."""
MIN_RANGE_BYTES, MAX_RANGE_BYTES, RANGES = 16 << 20, 256 << 20, 64
_JOINED = "joined"
"""The hash of the manifest that a join is about to commit."""
_ROW_BITS = 40  # bits of the number of a row, where rows are series without a key
Schemas = dict[tuple[str, int, int], bytes]
"""Schemas, as Arrow writes them, by the name, size and stamp of their source."""


@dataclass(frozen=True, kw_only=True)
class RowRange:
    """Rows of a source, from one of its borders to another (None: its end)."""

    source: int
    start: int
    stop: int | None


@dataclass(frozen=True, kw_only=True)
class SeenSource:
    """What must be equal wherever a source is read."""

    name: str
    num_bytes: int
    stamp: int  # the time of its last change, or what object storage has instead
    schema: int = 0  # which of the schemas of the plan it has

    @property
    def key(self) -> tuple[str, int, int]:
        """What changes when the source does."""
        return self.name, self.num_bytes, self.stamp


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What all tasks of a pack know. Paths, and what storage needs to be opened, are not in it."""

    number: str
    """What no other plan has: a process that knows this plan need not read it again."""
    sources: list[SeenSource]
    schemas: list[bytes]
    tasks: list[list[RowRange]]
    types: list[bytes] | None = None
    """Schemas that hold all values, where those of the first rows did not."""
    widened: bool = False
    """Whether integers became floats, because steps are missing."""


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """What reading some rows has left: sorted runs in a folder of the exchange, and what the manifest needs."""

    folder: str
    runs: list[RunMark]
    categories: dict[str, list[ColumnMark]]
    missing: dict[str, int]
    rows: dict[int, int]  # rows read, by source
    hashes: dict[int, str | None]  # of the sources that begin in this task


@dataclass(frozen=True, kw_only=True)
class RangeResult:
    """What merging one range has left."""

    folder: str
    run: RunMark
    merged: int  # rows that the rules merged and added
    added: int


class TypesChangedError(Exception):
    """The types of the plan do not hold all values: all tasks have to run again, with other types."""


# Plan


def start(path: str, *, replace: bool) -> None:
    """Refuse a store that may not be replaced, and remove what a pack to the same target has left that was killed."""
    if not replace and _read_manifest(path) is not None:
        raise StoreExistsError(f"{path} holds a store already. Choose another folder, or pass replace=True to replace that store.")
    open_exchange(path).clear()
    open_exchange(path).put("begun", b"")


def inspect_sources(source: object, options: PackOptions, part: int, count: int) -> Schemas:
    """The schemas of every `count`-th source, from number `part` on."""
    sources = list_sources(source, options, [])[part::count]
    return {seen.key: one.schema().serialize().to_pybytes() for one, seen in zip(sources, _seen(sources), strict=True)}


def make_task_plan(source: object, options: PackOptions, known: Schemas) -> TaskPlan:
    """The tasks of a pack; sources whose schemas are known are not opened."""
    schemas: dict[bytes, int] = {}
    seen: list[SeenSource] = []

    def note(sources: list[DataSource]) -> list[DataSource]:
        noted: list[DataSource] = []
        for one, there in zip(sources, _seen(sources), strict=True):
            data = known.get(there.key) or one.schema().serialize().to_pybytes()
            seen.append(replace(there, schema=schemas.setdefault(data, len(schemas))))
            noted.append(KnownSource(one, _schema(data)))
        return noted

    plan = plan_pack(source, options, note)
    return TaskPlan(number=os.urandom(8).hex(), sources=seen, schemas=list(schemas), tasks=_tasks(plan, seen))


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _seen(sources: list[DataSource]) -> list[SeenSource]:
    seen = []
    for source in sources:
        num_bytes, stamp = stat_source(source) or (source.num_bytes, 0)
        seen.append(SeenSource(name=source.name, num_bytes=num_bytes, stamp=stamp))
    return seen


def _tasks(plan: PackPlan, sources: list[SeenSource]) -> list[list[RowRange]]:
    """Neighbouring sources, or parts of one, of about the same size. One task may read many small files."""
    total = sum(source.num_bytes for source in sources)
    task_bytes = min(max(total // TASKS, MIN_TASK_BYTES), MAX_TASK_BYTES)
    tasks: list[list[RowRange]] = [[]]
    filled = 0
    for number, (source, seen) in enumerate(zip(plan.sources, sources, strict=True)):
        # The times of a wide table are checked from its first row on.
        for start, stop, num_bytes in (
            _cut(source, seen.num_bytes, task_bytes) if plan.grouping != "wide" else [(0, None, seen.num_bytes)]
        ):
            if tasks[-1] and filled + num_bytes > task_bytes:
                tasks.append([])
                filled = 0
            tasks[-1].append(RowRange(source=number, start=start, stop=stop))
            filled += num_bytes
    return tasks


def _cut(source: DataSource, num_bytes: int, task_bytes: int) -> list[tuple[int, int | None, int]]:
    """Parts of a source of at most `task_bytes`, as far as its borders allow: start, stop, and about how many bytes."""
    borders, num_rows = source.borders(), getattr(source, "num_rows", None)
    if num_bytes <= task_bytes or len(borders) < 2 or not num_rows:
        return [(0, None, num_bytes)]
    rows_each = max(1, num_rows * task_bytes // num_bytes)
    starts = [0]
    for before, border in zip(borders, [*borders[1:], num_rows], strict=True):
        if border - starts[-1] > rows_each and before > starts[-1]:
            starts.append(before)
    stops: list[int | None] = [*starts[1:], None]
    ends = [*starts[1:], num_rows]
    return [(start, stop, num_bytes * (end - start) // num_rows) for start, stop, end in zip(starts, stops, ends, strict=True)]


class PackTasks:
    """The tasks of one plan, as a process of the cluster sees them.

    Args:
        source: files, patterns, folders or URLs that this process sees.
        path: the folder or URL of the store; files of tasks are in `<path>.parts`.
        options: the options of the pack.
        plan: what all processes know.
        replace: whether a store may be there already.
    """

    def __init__(self, source: object, path: str, options: PackOptions, plan: TaskPlan, *, replace: bool) -> None:
        self._path, self._replace, self._tasks = path, replace, plan
        self._known_runs: list[StoredRun] = []
        self._exchange = open_exchange(path)
        if self._exchange.get("begun") is None:
            raise OptionError(
                f"a node of the cluster does not see {self._exchange.label}, where tasks leave their results. Pack to a folder that all "
                "nodes share, or to a URL.",
                path=self._exchange.label,
            )
        self._first_plan = plan_pack(source, options, self._know)
        self.plan = self._first_plan
        if plan.types is not None:
            self.plan = plan_with_types(self.plan, [_schema(data) for data in plan.types])
        if plan.widened:
            self.plan = widen_for_gaps(self.plan)

    def _know(self, listed: list[DataSource]) -> list[DataSource]:
        """The sources with the schemas of the plan; raises `SourceChangedError` where other sources are there."""
        planned = {source.key: source for source in self._tasks.sources}
        seen = _seen(listed)
        if [one.key for one in seen] != list(planned):
            other = next((source for source, now in zip(listed, seen, strict=True) if now.key not in planned), None)
            raise SourceChangedError(
                "the sources differ between nodes, or changed since the pack began: "
                f"{'their number or order' if other is None else other.name}. Pack again.",
                path=None if other is None else other.path,
            )
        schemas = [_schema(data) for data in self._tasks.schemas]
        return [KnownSource(one, schemas[planned[there.key].schema]) for one, there in zip(listed, seen, strict=True)]

    def settle(self) -> TaskPlan:
        """The plan with types that hold all values, found by reading all rows."""
        schemas = settled_types(self._first_plan, lambda rows: None)
        return replace(self._tasks, number=os.urandom(8).hex(), types=[schema.serialize().to_pybytes() for schema in schemas])

    # Read

    def read(self, number: int) -> ReadResult:
        """Sort the rows of task `number` into runs.

        Raises:
            TypesChangedError: the types that were inferred from the first rows do not hold all values.
        """
        try:
            with _explaining(self.plan), self._exchange.attempt(f"read-{number}") as attempt:
                result = self._read_rows(self._tasks.tasks[number], attempt)
                self._exchange.publish(attempt)
                return result
        except (InferredTypeError, MissingIntegersError) as error:
            if self._tasks.types is not None:
                refuse_settled(error)
            raise TypesChangedError from None

    def _category_files(self) -> dict[str, str]:
        return {name: f"categories{i}" for i, name in enumerate(_categories(self.plan))}

    def _layout(self, *, merged: bool = False) -> RunLayout:
        return replace(run_layout(self.plan, merged=merged), block_bytes=HASH_BYTES)

    def _read_rows(self, ranges: Sequence[RowRange], attempt: Attempt) -> ReadResult:
        plan, options = self.plan, self.plan.options
        stopping = threading.Event()
        rows: dict[int, int] = {}
        with contextlib.ExitStack() as stack:
            readers = stack.enter_context(ThreadPoolExecutor(options.num_readers + 1, thread_name_prefix="stoker-reader"))
            hasher = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="stoker-hasher"))
            stack.callback(stopping.set)
            hashes = {
                range_.source: hasher.submit(hash_source, plan.sources[range_.source], stopping)
                for range_ in ranges
                if range_.start == 0
            }
            writer = stack.enter_context(BackgroundWriter(options.working_bytes // 24))
            files = {
                name: TextFile.create(attempt.folder / file, block_bytes=HASH_BYTES)
                for name, file in self._category_files().items()
            }

            def append_texts(name: str, texts: list[str]) -> None:
                writer.submit(partial(files[name].append, from_texts(texts)))

            shaper = Shaper(plan, {name: Categories(name) for name in files}, append_texts)
            layout = self._layout()
            sorter = Sorter(attempt.folder, layout, writer, sort_time=options.sort, run_bytes=options.run_bytes)
            for part in ranges:
                rows[part.source] = rows.get(part.source, 0) + self._read_range(part, shaper, sorter, readers)
            if shaper.local_times is not None:
                shaper.local_times.finish()
            runs = sorter.finish()
            if len(runs) > MAX_RUNS:
                runs = [self._merge_task(runs, attempt.folder, writer)]
            writer.drain()
            found = {source: future.result() for source, future in hashes.items()}
            for source in rows:
                self._refuse_changed(source)
            result = ReadResult(
                folder=attempt.name,
                runs=[run.mark()() for run in runs],
                categories={name: file.mark() for name, file in files.items()},
                missing=shaper.missing,
                rows=rows,
                hashes=found,
            )
            for file in files.values():
                file.close()
            for run in runs:
                run.close()
            return result

    def _read_range(self, part: RowRange, shaper: Shaper, sorter: Sorter, readers: ThreadPoolExecutor) -> int:
        """Read some rows of a source; returns their number."""
        plan, options, source = self.plan, self.plan.options, self.plan.sources[part.source]
        location = RowLocation(part.start, part.start, part.stop)
        tasks = source.read(plan.schemas[part.source], start=location, chunk_bytes=options.chunk_bytes)
        first = part.source << _ROW_BITS if plan.grouping == "row" else 0
        ahead = read_ahead(tasks, readers, depth=options.num_readers + 1, max_bytes=options.limits.line_bytes)
        with closing(ahead) as chunks:
            for chunk in chunks:
                sorter.add(shaper.block(chunk, source, part.source, first + chunk.begin.row))
                location = chunk.end
        if location.row == 0 and part.stop is None and plan.grouping in ("file", "wide"):
            sorter.add(shaper.empty(part.source))
        return location.row - part.start

    def _merge_task(self, runs: list[SortedRun], folder: Path, writer: BackgroundWriter) -> SortedRun:
        """One run of the many of a task with little memory."""
        plan = self.plan
        layout = replace(run_layout(plan, merged=True, fill=not plan.options.fills_last), block_bytes=HASH_BYTES)
        out = SortedRun.create(folder, runs[-1].number + 1, layout, writer)
        merge_runs(
            runs,
            out,
            time_index=plan.time_index if plan.options.sort else None,
            unique_keys=plan.rows_are_series,
            memory_bytes=plan.options.working_bytes // 10,
            marks=None,
            progress=lambda marks, num_bytes: None,
        )
        out.finish()
        for run in runs:
            run.remove()
        return out

    def _refuse_changed(self, number: int) -> None:
        source, planned = self.plan.sources[number], self._tasks.sources[number]
        if stat_source(source) != (planned.num_bytes, planned.stamp):
            raise SourceChangedError(
                f"{source.label} changed while it was packed. Pack again when nothing writes to it.", path=source.path
            )

    # Merge

    def cut(self, results: list[ReadResult]) -> list[list[CursorMark]]:
        """The borders of key ranges of about equal work, in all runs."""
        plan, runs = self.plan, self._runs(results)
        row_bytes = sum(field.dtype.itemsize for field in plan.step)
        total = sum(run.num_steps for run in runs) * row_bytes
        count = max(min(RANGES, total // MIN_RANGE_BYTES), total // MAX_RANGE_BYTES, 1)
        # Rules and fills use the row before, so they need whole series.
        splits = not plan.options.has_rules and plan.options.missing != "ffill" and not plan.rows_are_series
        sort_by = plan.time_index if plan.options.sort else None
        return cut_runs(runs, count, time_index=sort_by, splits_series=splits)

    def merge(self, results: list[ReadResult], begin: list[CursorMark], end: list[CursorMark], number: int) -> RangeResult:
        """Merge the rows of all runs between two borders, as range `number`.

        Raises:
            TypesChangedError: steps are missing, which integers cannot say.
        """
        with self._widening(), self._exchange.attempt(f"merge-{number}") as attempt:
            with BackgroundWriter(self.plan.options.working_bytes // 24) as writer:
                out = SortedRun.create(attempt.folder, 0, self._final_layout(HASH_BYTES), writer)
                slices = [run.slice(begin[i], end[i]) for i, run in enumerate(self._runs(results))]
                merged, added = self._merge_into([slice for slice in slices if slice.num_series], out)
                out.finish()
                result = RangeResult(folder=attempt.name, run=out.mark()(), merged=merged, added=added)
                out.close()
            self._exchange.publish(attempt)
        return result

    @contextlib.contextmanager
    def _widening(self) -> Iterator[None]:
        """Where steps are missing and integers cannot say so, all tasks have to run again with floats."""
        try:
            with _explaining(self.plan):
                yield
        except IntegerGapsError as error:
            if self._tasks.widened:
                raise BadValueError(str(error), parameter="missing") from None
            raise TypesChangedError from None

    def _runs(self, results: list[ReadResult]) -> list[StoredRun]:
        """All runs, in the order of the sources, with the codes of the whole pack."""
        if self._known_runs:
            return self._known_runs  # a process merges many ranges of one plan
        plan, layout, runs = self.plan, self._layout(), []
        for result, table in zip(results, self._categories(results)[1], strict=True):
            step = {i: table[field.name] for i, field in enumerate(plan.step) if field.name in table}
            series = {i: table[field.name] for i, field in enumerate(plan.series) if field.name in table}
            for run in result.runs:
                runs.append(StoredRun(self._exchange, result.folder, run, layout, tables=step, series_tables=series))
        self._known_runs = runs
        return runs

    def _categories(self, results: list[ReadResult]) -> tuple[dict[str, list[str]], list[dict[str, Array]]]:
        """The strings of each category in the order of their first appearance, and for each task the codes of its own ones."""
        files = self._category_files()
        known = {name: Categories(name) for name in files}
        texts: dict[str, list[str]] = {name: [] for name in files}
        tables = []
        for result in results:
            table = {}
            for name, file in files.items():
                stored = stored_texts(self._exchange, f"{result.folder}/{file}", result.categories[name])
                codes, new = known[name].encode(stored.read(0, stored.rows).cast(pa.string()), "the sources")
                texts[name].extend(new)
                table[name] = np.append(codes, codes.dtype.type(-1))  # the last: a missing one stays missing
            tables.append(table)
        return texts, tables

    def _final_layout(self, block_bytes: int | None = None) -> RunLayout:
        layout = run_layout(self.plan, merged=True, fill=True)
        layout = replace(layout, strict_time=True) if self.plan.options.has_rules else layout
        return layout if block_bytes is None else replace(layout, block_bytes=block_bytes)

    def _merge_into(self, runs: Sequence[StoredRun], out: SortedRun, *, has_rules: bool = True) -> tuple[int, int]:
        """Merge runs and apply the rules; returns how many rows these merged and added."""
        plan = self.plan
        rules = StepRules(plan) if has_rules and plan.options.has_rules else None
        merge_runs(
            runs,
            out,
            time_index=plan.time_index if plan.options.sort else None,
            unique_keys=plan.rows_are_series,
            memory_bytes=plan.options.working_bytes // (40 if rules is not None else 10),
            marks=None,
            progress=lambda marks, num_bytes: None,
            rules=rules,
        )
        return (rules.num_merged, rules.num_added) if rules is not None else (0, 0)

    # Join

    def join(self, results: list[ReadResult], ranges: list[RangeResult]) -> None:
        """Write the store from all ranges; without any, from the runs. Does nothing if an earlier attempt has committed it."""
        if self._is_joined():
            return
        for number in range(len(self.plan.sources)):
            self._refuse_changed(number)
        with contextlib.ExitStack() as stack:
            is_remote = is_url(self._path)
            folder = stack.enter_context(uploading(self._path, replace=self._replace)) if is_remote else check_path(self._path)
            sources = [source.path for source in self.plan.sources]
            with self._widening(), new_store(folder, sources, replace=self._replace or is_remote) as commit:
                make_work(folder)
                with BackgroundWriter(self.plan.options.working_bytes // 24) as writer:
                    manifest = self._write(folder, writer, results, ranges)
                self._exchange.put(_JOINED, _key_of(dump(manifest)))
                commit(manifest)

    def _is_joined(self) -> bool:
        key, manifest = self._exchange.get(_JOINED), _read_manifest(self._path)
        return key is not None and manifest is not None and _key_of(manifest) == key

    def _write(self, folder: Path, writer: BackgroundWriter, results: list[ReadResult], ranges: list[RangeResult]) -> Manifest:
        plan, work = self.plan, folder / WORK_NAME
        out = SortedRun.create(work, 0, self._final_layout(), writer)
        merged, added = sum(range_.merged for range_ in ranges), sum(range_.added for range_ in ranges)
        for range_ in ranges:
            self._merge_into(
                [StoredRun(self._exchange, range_.folder, range_.run, self._layout(merged=True))], out, has_rules=False
            )
        if not ranges:
            merged, added = self._merge_into([run for run in self._runs(results) if run.num_series], out)
        rules = StepRules(plan) if plan.options.has_rules else None
        if rules is not None:
            rules.restore(RulesMark(merged=merged, added=added))
        out.finish()
        files: dict[str, TextFile] = {}
        for i, (name, texts) in enumerate(self._categories(results)[0].items()):
            files[name] = TextFile.create(work / f"categories{i}")
            files[name].append(from_texts(texts))
        sources = self._source_entries(results)
        if out.num_steps == 0:
            raise nothing_to_pack(plan)
        missing: dict[str, int] = {}
        for result in results:
            for name, count in result.missing.items():
                missing[name] = missing.get(name, 0) + count
        notes = run_notes(out, plan, sources, rules)
        manifest = seal_run(out, plan, work=work, folder=folder, categories=files, missing=missing, sources=sources, notes=notes)
        out.close()
        return manifest

    def _source_entries(self, results: list[ReadResult]) -> list[SourceEntry]:
        rows = [0] * len(self.plan.sources)
        hashes: dict[int, str | None] = {}
        for result in results:
            hashes.update(result.hashes)
            for number, count in result.rows.items():
                rows[number] += count
        return [
            SourceEntry(name=source.name, num_bytes=source.num_bytes, num_rows=rows[i], xxh3=hashes[i])
            for i, source in enumerate(self.plan.sources)
        ]


def _read_manifest(path: str) -> bytes | None:
    """The manifest of the store at the target, if there is one."""
    if not is_url(path):
        file = check_path(path) / MANIFEST_NAME
        return file.read_bytes() if file.is_file() else None
    try:
        return open_bucket(path).get(MANIFEST_NAME, MAX_BYTES)[0]
    except StoreNotFoundError:
        return None


def _categories(plan: PackPlan) -> list[str]:
    return [column.name for column in (*plan.step, *plan.series) if column.kind == "category"]


def _key_of(manifest: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(manifest).encode()


@contextlib.contextmanager
def _explaining(plan: PackPlan) -> Iterator[None]:
    """As `explaining`, where rows that are series have the number of their source in their key."""
    try:
        with explaining(plan) if plan.grouping != "row" else contextlib.nullcontext():
            yield
    except (UnsortedTimesError, OffGridError) as error:
        number, error.key = int(error.key) >> _ROW_BITS, int(error.key) & ((1 << _ROW_BITS) - 1)
        with explaining(replace(plan, sources=[plan.sources[number]], schemas=[plan.schemas[number]])):
            raise
