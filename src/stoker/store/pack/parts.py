"""A pack that several processes share: `PartedPack` runs its tasks, each a pure function of the plan, in any order and on any machine.

    read      some rows of the sources -> sorted runs
    cut       all runs -> the borders of key ranges of equal work
    merge     one key range of all runs -> one run
    join      all ranges -> the store; its manifest is written last

Tasks leave their results in an `Exchange`. A task that is run again verifies what is there, so a kill costs the tasks that were running.
Merges may be left out: `join` does those that are left. The store has the bytes of a pack by one process, because runs are merged in
the order of the sources, and neither their borders nor those of ranges show in the result. Categories get the codes of their first
appearance: the lists of the tasks are joined in the order of the sources.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from stoker._clock import now_ns
from stoker._disk import check_path
from stoker._text import is_url
from stoker._types import Array
from stoker.errors import (
    BadValueError,
    OptionError,
    PartsMissingError,
    SourceChangedError,
    StoreDamagedError,
    StoreExistsError,
    StoreNotFoundError,
)
from stoker.store.formats.base import InferredTypeError, RowLocation
from stoker.store.manifest import MANIFEST_NAME, MAX_BYTES, WORK_NAME, Manifest, SourceEntry, dump
from stoker.store.object_storage import open_bucket
from stoker.store.pack.blocks import Shaper
from stoker.store.pack.exchange import Attempt, attempt_of, mark_name, open_exchange
from stoker.store.pack.merge import CursorMark, merge_runs, seal_run
from stoker.store.pack.options import PackOptions
from stoker.store.pack.packer import (
    Progress,
    explaining,
    hash_source,
    nothing_to_pack,
    refuse_settled,
    run_layout,
    run_notes,
    stat_source,
    widen_for_gaps,
)
from stoker.store.pack.plan import PackPlan, plan_with_types, settled_types
from stoker.store.pack.regular import IntegerGapsError, OffGridError, RulesMark, StepRules
from stoker.store.pack.shared_plan import JOINED, PLAN, RowRange, Schemas, agree, has_plan
from stoker.store.pack.sorted_runs import BackgroundWriter, RunLayout, RunMark, SortedRun, Sorter, UnsortedTimesError, read_ahead
from stoker.store.pack.stored_runs import HASH_BYTES, StoredRun, cut_runs, stored_texts
from stoker.store.pack.values import Categories, MissingIntegersError
from stoker.store.remote import uploading
from stoker.store.shards import ColumnMark, TextFile, from_texts
from stoker.store.writer import make_work, new_store

MAX_RUNS = 8
"""Runs that one task leaves; more are merged first, so that a range does not read too many."""
MIN_RANGE_BYTES, MAX_RANGE_BYTES, RANGES = 16 << 20, 256 << 20, 64
Reports = Callable[[float, int], None]
_REPORT_NS = 2 * 10**9
_TYPES, _WIDENED, _PARTS = "types", "widened", "parts"
_ROW_BITS = 40  # bits of the number of a row, where rows are series without a key


class ReadMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of reading some rows: sorted runs, and what the manifest needs."""

    runs: list[RunMark]
    categories: dict[str, list[ColumnMark]]
    missing: dict[str, int]
    rows: dict[int, int]  # rows read, by source
    hashes: dict[int, str | None]  # of the sources that begin in this task


class RangeMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of merging one range."""

    run: RunMark
    merged: int  # rows that the rules merged and added
    added: int


class TaskReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a task is."""

    share: float
    rows: int


class PartedPack:
    """One process's view of a pack that several processes share.

    Args:
        source: as for `pack`, but no table in memory.
        path: the folder or URL of the store; results of tasks are in `<path>.parts`.
        options: the options of the pack; all processes need the same.
        progress: called with the phase, the share of it that is done, and rows.
        may_write: whether this process may begin the pack.
        known: schemas of sources that others have found.
        replace: whether a store may be there already.
    """

    def __init__(
        self,
        source: object,
        path: str,
        options: PackOptions,
        progress: Progress,
        *,
        may_write: bool = True,
        known: Schemas | None = None,
        replace: bool = False,
    ) -> None:
        self._folder = None if is_url(path) else check_path(path)
        self._path = path
        self._replace = replace
        self._progress = progress
        if options.timezone is not None and options.ambiguous == "infer":
            raise OptionError(
                "ambiguous='infer' follows the rows of a series through all files, which parts cannot. Pass ambiguous='first', 'last' or "
                "'error', or pack with one process."
            )
        self._exchange = open_exchange(path)
        is_begun(path, replace=replace)
        shared, self._first_plan = agree(self._exchange, source, options, may_write=may_write, known=known)
        self.tasks = shared.tasks
        self._id = xxhash.xxh3_64_hexdigest(msgspec.json.encode(shared))
        """Part of the names of what tasks leave: a task of an earlier pack that still runs leaves nothing that counts for this one."""
        self._stamps = shared.sources

    # Types: the same in all processes, also where those of the first rows turn out not to hold all values.

    @property
    def plan(self) -> PackPlan:
        """The plan with the types that are known now."""
        types, is_widened = self._exchange.get(f"{_TYPES}-{self._id}"), self._exchange.get(f"{_WIDENED}-{self._id}") is not None
        plan = self._first_plan
        if types is not None:
            found = msgspec.json.decode(types, type=list[str])
            plan = plan_with_types(plan, [pa.ipc.read_schema(pa.py_buffer(base64.b64decode(one))) for one in found])
        return widen_for_gaps(plan) if is_widened else plan

    @property
    def _suffix(self) -> str:
        """Part of the names of tasks: results with other types do not count."""
        is_settled, is_widened = (
            self._exchange.get(f"{_TYPES}-{self._id}") is not None,
            self._exchange.get(f"{_WIDENED}-{self._id}") is not None,
        )
        return ("s" if is_settled else "") + ("w" if is_widened else "")

    def _settle(self, error: InferredTypeError | MissingIntegersError) -> None:
        """Find types that hold all values by reading all rows, for all processes."""
        if "s" in self._suffix:
            refuse_settled(error)
        schemas = settled_types(self._first_plan, lambda rows: self._progress("settling types", 0.0, rows))
        encoded = [base64.b64encode(schema.serialize().to_pybytes()).decode() for schema in schemas]
        self._exchange.create(f"{_TYPES}-{self._id}", msgspec.json.encode(encoded))

    # Read

    def read(self, number: int) -> None:
        """Run task `number`: sort its rows into runs, unless that is done and undamaged."""
        while True:
            suffix = self._suffix
            task = f"read-{number}-{self._id}{suffix}"
            if self._has(task):
                return
            plan = self.plan
            try:
                with _explaining(plan), self._exchange.attempt(task) as attempt:
                    mark = self._read_rows(plan, self.tasks[number], attempt)
                    self._exchange.publish(attempt, msgspec.json.encode(mark))
            except (InferredTypeError, MissingIntegersError) as error:
                if self._suffix == suffix:
                    self._settle(error)

    def _has(self, task: str) -> bool:
        """Whether a task of reading is done; a result that is damaged is removed."""
        data = self._exchange.get(mark_name(task))
        if data is None:
            return False
        try:
            folder, mark = _decode(data, ReadMark)
            for run in mark.runs:
                StoredRun(self._exchange, folder, run, self._layout()).verify()
            for name, marks in mark.categories.items():
                texts = stored_texts(self._exchange, f"{folder}/{self._category_files()[name]}", marks)
                texts.read(0, texts.rows)
        except StoreDamagedError:
            self._exchange.remove(mark_name(task))
            return False
        return True

    def _category_files(self) -> dict[str, str]:
        plan = self._first_plan
        # Types change, but not which columns are there and which of them hold strings.
        return {name: f"categories{i}" for i, name in enumerate(_categories(plan))}

    def _layout(self, *, merged: bool = False) -> RunLayout:
        return replace(run_layout(self.plan, merged=merged), block_bytes=HASH_BYTES)

    def _read_rows(self, plan: PackPlan, ranges: Sequence[RowRange], attempt: Attempt) -> ReadMark:
        options = plan.options
        stopping = threading.Event()
        rows: dict[int, int] = {}
        with contextlib.ExitStack() as stack:
            readers = stack.enter_context(ThreadPoolExecutor(options.num_readers + 1, thread_name_prefix="stoker-reader"))
            hasher = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="stoker-hasher"))
            stack.callback(stopping.set)
            hashes = {
                one.source: hasher.submit(hash_source, plan.sources[one.source], stopping) for one in ranges if one.start == 0
            }
            writer = stack.enter_context(BackgroundWriter(options.working_bytes // 24))
            files = {
                name: TextFile.create(attempt.folder / f"categories{i}", block_bytes=HASH_BYTES)
                for i, name in enumerate(_categories(plan))
            }

            def append_texts(name: str, texts: list[str]) -> None:
                writer.submit(partial(files[name].append, from_texts(texts)))

            shaper = Shaper(plan, {name: Categories(name) for name in files}, append_texts)
            layout = self._layout()
            sorter = Sorter(attempt.folder, layout, writer, sort_time=options.sort, run_bytes=options.run_bytes)
            reporter = _Reporter(self, attempt, "reading")
            for i, part in enumerate(ranges):
                for number, done in self._read_range(plan, part, shaper, sorter, readers):
                    rows[part.source] = rows.get(part.source, 0) + number
                    reporter((i + done) / len(ranges), sum(rows.values()))
                rows.setdefault(part.source, 0)
            if shaper.local_times is not None:
                shaper.local_times.finish()
            runs = sorter.finish()
            if len(runs) > MAX_RUNS:
                runs = [self._merge_task(plan, runs, attempt.folder, writer)]
            writer.drain()
            found = {source: future.result() for source, future in hashes.items()}
            for source in rows:
                self._refuse_changed(plan, source)
            mark = ReadMark(
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
            return mark

    def _read_range(
        self, plan: PackPlan, part: RowRange, shaper: Shaper, sorter: Sorter, readers: ThreadPoolExecutor
    ) -> Iterator[tuple[int, float]]:
        """Read some rows of a source; yields how many rows came, and the share of the range that is done."""
        options, source = plan.options, plan.sources[part.source]
        start = RowLocation(part.start, part.start, part.stop)
        tasks = source.read(plan.schemas[part.source], start=start, chunk_bytes=options.chunk_bytes)
        end, location = part.stop or source.num_positions or 0, start
        first = part.source << _ROW_BITS if plan.grouping == "row" else 0
        ahead = read_ahead(tasks, readers, depth=options.num_readers + 1, max_bytes=options.limits.line_bytes)
        with closing(ahead) as chunks:
            for chunk in chunks:
                sorter.add(shaper.block(chunk, source, part.source, first + chunk.begin.row))
                location, before = chunk.end, location
                done = (location.position - part.start) / max(end - part.start, 1) if end else 0.0
                yield location.row - before.row, min(done, 1.0)
        if location.row == 0 and part.stop is None and plan.grouping in ("file", "wide"):
            sorter.add(shaper.empty(part.source))

    def _merge_task(self, plan: PackPlan, runs: list[SortedRun], folder: Path, writer: BackgroundWriter) -> SortedRun:
        """One run of the many of a task with little memory."""
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

    def _refuse_changed(self, plan: PackPlan, number: int) -> None:
        source, stamp = plan.sources[number], self._stamps[number]
        if stat_source(source) != (stamp.num_bytes, stamp.stamp):
            raise SourceChangedError(
                f"{source.label} changed while it was packed. Remove {self._exchange.label} and run all parts again."
            )

    # Merge

    def missing_tasks(self) -> list[int]:
        """Tasks of reading that are not done."""
        suffix = self._suffix
        return [i for i in range(len(self.tasks)) if self._exchange.get(mark_name(f"read-{i}-{self._id}{suffix}")) is None]

    @cached_property
    def _results(self) -> tuple[list[tuple[str, ReadMark]], str]:
        """The results of all tasks of reading, and a hash of them that names what depends on them."""
        hasher, found, missing, suffix = xxhash.xxh3_64(), [], [], self._suffix
        for number in range(len(self.tasks)):
            data = self._exchange.get(mark_name(f"read-{number}-{self._id}{suffix}"))
            if data is None:
                missing.append(number)
                continue
            hasher.update(data)
            found.append(_decode(data, ReadMark))
        if missing:
            raise PartsMissingError(self._describe_missing(missing))
        return found, hasher.hexdigest() + suffix

    def _describe_missing(self, missing: list[int]) -> str:
        reports = self._exchange.reports()
        shares = [msgspec.json.decode(data, type=TaskReport).share for task, data in reports.items() if task.startswith("read-")]
        running = f" ({len(shares):,} of them are being read, {sum(shares) / len(shares):.0%} done)" if shares else ""
        recorded = self._exchange.get(f"{_PARTS}-{self._id}")
        what = f"{len(missing):,} of {len(self.tasks):,} tasks are not done{running}"
        if recorded is None:
            return f"{self._path} cannot be joined yet: {what}. Run all parts first: --part 1/N to --part N/N."
        count = int(recorded)
        parts = sorted({number % count + 1 for number in missing})
        shown = ", ".join(f"{part}/{count}" for part in parts[:16]) + (" …" if len(parts) > 16 else "")
        settled = " The types of some columns changed meanwhile, so earlier results do not count." if self._suffix else ""
        return f"{self._path} cannot be joined yet: {what}.{settled} Run --part {shown}."

    @cached_property
    def _categories(self) -> tuple[dict[str, list[str]], list[dict[str, Array]]]:
        """The strings of each category in the order of their first appearance, and for each task the codes of its own ones."""
        files = self._category_files()
        known = {name: Categories(name) for name in files}
        texts: dict[str, list[str]] = {name: [] for name in files}
        tables = []
        for folder, mark in self._results[0]:
            table = {}
            for name, file in files.items():
                stored = stored_texts(self._exchange, f"{folder}/{file}", mark.categories[name])
                codes, new = known[name].encode(stored.read(0, stored.rows).cast(pa.string()), "the sources")
                texts[name].extend(new)
                table[name] = np.append(codes, codes.dtype.type(-1))  # the last: a missing one stays missing
            tables.append(table)
        return texts, tables

    @cached_property
    def _runs(self) -> list[StoredRun]:
        """All runs, in the order of the sources, with the codes of the whole pack."""
        plan, layout, found = self.plan, self._layout(), []
        for (folder, mark), table in zip(self._results[0], self._categories[1], strict=True):
            step = {i: table[field.name] for i, field in enumerate(plan.step) if field.name in table}
            series = {i: table[field.name] for i, field in enumerate(plan.series) if field.name in table}
            for run in mark.runs:
                found.append(StoredRun(self._exchange, folder, run, layout, tables=step, series_tables=series))
        return found

    @cached_property
    def _cuts(self) -> list[list[CursorMark]]:
        """The borders of the ranges: made once, by the first process that asks."""
        name = f"cuts-{self._results[1]}"
        data = self._exchange.get(name)
        if data is None:
            plan = self.plan
            row_bytes = sum(field.dtype.itemsize for field in plan.step)
            total = sum(run.num_steps for run in self._runs) * row_bytes
            count = max(min(RANGES, total // MIN_RANGE_BYTES), total // MAX_RANGE_BYTES, 1)
            # Rules and fills use the row before, so they need whole series.
            splits = not plan.options.has_rules and plan.options.missing != "ffill" and not plan.rows_are_series
            sort_by = plan.time_index if plan.options.sort else None
            cuts = cut_runs(self._runs, count, time_index=sort_by, splits_series=splits)
            data = msgspec.json.encode(cuts)
            if not self._exchange.create(name, data):
                data = self._exchange.get(name) or b"[]"
        return msgspec.json.decode(data, type=list[list[CursorMark]])

    @property
    def num_ranges(self) -> int:
        """Ranges that can be merged one by one, once all rows are read."""
        return len(self._cuts) - 1

    def missing_ranges(self) -> list[int]:
        """Ranges that were not merged yet."""
        return [i for i in range(self.num_ranges) if self._exchange.get(mark_name(self._range_task(i))) is None]

    def _range_task(self, number: int) -> str:
        return f"merge-{number}-{self._results[1]}"

    def merge(self, number: int) -> None:
        """Merge range `number` of all runs, unless that is done."""
        task = self._range_task(number)
        if self._merged(task) is not None:
            return
        plan = self.plan
        with self._widening(plan), self._exchange.attempt(task) as attempt:
            with BackgroundWriter(plan.options.working_bytes // 24) as writer:
                out = SortedRun.create(attempt.folder, 0, self._final_layout(plan, HASH_BYTES), writer)
                rules = self._merge_range(plan, number, out, _Reporter(self, attempt, "merging"))
                out.finish()
                mark = RangeMark(run=out.mark()(), merged=rules.num_merged if rules else 0, added=rules.num_added if rules else 0)
                out.close()
            self._exchange.publish(attempt, msgspec.json.encode(mark))

    @contextlib.contextmanager
    def _widening(self, plan: PackPlan) -> Iterator[None]:
        """Where steps are missing and integers cannot say so, all processes have to begin again with floats."""
        try:
            with _explaining(plan):
                yield
        except IntegerGapsError as error:
            if "w" in self._suffix:
                raise BadValueError(str(error)) from None
            self._exchange.create(f"{_WIDENED}-{self._id}", b"")
            raise PartsMissingError(self._describe_missing(self.missing_tasks())) from None

    def _merged(self, task: str) -> tuple[str, RangeMark] | None:
        """A merged range, if it is there and undamaged; otherwise its mark is removed."""
        data = self._exchange.get(mark_name(task))
        if data is None:
            return None
        try:
            folder, mark = _decode(data, RangeMark)
            StoredRun(self._exchange, folder, mark.run, self._layout(merged=True)).verify()
        except StoreDamagedError:
            self._exchange.remove(mark_name(task))
            return None
        return folder, mark

    def _final_layout(self, plan: PackPlan, block_bytes: int | None = None) -> RunLayout:
        layout = run_layout(plan, merged=True, fill=True)
        layout = replace(layout, strict_time=True) if plan.options.has_rules else layout
        return layout if block_bytes is None else replace(layout, block_bytes=block_bytes)

    def _merge_range(self, plan: PackPlan, number: int, out: SortedRun, report: Reports) -> StepRules | None:
        """Merge the slices of a range into a run, and apply the rules; returns these with their counts."""
        begin, end = self._cuts[number], self._cuts[number + 1]
        slices = [run.slice(begin[i], end[i]) for i, run in enumerate(self._runs)]
        return self._merge_into(plan, [one for one in slices if one.num_series], out, report)

    def _merge_into(
        self, plan: PackPlan, runs: Sequence[StoredRun], out: SortedRun, report: Reports, *, has_rules: bool = True
    ) -> StepRules | None:
        rules = StepRules(plan) if has_rules and plan.options.has_rules else None
        total, before = sum(run.num_steps for run in runs) or 1, out.num_steps
        merge_runs(
            runs,
            out,
            time_index=plan.time_index if plan.options.sort else None,
            unique_keys=plan.rows_are_series,
            memory_bytes=plan.options.working_bytes // (40 if rules is not None else 10),
            marks=None,
            progress=lambda marks, num_bytes: report(min((out.num_steps - before) / total, 1.0), out.num_steps),
            rules=rules,
        )
        return rules

    # Join

    def join(self) -> None:
        """Write the store from the results of all tasks, and remove these.

        Raises:
            PartsMissingError: some rows were not read; the message names the parts to run.
        """
        if finish_join(self._path):
            return
        _ = self._results  # before anything is written: parts may be missing
        with contextlib.ExitStack() as stack:
            folder = self._folder or stack.enter_context(uploading(self._path, replace=self._replace))
            self._join_into(folder)
        clear_parts(self._path)

    def _join_into(self, folder: Path) -> None:
        plan = self.plan
        for number in range(len(plan.sources)):
            self._refuse_changed(plan, number)
        sources, can_replace = [one.path for one in plan.sources], self._replace or self._folder is None
        with self._widening(plan), new_store(folder, sources, replace=can_replace) as commit:
            make_work(folder)
            with BackgroundWriter(plan.options.working_bytes // 24) as writer:
                manifest = self._write(plan, folder, writer)
            self._exchange.create(JOINED, _key_of(dump(manifest)))
            commit(manifest)

    def _write(self, plan: PackPlan, folder: Path, writer: BackgroundWriter) -> Manifest:
        work = folder / WORK_NAME
        out = SortedRun.create(work, 0, self._final_layout(plan), writer)
        rules = StepRules(plan) if plan.options.has_rules else None
        merged, added = self._merge_all(plan, out)
        if rules is not None:
            rules.restore(RulesMark(merged=merged, added=added))
        out.finish()
        files: dict[str, TextFile] = {}
        for i, name in enumerate(_categories(plan)):
            files[name] = TextFile.create(work / f"categories{i}")
            files[name].append(from_texts(self._categories[0][name]))
        sources = self._source_entries(plan)
        if out.num_steps == 0:
            raise nothing_to_pack(plan)
        missing: dict[str, int] = {}
        for _, mark in self._results[0]:
            for name, count in mark.missing.items():
                missing[name] = missing.get(name, 0) + count
        self._progress("sealing", 0.0, out.num_steps)
        manifest = seal_run(
            out,
            plan,
            work=work,
            folder=folder,
            categories=files,
            missing=missing,
            sources=sources,
            notes=run_notes(out, plan, sources, rules),
        )
        out.close()
        self._progress("sealing", 1.0, out.num_steps)
        return manifest

    def _merge_all(self, plan: PackPlan, out: SortedRun) -> tuple[int, int]:
        """Append all ranges to a run: those that were merged as they are, the others by merging them now."""
        counts = [0, 0]
        total = sum(run.num_steps for run in self._runs) or 1

        def report(share: float, rows: int) -> None:
            self._progress("merging", min(rows / total, 1.0), rows)

        if self._exchange.get(f"cuts-{self._results[1]}") is None:  # no range was merged
            rules = self._merge_into(plan, [run for run in self._runs if run.num_series], out, report)
            return (rules.num_merged, rules.num_added) if rules is not None else (0, 0)
        for number in range(self.num_ranges):
            found = self._merged_or_none(number)
            if found is None:
                rules = self._merge_range(plan, number, out, report)
                counts = [counts[0] + (rules.num_merged if rules else 0), counts[1] + (rules.num_added if rules else 0)]
            else:
                folder, mark = found
                run = StoredRun(self._exchange, folder, mark.run, self._layout(merged=True))
                try:
                    self._merge_into(plan, [run], out, report, has_rules=False)
                except StoreDamagedError:
                    self._exchange.remove(mark_name(self._range_task(number)))  # the next join merges the range itself
                    raise
                counts = [counts[0] + mark.merged, counts[1] + mark.added]
        return counts[0], counts[1]

    def _merged_or_none(self, number: int) -> tuple[str, RangeMark] | None:
        data = self._exchange.get(mark_name(self._range_task(number)))
        return None if data is None else _decode(data, RangeMark)

    def _source_entries(self, plan: PackPlan) -> list[SourceEntry]:
        rows = [0] * len(plan.sources)
        hashes: dict[int, str | None] = {}
        for _, mark in self._results[0]:
            hashes.update(mark.hashes)
            for number, count in mark.rows.items():
                rows[number] += count
        return [
            SourceEntry(name=source.name, num_bytes=source.num_bytes, num_rows=rows[i], xxh3=hashes[i])
            for i, source in enumerate(plan.sources)
        ]

    # What others want to know.

    def record_parts(self, count: int) -> None:
        """Remember into how many parts the tasks are divided, for messages."""
        self._exchange.create(f"{_PARTS}-{self._id}", str(count).encode())

    def progress(self) -> tuple[float, int]:
        """The share of the tasks of reading that is done in all processes, and rows of those that run."""
        done = len(self.tasks) - len(self.missing_tasks())
        reports = [msgspec.json.decode(data, type=TaskReport) for data in self._exchange.reports().values()]
        return min((done + sum(one.share for one in reports)) / len(self.tasks), 1.0), sum(one.rows for one in reports)

    def report(self, attempt: Attempt, share: float, rows: int) -> None:
        """Let all processes see how far a task is."""
        self._exchange.report(attempt, msgspec.json.encode(TaskReport(share=share, rows=rows)))


def is_begun(path: str, *, replace: bool) -> bool:
    """Whether there is a plan; raises `StoreExistsError` where there is a store instead, and the pack may not replace it."""
    # With a plan, a join was killed after its commit, or is under way: `join` decides.
    begun = has_plan(open_exchange(path))
    if not begun and not replace and _read_manifest(path) is not None:
        raise StoreExistsError(f"{path} holds a store already. Choose another folder, or pass replace=True to replace that store.")
    return begun


def finish_join(path: str) -> bool:
    """Whether a join has committed its store, and was killed before it had removed all results: these are removed now."""
    key = open_exchange(path).get(JOINED)
    manifest = _read_manifest(path) if key is not None else None
    if manifest is None or _key_of(manifest) != key:
        return False
    clear_parts(path)
    return True


def clear_parts(path: str) -> None:
    """Remove the results of all tasks: before the plan, as they would count for another plan, and the note of a finished join last."""
    open_exchange(path).clear(PLAN, JOINED)


def _read_manifest(path: str) -> bytes | None:
    """The manifest of the store at the target, if there is one."""
    if not is_url(path):
        file = check_path(path) / MANIFEST_NAME
        return file.read_bytes() if file.is_file() else None
    try:
        return open_bucket(path).get(MANIFEST_NAME, MAX_BYTES)[0]
    except StoreNotFoundError:
        return None


class _Reporter:
    """Says from time to time how far an attempt is."""

    def __init__(self, pack: PartedPack, attempt: Attempt, phase: str) -> None:
        self._pack, self._attempt, self._phase, self._last = pack, attempt, phase, now_ns()

    def __call__(self, share: float, rows: int) -> None:
        self._pack._progress(self._phase, share, rows)
        if now_ns() - self._last >= _REPORT_NS:
            self._last = now_ns()
            self._pack.report(self._attempt, share, rows)


T = TypeVar("T")


def _decode(data: bytes, kind: type[T]) -> tuple[str, T]:
    """The folder that a mark names, and its content."""
    folder, body = attempt_of(data)
    try:
        return folder, msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreDamagedError(f"the mark of {folder} is damaged. Run all parts and the join again.") from None


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
