"""The journal of a pack: how far it is, so that a pack that was killed goes on where it stopped.

It is written without waiting for the disk. That is safe because nothing in it is believed: the journal carries its own
hash, and the files it names are hashed anew before they are taken up.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from stoker import _disk
from stoker._disk import write_file
from stoker.errors import BadValueError, DiskFullError, SourceChangedError, SourceEmptyError, StokerError
from stoker.store.formats.base import DataSource, InferredTypeError, RowLocation
from stoker.store.interop import from_texts
from stoker.store.manifest import Manifest, SourceEntry
from stoker.store.pack.blocks import Shaper
from stoker.store.pack.merge import FAN_IN, CursorMark, explain_disorder, merge_runs
from stoker.store.pack.plan import ColumnPlan, PackPlan, fingerprint, hash_source, settle_plan, stat_source
from stoker.store.pack.runs import BackgroundWriter, RepeatedKeyError, RunLayout, RunMark, SortedRun, Sorter, UnsortedTimesError
from stoker.store.pack.seal import seal_run
from stoker.store.pack.values import Categories, MissingIntegersError
from stoker.store.shards import Mark, TextFile
from stoker.store.store import WORK_NAME
from stoker.store.writer import make_work, remove_debris

NAME = "journal"


class MergeMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A merge under way: which runs, into what, and how far."""

    first: int
    """Index of the first run that is merged."""
    count: int
    out: RunMark
    cursors: list[CursorMark]


class Journal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a pack between two blocks."""

    fingerprint: str
    settled: bool
    """Whether the types were found by reading everything."""
    source: int
    row: int
    position: int
    source_rows: list[int]
    """Rows of the sources that were read to their end."""
    read: bool
    """Whether all sources are read."""
    missing: dict[str, int]
    wide_time: tuple[int, int | float] | None
    categories: dict[str, list[Mark]]
    runs: list[RunMark]
    merged: int
    """How many of the runs are results of the current round of merges."""
    merge: MergeMark | None


def save(folder: Path, journal: Journal) -> None:
    """Replace the journal."""
    body = msgspec.json.encode(journal)
    write_file(folder / NAME, xxhash.xxh3_128_hexdigest(body).encode() + b"\n" + body, durable=False)


def load(folder: Path, fingerprint: str) -> Journal | None:
    """The journal of an earlier process, if it is whole and of the same pack."""
    try:
        data = (folder / NAME).read_bytes()
    except OSError:
        return None
    digest, _, body = data.partition(b"\n")
    if digest.decode("ascii", "replace") != xxhash.xxh3_128_hexdigest(body):
        return None
    try:
        journal = msgspec.json.decode(body, type=Journal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return journal if journal.fingerprint == fingerprint else None


# Reading ahead: chunks are decoded on threads while earlier ones are shaped and written, and arrive in order.

T = TypeVar("T")


def read_ahead(
    tasks: Iterable[Callable[[], T]], pool: ThreadPoolExecutor, *, depth: int, max_bytes: int | None = None
) -> Generator[T, None, None]:
    """Run tasks on the pool, at most `depth` ahead of the consumer, and yield their results in the order of the tasks.

    Tasks that say what they hold (`num_bytes`) are begun only while those ahead of the consumer hold at most `max_bytes` together,
    or alone: a file of long lines must not have one in memory for each thread. Close the generator when it is left early, or
    such tasks wait on.

    Getting the next task may itself be slow (Parquet decodes there), so that happens on the pool as well, one at a
    time. An error comes in the place of the result it belongs to.
    """
    iterator = iter(tasks)
    lock = threading.Lock()
    taken = 0
    held: dict[int, int] = {}  # bytes of the tasks that are begun and not yet consumed, by their number
    change = threading.Condition()
    ended = False

    def wait_for_room(number: int, num_bytes: int) -> None:
        """Later tasks wait for earlier ones, which the consumer always reaches."""
        with change:
            change.wait_for(lambda: ended or not any(held.values()) or sum(held.values()) + num_bytes <= (max_bytes or 0))
            held[number] = num_bytes

    def work() -> tuple[int, Callable[[], T]]:
        """The number of a task, and a function that gives its result, raises its error, or says that there is none."""
        nonlocal taken
        with lock:
            number, taken = taken, taken + 1
            try:
                task = next(iterator)
            except BaseException as error:  # StopIteration too: it ends the loop below in its place
                return number, _raising(error)
            if max_bytes is not None:
                wait_for_room(number, getattr(task, "num_bytes", 0))
        try:
            result = task()
        except BaseException as error:
            return number, _raising(error)
        return number, lambda: result

    running: set[Future[tuple[int, Callable[[], T]]]] = set()
    arrived: dict[int, Callable[[], T]] = {}
    wanted = 0
    try:
        while True:
            while len(running) + len(arrived) < depth:
                running.add(pool.submit(work))
            while wanted not in arrived:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                arrived.update(future.result() for future in done)
            try:
                result = arrived.pop(wanted)()
            except StopIteration:
                return
            yield result
            del result
            with change:
                held.pop(wanted, None)
                change.notify_all()
            wanted += 1
    finally:
        with change:
            ended = True
            change.notify_all()
        for future in running:
            future.cancel()


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def raise_it() -> NoReturn:
        raise error

    return raise_it


# The state of a packing: what it holds between two blocks, and what its journal records so that another process can
# take it up.

JOURNAL_BYTES = 256 << 20
"""How much may have to be done again after a kill."""

Progress = Callable[[str, float, int], None]
"""Gets the phase, the share of it that is done (0 to 1), and rows so far."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be packed, and where."""

    plan: PackPlan
    folder: Path
    progress: Progress
    fingerprint: str | None
    """What a journal must carry to be of this pack; None where no journal is possible, as sources are in memory."""
    settled: bool = False
    """Whether the types were found by reading everything."""

    @property
    def work(self) -> Path:
        """The folder of everything that is not yet final."""
        return self.folder / WORK_NAME


class State:
    """What a packing holds between two blocks, and what its journal records."""

    def __init__(self, job: Job, writer: BackgroundWriter) -> None:
        self._job = job
        self._plan = job.plan
        self._writer = writer
        self._source = 0
        self._place = RowLocation()
        self._all_read = False
        self._merged = 0
        self._merge: MergeMark | None = None
        self._since_journal = 0
        self._since_release = 0
        self._copied = False
        self.source_rows: list[int] = []
        self.category_files: dict[str, TextFile] = {}
        self.layout = _layout(self._plan)
        self.shaper = Shaper(self._plan, {}, self._new_texts)
        self.sorter = self._make_sorter([])
        for field in _category_fields(self._plan):
            self.category_files[field.name] = TextFile.create(job.work / f"categories{len(self.category_files)}")
            self.shaper.categories[field.name] = Categories(field.name)

    def _make_sorter(self, runs: list[SortedRun]) -> Sorter:
        options = self._plan.options
        return Sorter(self._job.work, self.layout, self._writer, sort_time=options.sort, run_bytes=options.run_bytes, runs=runs)

    def _new_texts(self, name: str, texts: list[str]) -> None:
        self._writer.submit(partial(self.category_files[name].append, from_texts(texts)))

    def read(self, pool: ThreadPoolExecutor) -> None:
        """Read what is left of the sources."""
        options, sources = self._plan.options, self._plan.sources
        if self._all_read:
            return
        total = sum(source.num_bytes for source in sources) or 1
        done = sum(source.num_bytes for source in sources[: self._source])
        for number in range(self._source, len(sources)):
            source = sources[number]
            tasks = source.read(self._plan.schemas[number], start=self._place, chunk_bytes=options.chunk_bytes)
            rows_before = sum(self.source_rows)
            ahead = read_ahead(tasks, pool, depth=options.num_readers + 1, max_bytes=options.limits.line_bytes)
            with closing(ahead) as chunks:
                for chunk in chunks:
                    block = self.shaper.block(chunk, source, number, rows_before + chunk.begin.row)
                    self.sorter.add(block)
                    self._place = chunk.end
                    self._since_journal += block.num_bytes
                    self._release(block.num_bytes)
                    if self._since_journal >= JOURNAL_BYTES:
                        self._journal_reading()
                    share = done + source.num_bytes * _share(source, chunk.end)
                    self._job.progress("reading", share / total, rows_before + chunk.end.row)
            if self._place.row == 0 and self._plan.grouping in ("file", "wide"):
                self.sorter.add(self.shaper.empty(number))
            self.source_rows.append(self._place.row)
            done += source.num_bytes
            self._source, self._place = number + 1, RowLocation()
        self.sorter.finish()
        self._all_read = True
        self._journal()

    def _release(self, num_bytes: int) -> None:
        """Have allocators give back what they keep for later: with several threads that comes to more than the rows themselves."""
        self._since_release += num_bytes
        if self._since_release >= self._plan.options.run_bytes:
            self._since_release = 0
            pa.default_memory_pool().release_unused()

    def _journal_reading(self) -> None:
        """A journal between two chunks: rows that wait to be sorted are written out as a run first."""
        self.sorter.flush()
        self._journal()

    def merge(self) -> SortedRun | None:
        """Merge runs until one is left."""
        runs, options = self.sorter.runs, self._plan.options
        if not runs:
            return None
        while len(runs) > 1 or self._must_copy():
            first = self._first_to_merge()
            group = runs[first : first + FAN_IN]
            last = len(group) == len(runs)
            out = self._merge_out(last)
            rows = sum(run.num_steps for run in group)
            merge_runs(
                group,
                out,
                time_index=self.layout.time_index if options.sort else None,
                unique_keys=self._plan.rows_are_series,
                memory_bytes=options.working_bytes // 10,
                marks=self._merge.cursors if self._merge is not None else None,
                progress=partial(self._merging, first, len(group), out, rows),
            )
            out.finish()
            runs[first : first + len(group)] = [out]
            if len(runs) > 1:
                out.close()
            self._merge, self._merged = None, first + 1
            self._copied = last
            self._journal()
            self._writer.submit(partial(_remove_runs, group))
        return runs[0]

    def _first_to_merge(self) -> int:
        """Which run the next group begins with. Groups are neighbours, so that earlier rows stay in front."""
        if self._merge is not None:
            return self._merge.first
        last_round, end_of_round = len(self.sorter.runs) <= FAN_IN, self._merged >= len(self.sorter.runs) - 1
        return 0 if last_round or end_of_round else self._merged

    def _must_copy(self) -> bool:
        """Whether a single run still has to be copied: gaps can be filled only once the rows are in order."""
        options = self._plan.options
        return options.sort and options.missing == "ffill" and not self._copied

    def _merge_out(self, last: bool) -> SortedRun:
        layout = _layout(self._plan, merged=True, fill=last or not self._plan.options.sort)
        if self._merge is not None:
            out = SortedRun.reopen(self._job.work, self._merge.out, layout, self._writer)
            if out is not None:
                return out
            self._merge = None
        number = max(run.number for run in self.sorter.runs) + 1
        for path in self._job.work.glob(f"run{number}.*"):
            _disk.remove_file(path)
        return SortedRun.create(self._job.work, number, layout, self._writer)

    def _merging(self, first: int, count: int, out: SortedRun, rows: int, cursors: list[CursorMark], num_bytes: int) -> None:
        self._since_journal += num_bytes
        if self._since_journal >= JOURNAL_BYTES:
            mark = out.mark()
            self._journal(lambda: MergeMark(first=first, count=count, out=mark(), cursors=cursors))
        self._job.progress("merging", out.num_steps / max(rows, 1), out.num_steps)

    def _journal(self, merge: Callable[[], MergeMark] | None = None) -> None:
        """Queue a journal behind all writes so far; it is made up on the writer's thread, when they are done."""
        self._since_journal = 0
        if not self._job.fingerprint:
            return
        marks = [run.mark() for run in self.sorter.runs]
        missing, source_rows = dict(self.shaper.missing), list(self.source_rows)
        job, source, place = self._job, self._source, self._place
        all_read, merged, wide_time = self._all_read, self._merged, self.shaper.wide_time

        def write() -> None:
            journal = Journal(
                fingerprint=job.fingerprint or "",
                settled=job.settled,
                source=source,
                row=place.row,
                position=place.position,
                source_rows=source_rows,
                read=all_read,
                missing=missing,
                wide_time=wide_time,
                categories={name: file.mark() for name, file in self.category_files.items()},
                runs=[mark() for mark in marks],
                merged=merged,
                merge=merge() if merge is not None else None,
            )
            save(job.work, journal)

        self._writer.submit(write)

    @classmethod
    def restore(cls, journal: Journal, job: Job, writer: BackgroundWriter) -> State | None:
        """The state that a journal describes; None if the files on disk are not as it says."""
        state = cls.__new__(cls)
        plan, work = job.plan, job.work
        state._job, state._plan, state._writer = job, plan, writer
        state._source, state._place = journal.source, RowLocation(journal.row, journal.position)
        state._all_read, state._merged, state._merge = journal.read, journal.merged, journal.merge
        state._since_journal = 0
        state._since_release = 0
        state._copied = journal.read and journal.merged == 1 and len(journal.runs) == 1
        state.source_rows = list(journal.source_rows)
        state.layout = _layout(plan)
        state.category_files = {}
        state.shaper = Shaper(plan, {}, state._new_texts)
        state.shaper.missing.update(journal.missing)
        state.shaper.wide_time = journal.wide_time
        for i, field in enumerate(_category_fields(plan)):
            file = TextFile.reopen(work / f"categories{i}", journal.categories[field.name])
            if file is None:
                return None
            state.category_files[field.name] = file
            state.shaper.categories[field.name] = Categories(field.name, file.read(0, file.rows).to_pylist())
        _remove_strays(work, journal)
        layout = _layout(plan, merged=True) if journal.read else state.layout
        runs = []
        for mark in journal.runs:
            run = SortedRun.reopen(work, mark, layout, writer)
            if run is None:
                return None
            if mark is not journal.runs[-1]:
                run.close()  # only read from now on
            runs.append(run)
        state.sorter = state._make_sorter(runs)
        return state


def _layout(plan: PackPlan, *, merged: bool = False, fill: bool | None = None) -> RunLayout:
    options = plan.options
    key = plan.key
    filling = options.missing == "ffill" and (fill if fill is not None else not options.sort)
    return RunLayout(
        key=np.dtype("<i8") if key is None else None if key.kind == "text" else key.dtype,
        step=[field.dtype for field in plan.step],
        series=[None if field.kind == "text" else field.dtype for field in plan.series],
        time_index=plan.time_index,
        strict_time=not options.sort,
        unique_keys=plan.rows_are_series and not merged,
        fill=frozenset(i for i, field in enumerate(plan.step) if filling and _has_missing_number(field)),
        bfloat16=frozenset(i for i, field in enumerate(plan.step) if field.kind == "bfloat16"),
    )


def _has_missing_number(field: ColumnPlan) -> bool:
    return field.kind in ("timestamp", "duration", "category", "bfloat16") or field.dtype.kind == "f"


def _category_fields(plan: PackPlan) -> list[ColumnPlan]:
    return [field for field in (*plan.step, *plan.series) if field.kind == "category"]


def _remove_strays(work: Path, journal: Journal) -> None:
    """Remove runs that were begun after the journal was written: they would be in the way of those that follow it."""
    marks = [*journal.runs, *([journal.merge.out] if journal.merge is not None else [])]
    kept = {f"run{mark.number}" for mark in marks}
    for path in sorted(work.iterdir()):
        if path.name.startswith("run") and path.name.partition(".")[0] not in kept:
            _disk.remove_file(path)


def _remove_runs(runs: list[SortedRun]) -> None:
    for run in runs:
        run.close()
        for path in run.paths():
            _disk.remove_file(path)


def _share(source: DataSource, place: RowLocation) -> float:
    return min(place.position / source.num_positions, 1.0) if source.num_positions else 0.0


# One packing under way: reading, merging and sealing, with a journal that lets a killed one go on.

_SHOWN_NAMES, _SHOWN_LETTERS = 8, 80
"""Of what was left out."""


def quiet(phase: str, share: float, rows: int) -> None:
    """Report nothing."""


class Packing:
    """Makes the shards of one store in `folder` and returns its manifest; does not commit."""

    def __init__(self, plan: PackPlan, folder: Path, progress: Progress) -> None:
        self._stats = {source: stat_source(source) for source in plan.sources}
        on_disk = all(source.path is not None for source in plan.sources)
        self._job = Job(
            plan=plan,
            folder=folder,
            progress=progress,
            fingerprint=fingerprint(plan, list(self._stats.values())) if on_disk else None,
        )

    @property
    def was_begun(self) -> bool:
        """Whether this very pack was killed in this folder before, and would resume."""
        return self._job.fingerprint is not None and load(self._job.work, self._job.fingerprint) is not None

    def run(self) -> Manifest:
        """Read, merge and seal. Types that turn out too narrow are settled by reading everything, once."""
        job = self._job
        _refuse_too_large(job.plan, job.folder)
        journal = load(job.work, job.fingerprint) if job.fingerprint is not None else None
        if journal is not None and journal.settled:
            job = _settle(job)
        while True:
            try:
                return self._attempt(job, journal)
            except (InferredTypeError, MissingIntegersError) as error:
                if job.settled:
                    raise _after_settling(error) from None
                job, journal = _settle(job), None
            except UnsortedTimesError as error:
                raise explain_disorder(job.plan, error) from None
            except RepeatedKeyError as error:
                name = job.plan.key.name if job.plan.key else "row"
                raise BadValueError(
                    f"{name} {error.key!r} comes twice, but each row is a whole series. Make the key unique."
                ) from None

    def _attempt(self, job: Job, journal: Journal | None) -> Manifest:
        pool = ThreadPoolExecutor(job.plan.options.num_readers + 1, thread_name_prefix="stoker-reader")
        hasher = ThreadPoolExecutor(1, thread_name_prefix="stoker-hasher")
        stopping = threading.Event()
        try:
            with _brisk_threads(), BackgroundWriter(job.plan.options.working_bytes // 24) as writer:
                state = State.restore(journal, job, writer) if journal is not None else None
                if state is None:
                    remove_debris(job.folder)
                    make_work(job.folder)
                    state = State(job, writer)
                hashes = [hasher.submit(hash_source, source, stopping) for source in job.plan.sources]
                state.read(pool)
                run = state.merge()
                writer.drain()
            return _seal(job, run, state, self._entries(job.plan, hashes, state.source_rows))
        finally:
            stopping.set()  # nobody waits for the hash of a huge file after Ctrl-C
            hasher.shutdown(wait=True, cancel_futures=True)
            pool.shutdown(wait=True, cancel_futures=True)

    def _entries(self, plan: PackPlan, hashes: list[Future[str | None]], source_rows: list[int]) -> list[SourceEntry]:
        entries = [
            SourceEntry(name=source.name, num_bytes=source.num_bytes, num_rows=rows, xxh3=future.result())
            for source, rows, future in zip(plan.sources, source_rows, hashes, strict=True)
        ]
        # Last, so that no change slips in between: what was read and what was hashed are the same bytes.
        for source in plan.sources:
            if stat_source(source) != self._stats[source]:
                raise SourceChangedError(f"{source.label} changed while it was packed. Pack again when nothing writes to it.")
        return entries


@contextlib.contextmanager
def _brisk_threads() -> Iterator[None]:
    """Let threads wait less for the interpreter: each works in C most of the time, and comes back for microseconds.

    5 % of a pack of Parquet on two cores (docs/journal.md).
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, 0.0005))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _settle(job: Job) -> Job:
    """The same job with types that hold all values."""
    return replace(job, plan=settle_plan(job.plan, lambda rows: job.progress("settling types", 0.0, rows)), settled=True)


def _after_settling(error: Exception) -> StokerError:
    if isinstance(error, MissingIntegersError):
        return BadValueError(str(error))
    return SourceChangedError(f"{error}: its values differ between two looks. Do not change sources during a pack.")


def _seal(job: Job, run: SortedRun | None, state: State, entries: list[SourceEntry]) -> Manifest:
    if run is None or run.num_steps == 0:
        names = ", ".join(source.label for source in job.plan.sources[:3])
        raise SourceEmptyError(f"{names} {'hold' if len(job.plan.sources) > 1 else 'holds'} no rows, so there is nothing to pack.")
    job.progress("sealing", 0.0, run.num_steps)
    manifest = seal_run(
        run,
        job.plan,
        work=job.work,
        folder=job.folder,
        categories=state.category_files,
        missing=state.shaper.missing,
        sources=entries,
        notes=[*job.plan.notes, *_notes(run, entries, job.plan.left_out)],
    )
    run.close()
    job.progress("sealing", 1.0, run.num_steps)
    return manifest


def _refuse_too_large(plan: PackPlan, folder: Path) -> None:
    """Where the sources tell their rows, a store that cannot fit on the disk is refused before it is begun."""
    rows = [getattr(source, "num_rows", None) for source in plan.sources]
    if plan.rows_are_series or any(count is None for count in rows):
        return
    width = sum(field.dtype.itemsize for field in plan.step)
    columns = [len(schema) if plan.grouping == "wide" else 1 for schema in plan.schemas]
    needed = sum((count or 0) * width * many for count, many in zip(rows, columns, strict=True))
    free = _disk.free_bytes(folder)
    if needed > free:
        raise DiskFullError(
            28, f"{folder} needs {needed:,} bytes, but the disk has {free:,} free. Free some space, or pack fewer --columns."
        )


def _notes(run: SortedRun, sources: list[SourceEntry], left_out: tuple[str, ...]) -> list[str]:
    notes = []
    if run.equal_times:
        notes.append(f"{run.equal_times:,} steps have the same time as the step before them")
    empty = sum(source.num_rows == 0 for source in sources)
    if empty:
        notes.append(f"{empty:,} of {len(sources):,} sources hold no rows")
    if left_out:
        shown = ", ".join(name[:_SHOWN_LETTERS] for name in left_out[:_SHOWN_NAMES]) + (
            " …" if len(left_out) > _SHOWN_NAMES else ""
        )
        what = "file or folder" if len(left_out) == 1 else "files or folders"
        notes.append(f"left out {len(left_out):,} other {what} ({shown})")
    return notes
