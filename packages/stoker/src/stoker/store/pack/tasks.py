"""The tasks of a pack on several machines, each a function of a plan that any process may run, also twice.

    plan      the schemas of all sources -> which rows each task reads
    read      some rows of the sources -> sorted runs
    join      all runs -> the store; its manifest is written last

A task leaves files in an `Exchange` and returns what names them, so a task that is run again leaves files that nothing names. The store
has the bytes of a pack by one process, because runs are merged in the order of the sources, and their borders do not show in the result.
Categories get the codes of their first appearance: the lists of the tasks are joined in the order of the
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
from stoker.store.pack.merge import seal_run
from stoker.store.pack.options import PackOptions
from stoker.store.pack.packer import (
    category_files,
    explaining,
    hash_source,
    make_shaper,
    merge_group,
    nothing_to_pack,
    plan_pack,
    refuse_settled,
    run_layout,
    run_notes,
    sort_rows,
    stat_source,
    widen_for_gaps,
)
from stoker.store.pack.plan import PackPlan, plan_with_types, settled_types
from stoker.store.pack.regular import IntegerGapsError, OffGridError
from stoker.store.pack.sorted_runs import (
    BackgroundWriter,
    ReadableRun,
    RunLayout,
    RunMark,
    Sorter,
    UnsortedTimesError,
)
from stoker.store.pack.stored_runs import HASH_BYTES, stored_run, stored_texts
from stoker.store.pack.values import Categories, MissingIntegersError
from stoker.store.remote import uploading
from stoker.store.shards import ColumnMark, TextFile
from stoker.store.writer import make_work, new_store

TASKS = 64
"""Tasks of a small pack, as far as its sources can be cut."""
MIN_TASK_BYTES, MAX_TASK_BYTES = 8 << 20, 1 << 30
MAX_RUNS = 8
"""Runs that one task leaves; more are merged first, so that the join does not read too many."""
_JOINED = "joined"
"""The hash of the manifest that a join is about to commit."""
_ROW_BITS = 40  # bits of the number of a row, where rows are series without a key
_INSPECTORS = 16  # sources that are opened at a time


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


class TypesChangedError(Exception):
    """The types of the plan do not hold all values: all tasks have to run again, with other types."""


# Plan


def start(path: str, *, replace: bool) -> None:
    """Refuse a store that may not be replaced, and remove what a pack to the same target has left that was killed."""
    if not replace and _read_manifest(path) is not None:
        raise StoreExistsError(f"{path} holds a store already. Choose another folder, or pass replace=True to replace that store.")
    open_exchange(path).clear()
    open_exchange(path).put("begun", b"")


def make_task_plan(source: object, options: PackOptions) -> TaskPlan:
    """The tasks of a pack; several sources are opened at a time."""
    schemas: dict[bytes, int] = {}
    seen: list[SeenSource] = []

    def note(sources: list[DataSource]) -> list[DataSource]:
        with ThreadPoolExecutor(_INSPECTORS) as pool:
            opened = list(pool.map(lambda source: source.schema(), sources))
        for schema, stats in zip(opened, _seen(sources), strict=True):
            data = schema.serialize().to_pybytes()
            seen.append(replace(stats, schema=schemas.setdefault(data, len(schemas))))
        return [KnownSource(source, schema) for source, schema in zip(sources, opened, strict=True)]

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
        if [now.key for now in seen] != list(planned):
            other = next((source for source, now in zip(listed, seen, strict=True) if now.key not in planned), None)
            raise SourceChangedError(
                "the sources differ between nodes, or changed since the pack began: "
                f"{'their number or order' if other is None else other.name}. Pack again.",
                path=None if other is None else other.path,
            )
        schemas = [_schema(data) for data in self._tasks.schemas]
        return [KnownSource(now, schemas[planned[there.key].schema]) for now, there in zip(listed, seen, strict=True)]

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
                return self._read_rows(self._tasks.tasks[number], attempt)
        except (InferredTypeError, MissingIntegersError) as error:
            if self._tasks.types is not None:
                refuse_settled(error)
            raise TypesChangedError from None

    def _layout(self) -> RunLayout:
        return replace(run_layout(self.plan), block_bytes=HASH_BYTES)

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
                for name, file in category_files(self.plan).items()
            }

            shaper = make_shaper(plan, files, writer)
            sorter = Sorter(attempt.folder, self._layout(), writer, sort_time=options.sort, run_bytes=options.run_bytes)
            for part in ranges:
                rows[part.source] = rows.get(part.source, 0) + self._read_range(part, shaper, sorter, readers)
            if shaper.local_times is not None:
                shaper.local_times.finish()
            runs = sorter.finish()
            if len(runs) > MAX_RUNS:
                number = runs[-1].number + 1
                out, _ = merge_group(plan, runs, attempt.folder, number, writer, is_last=False, block_bytes=HASH_BYTES)
                for run in runs:
                    run.remove()
                runs = [out]
            writer.drain()
            digests = {source: future.result() for source, future in hashes.items()}
            for source in rows:
                self._refuse_changed(source)
            result = ReadResult(
                folder=attempt.name,
                runs=[run.mark()() for run in runs],
                categories={name: file.mark() for name, file in files.items()},
                missing=shaper.missing,
                rows=rows,
                hashes=digests,
            )
            for file in files.values():
                file.close()
            for run in runs:
                run.close()
            return result

    def _read_range(self, part: RowRange, shaper: Shaper, sorter: Sorter, readers: ThreadPoolExecutor) -> int:
        """Read some rows of a source; returns their number."""
        location = RowLocation(part.start, part.start, part.stop)
        rows_before = part.source << _ROW_BITS if self.plan.grouping == "row" else 0
        with closing(sort_rows(self.plan, part.source, location, shaper, sorter, readers, rows_before)) as parts:
            return max((end.row for end, _ in parts), default=part.start) - part.start

    def _refuse_changed(self, number: int) -> None:
        source, planned = self.plan.sources[number], self._tasks.sources[number]
        if stat_source(source) != (planned.num_bytes, planned.stamp):
            raise SourceChangedError(
                f"{source.label} changed while it was packed. Pack again when nothing writes to it.", path=source.path
            )

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

    def _runs(self, results: list[ReadResult], tables: list[dict[str, Array]]) -> list[ReadableRun]:
        """All runs, in the order of the sources, with the codes of the whole pack."""
        plan, layout = self.plan, self._layout()
        runs: list[ReadableRun] = []
        for result, table in zip(results, tables, strict=True):
            parts = {
                f"{kind}{i}": field.name
                for kind, fields in (("c", plan.step), ("s", plan.series))
                for i, field in enumerate(fields)
            }
            codes = {part: table[name] for part, name in parts.items() if name in table}
            runs += [stored_run(self._exchange, result.folder, mark, layout, codes) for mark in result.runs]
        return runs

    def _categories(self, results: list[ReadResult]) -> tuple[dict[str, list[str]], list[dict[str, Array]]]:
        """The strings of each category in the order of their first appearance, and for each task the codes of its own ones."""
        files = category_files(self.plan)
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

    # Join

    def join(self, results: list[ReadResult]) -> bool:
        """Merge all runs into the store. Does nothing if an earlier attempt has committed it.

        Raises:
            TypesChangedError: steps are missing, which integers cannot say.
        """
        key, committed = self._exchange.get(_JOINED), _read_manifest(self._path)
        if key is not None and committed is not None and _key_of(committed) == key:
            return True
        for number in range(len(self.plan.sources)):
            self._refuse_changed(number)
        with contextlib.ExitStack() as stack:
            is_remote = is_url(self._path)
            folder = stack.enter_context(uploading(self._path, replace=self._replace)) if is_remote else check_path(self._path)
            sources = [source.path for source in self.plan.sources]
            with self._widening(), new_store(folder, sources, replace=self._replace or is_remote) as commit:
                make_work(folder)
                with BackgroundWriter(self.plan.options.working_bytes // 24) as writer:
                    manifest = self._write(folder, writer, results)
                self._exchange.put(_JOINED, _key_of(dump(manifest)))
                commit(manifest)
        return True

    def _write(self, folder: Path, writer: BackgroundWriter, results: list[ReadResult]) -> Manifest:
        plan, work = self.plan, folder / WORK_NAME
        all_texts, tables = self._categories(results)
        out, rule_counts = merge_group(plan, self._runs(results, tables), work, 0, writer, is_last=True)
        files: dict[str, TextFile] = {}
        for i, (name, texts) in enumerate(all_texts.items()):
            files[name] = TextFile.create(work / f"categories{i}")
            files[name].append(from_texts(texts))
        sources = self._source_entries(results)
        if out.num_steps == 0:
            raise nothing_to_pack(plan)
        missing: dict[str, int] = {}
        for result in results:
            for name, count in result.missing.items():
                missing[name] = missing.get(name, 0) + count
        notes = run_notes(out, plan, sources, *rule_counts)
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
