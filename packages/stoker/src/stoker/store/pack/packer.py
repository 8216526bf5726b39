"""One pack: `Packer.run` plans, reads, merges, seals and commits, and resumes what a killed pack left in its folder.

    plan      inspect all sources, choose columns and types
    read      chunks -> blocks -> runs, sorted by key
    merge     several runs -> one
    seal      the files of that run get their final names
    commit    the manifest is replaced: from here on the store is the new one

Between two blocks the whole state of a pack is a `PackState`. A journal of it is written every `JOURNAL_BYTES`, without waiting for
the disk. That is safe because a resumed pack trusts nothing in it: the journal carries its own hash, and the files it names are hashed
again before they are used. A `fingerprint` of sources and options ties a journal to its pack. The lock of the folder is taken by
`new_store` in writer.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

import stoker
from stoker import _disk
from stoker.errors import BadValueError, DiskFullError, SourceChangedError, SourceEmptyError, SourceError
from stoker.store.arrow import from_texts
from stoker.store.formats.base import DataSource, InferredTypeError, RowLocation
from stoker.store.formats.discover import find_sources
from stoker.store.manifest import VERSION, WORK_NAME, Manifest, SourceEntry, read_manifest
from stoker.store.pack.blocks import Shaper
from stoker.store.pack.merge import FAN_IN, explain_disorder, explain_off_grid, explain_repeated, merge_runs, seal_run
from stoker.store.pack.options import PackOptions
from stoker.store.pack.plan import PackPlan, make_plan, settle_plan, widen_integers
from stoker.store.pack.regular import IntegerGapsError, OffGridError, StepGrid, StepRules, describe_irregular
from stoker.store.pack.sorted_runs import (
    BackgroundWriter,
    ReadableRun,
    RepeatedKeyError,
    RunLayout,
    RunMark,
    SortedRun,
    Sorter,
    UnsortedTimesError,
    read_ahead,
)
from stoker.store.pack.sql import SqlSource
from stoker.store.pack.values import Categories, HourPass, MissingIntegersError
from stoker.store.pack.wide import wide_series
from stoker.store.shards import ColumnMark, TextFile
from stoker.store.store import Store, map_store
from stoker.store.writer import make_work, new_store

JOURNAL_BYTES = 256 << 20  # at most about this much is done again after a kill
_JOURNAL_NAME = "journal"
_SHOWN_NAMES, _SHOWN_LETTERS = 8, 80  # of files that were left out

Progress = Callable[[str, float, int], None]
"""Gets the phase, the share of it that is done (0 to 1), and rows so far."""


def quiet(phase: str, share: float, rows: int) -> None:
    """The default progress: report nothing."""


def widen_for_gaps(plan: PackPlan) -> PackPlan:
    """Make integers floats, because steps are missing."""
    return widen_integers(plan, f"freq={plan.options.freq!r} adds missing steps, which it cannot store")


class Journal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a pack between two blocks; see `PackState`. The format of the journal file: fields must not change."""

    fingerprint: str
    settled: bool  # whether the types were found by reading all rows
    source: int
    row: int
    position: int
    source_rows: list[int]
    read: bool  # whether all sources are read
    missing: dict[str, int]
    categories: dict[str, list[ColumnMark]]
    runs: list[RunMark]
    merged: int
    rule_counts: tuple[int, int]
    widened: bool = False  # whether integers became floats, as steps are missing
    local_times: list[HourPass] = []


@dataclass(kw_only=True)
class PackState:
    """What a pack holds between two blocks, and what its journal records."""

    writer: BackgroundWriter
    shaper: Shaper
    sorter: Sorter
    category_files: dict[str, TextFile]
    rule_counts: tuple[int, int] = (0, 0)  # rows that the rules of the last merge have merged and added
    source: int = 0  # index of the source that is being read, and the location in it
    location: RowLocation = field(default_factory=RowLocation)
    source_rows: list[int] = field(default_factory=list)  # of the sources that were read to their end
    all_read: bool = False
    merged: int = 0  # how many of the runs are results of the current round of merges
    is_copied: bool = False  # whether the last merge has filled missing values in sorted rows, and applied the rules
    since_journal: int = 0
    since_release: int = 0


def plan_pack(
    source: object, options: PackOptions, know: Callable[[list[DataSource]], list[DataSource]] = lambda listed: listed
) -> PackPlan:
    """Inspect all sources, and choose columns and types. `know` may replace sources by such whose schemas are known."""
    left_out: list[Path] = []
    is_table = options.series is not None or options.time is not None or options.sql is not None
    sources = know(
        find_sources(source, csv=options.csv, table=is_table, wide=options.wide, left_out=left_out, limits=options.limits)
    )
    if options.sql is not None:
        result = SqlSource(options.sql, sources, options)
        of_result = set(options.dtypes) - (set(sources[0].schema().names) - set(result.schema().names))
        options = replace(options, dtypes={name: kind for name, kind in options.dtypes.items() if name in of_result})
        sources = [result]
    plan = replace(make_plan(sources, options), left_out=_unicode_names(left_out))
    if options.freq is not None:
        StepGrid.of(plan.step[plan.time_index or 0], options.freq)  # refuses a time without such steps
    return plan


@contextlib.contextmanager
def explaining(plan: PackPlan) -> Iterator[None]:
    """Name the rows of errors that are found when rows are sorted, by reading the sources again."""
    try:
        yield
    except OffGridError as error:
        raise explain_off_grid(plan, error) from None
    except UnsortedTimesError as error:
        raise explain_disorder(plan, error) from None
    except RepeatedKeyError as error:
        raise explain_repeated(plan, error) from None


@contextlib.contextmanager
def naming_lines(sources: Sequence[DataSource]) -> Iterator[None]:
    """Add the line of a text file to an error that names a row of it: an editor shows lines, and rows do not count the header."""
    try:
        yield
    except SourceError as error:
        if error.row is not None and error.line is None and error.path is not None and error.args:
            source = next((source for source in sources if str(source.path) == error.path), None)
            error.line = None if source is None else source.line_of(error.row)
            if error.line not in (None, error.row):
                error.args = (f"{error.args[0]} Row {error.row:,} begins in line {error.line:,} of the file.", *error.args[1:])
        raise


def refuse_settled(error: InferredTypeError | MissingIntegersError) -> NoReturn:
    """Types that were found by reading all rows do not fit: raise what that means."""
    if isinstance(error, MissingIntegersError):
        raise error.args[0] from None
    raise SourceChangedError(
        f"{error}: its values differ between two reads. Do not change sources during a pack.",
        path=error.source.path,
        column=error.column,
    ) from None


class Packer:
    """Packs one source into one folder."""

    def __init__(self, source: object, folder: Path, options: PackOptions, progress: Progress) -> None:
        self._plan = plan_pack(source, options)
        self._folder = folder
        self._work = folder / WORK_NAME
        self._progress = progress
        self._is_settled = self._is_widened = False
        self._paths = [source.path if isinstance(source, Store) else None, *(origin.path for origin in self._origins)]
        self._stats = {origin: stat_source(origin) for origin in self._origins}
        on_disk = all(source.path is not None for source in self._plan.sources)
        self._fingerprint = fingerprint(self._plan, list(self._stats.values())) if on_disk else None

    @property
    def _origins(self) -> list[DataSource]:
        """The sources that the manifest names."""
        return [origin for source in self._plan.sources for origin, _ in source.origins(0)]

    def run(self, *, replace: bool, beside: Mapping[str, bytes] | None = None) -> Store:
        """Plan, read, merge, seal, commit; again with wider types where those inferred from the first rows do not fit.

        Without `replace`, a store in the folder is an error, unless this very pack was killed there and resumes. `beside` are names and
        bytes of small files that the store needs beside its columns.
        """
        replace = replace or self._load_journal() is not None
        with naming_lines(self._plan.sources), new_store(self._folder, self._paths, replace=replace, beside=beside) as commit:
            _refuse_too_large(self._plan, self._folder)
            journal = self._load_journal()
            if journal is not None and journal.settled:
                self._settle_types()
            if journal is not None and journal.widened:
                self._widen()
            while True:
                try:
                    with explaining(self._plan):
                        with self._open_state(journal) as (state, readers, hashes):
                            self._read(state, readers)
                            run = self._merge(state)
                            manifest = self._seal(state, run, hashes)
                        commit(manifest)
                        return map_store(self._folder, read_manifest(self._folder))
                except (InferredTypeError, MissingIntegersError) as error:
                    if self._is_settled:
                        refuse_settled(error)
                    self._settle_types()
                    journal = None  # its rows have other types
                except IntegerGapsError as error:
                    if self._is_widened:
                        raise BadValueError(str(error), parameter="missing") from None
                    self._widen()
                    journal = None

    def _load_journal(self) -> Journal | None:
        """The journal of this very pack, if it was killed in this folder before. Sources in memory have none."""
        return load_journal(self._work, self._fingerprint) if self._fingerprint is not None else None

    def _settle_types(self) -> None:
        """Choose types that hold all values, by reading all rows."""
        self._plan = settle_plan(self._plan, lambda rows: self._progress("settling types", 0.0, rows))
        self._is_settled = True
        if self._is_widened:
            self._widen()

    def _widen(self) -> None:
        """Make integers floats, because steps are missing."""
        self._plan = widen_for_gaps(self._plan)
        self._is_widened = True

    # State

    @contextlib.contextmanager
    def _open_state(self, journal: Journal | None) -> Iterator[tuple[PackState, ThreadPoolExecutor, list[Future[str | None]]]]:
        """The state of the journal, or an empty one; the threads that read; and the hashes of the sources, under way."""
        options = self._plan.options
        readers = ThreadPoolExecutor(options.num_readers + 1, thread_name_prefix="stoker-reader")
        hasher = ThreadPoolExecutor(1, thread_name_prefix="stoker-hasher")
        stopping = threading.Event()
        # Threads wait less for the interpreter: each works in C most of the time, and needs it for microseconds. 5 % of a pack of
        # Parquet on two cores (docs/journal.md).
        interval = sys.getswitchinterval()
        sys.setswitchinterval(min(interval, 0.0005))
        try:
            with BackgroundWriter(options.working_bytes // 24) as writer:
                state = self._restored_state(journal, writer) if journal is not None else None
                if state is None:
                    make_work(self._folder)
                    files = {name: TextFile.create(self._work / file) for name, file in category_files(self._plan).items()}
                    state = self._make_state(writer, files, runs=[])
                yield state, readers, [hasher.submit(hash_source, source, stopping) for source in self._origins]
        finally:
            sys.setswitchinterval(interval)
            stopping.set()  # after Ctrl-C nothing waits for the hash of a huge file
            hasher.shutdown(wait=True, cancel_futures=True)
            readers.shutdown(wait=True, cancel_futures=True)

    def _restored_state(self, journal: Journal, writer: BackgroundWriter) -> PackState | None:
        """The state that a journal describes; None if the files on disk are not as it says."""
        files: dict[str, TextFile] = {}
        for name, file_name in category_files(self._plan).items():
            file = TextFile.reopen(self._work / file_name, journal.categories[name])
            if file is None:
                return None
            files[name] = file
        # Runs that were begun after the journal was written are removed: their names are needed again.
        known = {f"run{mark.number}" for mark in journal.runs}
        for path in sorted(self._work.iterdir()):
            if path.name.startswith("run") and path.name.partition(".")[0] not in known:
                _disk.remove_file(path)
        layout = run_layout(self._plan, merged=journal.read)
        runs: list[SortedRun] = []
        for mark in journal.runs:
            run = SortedRun.reopen(self._work, mark, layout, writer)
            if run is None:
                return None
            if mark is not journal.runs[-1]:
                run.close()  # only read from now on
            runs.append(run)
        state = self._make_state(writer, files, runs)
        state.shaper.missing.update(journal.missing)
        if state.shaper.local_times is not None:
            state.shaper.local_times.restore(journal.local_times)
        state.source, state.location = journal.source, RowLocation(journal.row, journal.position)
        state.source_rows = list(journal.source_rows)
        state.all_read, state.merged, state.rule_counts = journal.read, journal.merged, journal.rule_counts
        state.is_copied = journal.read and journal.merged == 1 and len(journal.runs) == 1
        return state

    def _make_state(self, writer: BackgroundWriter, files: dict[str, TextFile], runs: list[SortedRun]) -> PackState:
        options, layout = self._plan.options, run_layout(self._plan)
        return PackState(
            writer=writer,
            shaper=make_shaper(self._plan, files, writer),
            sorter=Sorter(self._work, layout, writer, sort_time=options.sort, run_bytes=options.run_bytes, runs=runs),
            category_files=files,
        )

    def _save_journal(self, state: PackState) -> None:
        """Queue a journal behind all writes so far; it is made on the writer's thread, when they are done."""
        state.since_journal = 0
        if not self._fingerprint:
            return
        marks = [run.mark() for run in state.sorter.runs]
        journal = partial(
            Journal,
            fingerprint=self._fingerprint,
            settled=self._is_settled,
            source=state.source,
            row=state.location.row,
            position=state.location.position,
            source_rows=list(state.source_rows),
            read=state.all_read,
            missing=dict(state.shaper.missing),
            merged=state.merged,
            rule_counts=state.rule_counts,
            widened=self._is_widened,
            local_times=state.shaper.local_times.mark() if state.shaper.local_times is not None else [],
        )

        def write() -> None:
            categories = {name: file.mark() for name, file in state.category_files.items()}
            body = msgspec.json.encode(journal(categories=categories, runs=[mark() for mark in marks]))
            data = xxhash.xxh3_128_hexdigest(body).encode() + b"\n" + body
            _disk.write_file(self._work / _JOURNAL_NAME, data, durable=False)

        state.writer.submit(write)

    # Read

    def _read(self, state: PackState, readers: ThreadPoolExecutor) -> None:
        """Read the rest of the sources into sorted runs."""
        if state.all_read:
            return
        sources = self._plan.sources
        total = sum(source.num_bytes for source in sources) or 1
        done = sum(source.num_bytes for source in sources[: state.source])
        for number in range(state.source, len(sources)):
            source, rows_before = sources[number], sum(state.source_rows)
            with closing(sort_rows(self._plan, number, state.location, state.shaper, state.sorter, readers, rows_before)) as parts:
                for state.location, num_bytes in parts:
                    self._after_block(state, num_bytes)
                    share = min(state.location.position / source.num_positions, 1.0) if source.num_positions else 0.0
                    self._progress("reading", (done + source.num_bytes * share) / total, rows_before + state.location.row)
            state.source_rows.append(state.location.row)
            done += source.num_bytes
            state.source, state.location = number + 1, RowLocation()
        if state.shaper.local_times is not None:
            state.shaper.local_times.finish()
        state.sorter.finish()
        state.all_read = True
        self._save_journal(state)

    def _after_block(self, state: PackState, num_bytes: int) -> None:
        state.since_journal += num_bytes
        state.since_release += num_bytes
        if state.since_release >= self._plan.options.run_bytes:
            # Allocators keep freed memory for later: with several threads that is more than the rows themselves.
            state.since_release = 0
            pa.default_memory_pool().release_unused()
        if state.since_journal >= JOURNAL_BYTES:
            state.sorter.flush()  # rows that wait to be sorted are written as a run first
            self._save_journal(state)

    # Merge

    def _merge(self, state: PackState) -> SortedRun | None:
        """Merge runs until one is left. Runs that are merged are neighbours, so that earlier rows stay in front."""
        runs, options = state.sorter.runs, self._plan.options
        must_copy = (options.fills_last and options.missing == "ffill") or options.has_rules  # even a single run
        while len(runs) > 1 or (runs and must_copy and not state.is_copied):
            first = 0 if len(runs) <= FAN_IN or state.merged >= len(runs) - 1 else state.merged
            group = runs[first : first + FAN_IN]
            is_last = len(group) == len(runs)
            number, rows = max(run.number for run in runs) + 1, sum(run.num_steps for run in group)
            report = partial(self._report_merge, max(rows, 1))
            out, state.rule_counts = merge_group(
                self._plan, group, self._work, number, state.writer, is_last=is_last, report=report
            )
            runs[first : first + len(group)] = [out]
            if len(runs) > 1:
                out.close()
            state.merged, state.is_copied = first + 1, is_last
            self._save_journal(state)
            for merged in group:
                state.writer.submit(merged.remove)
        state.writer.drain()
        return runs[0] if runs else None

    def _report_merge(self, rows: int, merged: int) -> None:
        self._progress("merging", min(merged / rows, 1.0), merged)

    # Seal

    def _seal(self, state: PackState, run: SortedRun | None, hashes: list[Future[str | None]]) -> Manifest:
        plan = self._plan
        origins = [origin for source, rows in zip(plan.sources, state.source_rows, strict=True) for origin in source.origins(rows)]
        sources = [
            SourceEntry(name=source.name, num_bytes=source.num_bytes, num_rows=rows, xxh3=future.result())
            for (source, rows), future in zip(origins, hashes, strict=True)
        ]
        # Last, so that no change slips in between: what was read and what was hashed are the same bytes.
        for source in self._origins:
            if stat_source(source) != self._stats[source]:
                raise SourceChangedError(
                    f"{source.label} changed while it was packed. Pack again when nothing writes to it.", path=source.path
                )
        if run is None or run.num_steps == 0:
            raise nothing_to_pack(plan)
        self._progress("sealing", 0.0, run.num_steps)
        manifest = seal_run(
            run,
            plan,
            work=self._work,
            folder=self._folder,
            categories=state.category_files,
            missing=state.shaper.missing,
            sources=sources,
            notes=run_notes(run, plan, sources, *state.rule_counts),
        )
        run.close()
        self._progress("sealing", 1.0, run.num_steps)
        return manifest


def _unicode_names(paths: list[Path]) -> tuple[str, ...]:
    """Names as Unicode: a manifest holds nothing else."""
    return tuple(path.name.encode("utf-8", "backslashreplace").decode() for path in paths)


def _refuse_too_large(plan: PackPlan, folder: Path) -> None:
    """Where sources know their number of rows, refuse a store that cannot fit on the disk before anything is read."""
    rows = [getattr(source, "num_rows", None) for source in plan.sources]
    if plan.rows_are_series or any(count is None for count in rows):
        return
    width = sum(column.dtype.itemsize for column in plan.step)
    columns = [len(wide_series(schema, plan.options)) if plan.grouping == "wide" else 1 for schema in plan.schemas]
    needed = sum((count or 0) * width * many for count, many in zip(rows, columns, strict=True))
    free = _disk.free_bytes(folder)
    if needed > free:
        what = f"{folder} needs {needed:,} bytes, but the disk has {free:,} free"
        raise DiskFullError(28, f"{what}. Free some space, or pack fewer with columns=[...].")


def run_layout(plan: PackPlan, *, merged: bool = False, fill: bool | None = None) -> RunLayout:
    """The files of a run; `fill` says whether missing values are filled in it, where the pack fills them."""
    options, key = plan.options, plan.key
    fills = options.missing == "ffill" and (fill if fill is not None else not options.fills_last)
    return RunLayout(
        key=np.dtype("<i8") if key is None else None if key.kind == "text" else key.dtype,
        step=[column.dtype for column in plan.step],
        series=[None if column.kind == "text" else column.dtype for column in plan.series],
        time_index=plan.time_index,
        strict_time=options.strict_time,
        unique_keys=plan.rows_are_series and not merged,
        fill=frozenset(i for i, column in enumerate(plan.step) if fills and column.can_be_missing),
        bfloat16=frozenset(i for i, column in enumerate(plan.step) if column.kind == "bfloat16"),
        with_marks=frozenset(i for i, column in enumerate(plan.step) if column.has_mark),
    )


def category_files(plan: PackPlan) -> dict[str, str]:
    """The names of the files of the strings of each category."""
    names = [column.name for column in (*plan.step, *plan.series) if column.kind == "category"]
    return {name: f"categories{i}" for i, name in enumerate(names)}


def make_shaper(plan: PackPlan, files: Mapping[str, TextFile], writer: BackgroundWriter) -> Shaper:
    """The shaper of a pack. New strings of categories are appended to their files."""

    def append_texts(name: str, texts: list[str]) -> None:
        writer.submit(partial(files[name].append, from_texts(texts)))

    known = {name: file.read(0, file.rows).to_pylist() if file.rows else [] for name, file in files.items()}
    return Shaper(plan, {name: Categories(name, texts) for name, texts in known.items()}, append_texts)


def sort_rows(
    plan: PackPlan,
    number: int,
    start: RowLocation,
    shaper: Shaper,
    sorter: Sorter,
    readers: ThreadPoolExecutor,
    rows_before: int,
) -> Generator[tuple[RowLocation, int], None, None]:
    """Add the rows of source `number` to sorted runs, chunk by chunk; yields where each chunk ends, and the bytes of its rows."""
    options, source, last_row = plan.options, plan.sources[number], start.row
    tasks = source.read(plan.schemas[number], start=start, chunk_bytes=options.chunk_bytes)
    ahead = read_ahead(tasks, readers, depth=options.num_readers + 1, max_bytes=options.limits.line_bytes)
    with closing(ahead) as chunks:
        for chunk in chunks:
            block = shaper.block(chunk, source, number, rows_before + chunk.begin.row)
            sorter.add(block)
            last_row = chunk.end.row
            yield chunk.end, block.num_bytes
    if last_row == 0 and start.stop is None and plan.grouping in ("file", "wide"):
        sorter.add(shaper.empty(number))


def merge_group(
    plan: PackPlan,
    runs: Sequence[ReadableRun],
    folder: Path,
    number: int,
    writer: BackgroundWriter,
    *,
    is_last: bool,
    block_bytes: int | None = None,
    report: Callable[[int], None] = lambda merged: None,
) -> tuple[SortedRun, tuple[int, int]]:
    """Merge neighbouring runs into run `number`. The last merge also fills missing values and applies the rules for times.

    Returns the run, and how many rows the rules have merged and added. `report` gets the rows of the run so far.
    """
    options = plan.options
    rules = StepRules(plan) if is_last and options.has_rules else None
    layout = run_layout(plan, merged=True, fill=is_last or not options.fills_last)
    layout = replace(layout, strict_time=layout.strict_time or rules is not None, block_bytes=block_bytes)
    out = SortedRun.create(folder, number, layout, writer)
    merge_runs(
        [run for run in runs if run.num_series],
        out,
        time_index=plan.time_index if options.sort else None,
        unique_keys=plan.rows_are_series,
        # Rules use several arrays of one number per row besides the rows.
        memory_bytes=options.working_bytes // (40 if rules is not None else 8),
        progress=lambda: report(out.num_steps),
        rules=rules,
    )
    out.finish()
    return out, (0, 0) if rules is None else (rules.num_merged, rules.num_added)


def nothing_to_pack(plan: PackPlan) -> SourceEmptyError:
    """The error for sources that leave no steps."""
    names = ", ".join(source.label for source in plan.sources[:3])
    return SourceEmptyError(f"{names} {'hold' if len(plan.sources) > 1 else 'holds'} no rows, so there is nothing to pack.")


def run_notes(run: SortedRun, plan: PackPlan, sources: list[SourceEntry], num_merged: int = 0, num_added: int = 0) -> list[str]:
    """What the manifest says about a pack whose rules for times have merged and added that many rows."""
    return [*plan.notes, *_notes(run, sources, plan.left_out), *_time_notes(run, plan, num_merged, num_added)]


def _notes(run: SortedRun, sources: list[SourceEntry], left_out: tuple[str, ...]) -> list[str]:
    notes = []
    if run.equal_times:
        notes.append(f"{run.equal_times:,} steps have the same time as the step before them")
    empty = sum(source.num_rows == 0 for source in sources)
    if empty:
        notes.append(f"{empty:,} of {len(sources):,} sources hold no rows")
    if left_out:
        shown = ", ".join(name[:_SHOWN_LETTERS] for name in left_out[:_SHOWN_NAMES])
        shown += " …" if len(left_out) > _SHOWN_NAMES else ""
        what = "file or folder" if len(left_out) == 1 else "files or folders"
        notes.append(f"left out {len(left_out):,} other {what} ({shown})")
    return notes


def _time_notes(run: SortedRun, plan: PackPlan, num_merged: int, num_added: int) -> list[str]:
    """What the rules for times did; without a frequency, that steps are irregular."""
    notes, options = [], plan.options
    if num_merged and options.times is not None:
        notes.append(f"{num_merged:,} rows had the time of another row of their series: the {options.times.duplicates} was stored")
    if num_added:
        notes.append(f"{num_added:,} steps of {options.freq} were missing and were added")
    time = plan.step[plan.time_index] if plan.time_index is not None else None
    if options.freq is None and time is not None and time.kind == "timestamp":
        note = describe_irregular(run, time, plan.step.index(time))
        notes.extend([note] if note is not None else [])
    return notes


# The journal on disk, and the sources it belongs to.


def load_journal(folder: Path, fingerprint: str) -> Journal | None:
    """The journal of an earlier process, if it is undamaged and belongs to the same pack."""
    try:
        digest, _, body = (folder / _JOURNAL_NAME).read_bytes().partition(b"\n")
        if digest.decode("ascii", "replace") != xxhash.xxh3_128_hexdigest(body):
            return None
        journal = msgspec.json.decode(body, type=Journal)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return journal if journal.fingerprint == fingerprint else None


def stat_source(source: DataSource) -> tuple[int, int] | None:
    """Size and modification time of a source, to detect changes; None in memory."""
    if source.path is None:
        return None
    with _still_there(source):
        stats = [path.stat() for path in (*_files_of(source.path), *source.depends_on)]
    return sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)


@contextlib.contextmanager
def _still_there(source: DataSource) -> Iterator[None]:
    """Report errors as changes: the source could be read when the plan was made."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise SourceChangedError(
            f"{source.label} can no longer be read: {reason}. Pack again when it is back.", path=source.path
        ) from error


def _files_of(path: Path) -> list[Path]:
    # The lock of a store holds a process id, which is not data.
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != ".lock") if path.is_dir() else [path]


def hash_source(source: DataSource, stopping: threading.Event) -> str | None:
    """Hash all bytes of a source, for the manifest; ends early, with a meaningless hash, once the pack is `stopping`."""
    if not isinstance(source.path, Path):  # in memory, or in object storage, which has hashes of its own
        return None
    hasher = xxhash.xxh3_128()
    buffer = bytearray(1 << 20)
    with _still_there(source):
        for path in _files_of(source.path):
            with path.open("rb", buffering=0) as file:
                while (count := file.readinto(buffer)) and not stopping.is_set():
                    hasher.update(memoryview(buffer)[:count])
    return hasher.hexdigest()


def fingerprint(plan: PackPlan, stats: list[tuple[int, int] | None]) -> str:
    """What must be equal for a journal to belong to this pack: all that determines the result, and nothing else."""
    options = {name: value for name, value in vars(plan.options).items() if name not in ("memory_bytes", "threads")}
    sources = [(source.name, ascii(source.path), stat) for source, stat in zip(plan.sources, stats, strict=True)]
    parts = [VERSION, stoker.__version__, options, sources]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, enc_hook=str))
