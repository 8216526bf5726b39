"""One packing under way: reading, merging and sealing, with a journal that lets a killed one go on."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from stoker import files
from stoker.errors import BadValue, DiskFull, SourceChanged, SourceEmpty, StokerError
from stoker.store.manifest import Manifest, SourceEntry
from stoker.store.packing import journal as journals
from stoker.store.packing.debris import make_work, remove_debris
from stoker.store.packing.disorder import explain_disorder
from stoker.store.packing.identity import fingerprint, hash_source, stat_source
from stoker.store.packing.journal import Journal
from stoker.store.packing.plan import Plan, settle_plan
from stoker.store.packing.run import Disorder, RepeatedKey, Run
from stoker.store.packing.seal import seal_run
from stoker.store.packing.state import Job, Progress, State
from stoker.store.packing.values import Gaps
from stoker.store.packing.writer import Writer
from stoker.store.sources.source import Unfit

_SHOWN_NAMES, _SHOWN_LETTERS = 8, 80
"""Of what was left out."""


def quiet(phase: str, share: float, rows: int) -> None:
    """Report nothing."""


class Packing:
    """Makes the shards of one store in `folder` and returns its manifest; does not commit."""

    def __init__(self, plan: Plan, folder: Path, progress: Progress) -> None:
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
        return self._job.fingerprint is not None and journals.load(self._job.work, self._job.fingerprint) is not None

    def run(self) -> Manifest:
        """Read, merge and seal. Types that turn out too narrow are settled by reading everything, once."""
        job = self._job
        _refuse_too_large(job.plan, job.folder)
        journal = journals.load(job.work, job.fingerprint) if job.fingerprint is not None else None
        if journal is not None and journal.settled:
            job = _settle(job)
        while True:
            try:
                return self._attempt(job, journal)
            except (Unfit, Gaps) as error:
                if job.settled:
                    raise _after_settling(error) from None
                job, journal = _settle(job), None
            except Disorder as error:
                raise explain_disorder(job.plan, error) from None
            except RepeatedKey as error:
                name = job.plan.key.name if job.plan.key else "row"
                raise BadValue(f"{name} {error.key!r} comes twice, but each row is a whole series. Make the key unique.") from None

    def _attempt(self, job: Job, journal: Journal | None) -> Manifest:
        pool = ThreadPoolExecutor(job.plan.options.num_readers + 1, thread_name_prefix="stoker-reader")
        hasher = ThreadPoolExecutor(1, thread_name_prefix="stoker-hasher")
        stopping = threading.Event()
        try:
            with _brisk_threads(), Writer(job.plan.options.working_bytes // 24) as writer:
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

    def _entries(self, plan: Plan, hashes: list[Future[str | None]], source_rows: list[int]) -> list[SourceEntry]:
        entries = [
            SourceEntry(name=source.name, num_bytes=source.num_bytes, num_rows=rows, xxh3=future.result())
            for source, rows, future in zip(plan.sources, source_rows, hashes, strict=True)
        ]
        # Last, so that no change slips in between: what was read and what was hashed are the same bytes.
        for source in plan.sources:
            if stat_source(source) != self._stats[source]:
                raise SourceChanged(f"{source.label} changed while it was packed. Pack again when nothing writes to it.")
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
    if isinstance(error, Gaps):
        return BadValue(str(error))
    return SourceChanged(f"{error}: its values differ between two looks. Do not change sources during a pack.")


def _seal(job: Job, run: Run | None, state: State, entries: list[SourceEntry]) -> Manifest:
    if run is None or run.num_steps == 0:
        names = ", ".join(source.label for source in job.plan.sources[:3])
        raise SourceEmpty(f"{names} {'hold' if len(job.plan.sources) > 1 else 'holds'} no rows, so there is nothing to pack.")
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


def _refuse_too_large(plan: Plan, folder: Path) -> None:
    """Where the sources tell their rows, a store that cannot fit on the disk is refused before it is begun."""
    rows = [getattr(source, "num_rows", None) for source in plan.sources]
    if plan.rows_are_series or any(count is None for count in rows):
        return
    width = sum(field.dtype.itemsize for field in plan.step)
    columns = [len(schema) if plan.grouping == "wide" else 1 for schema in plan.schemas]
    needed = sum((count or 0) * width * many for count, many in zip(rows, columns, strict=True))
    free = files.free_bytes(folder)
    if needed > free:
        raise DiskFull(
            28, f"{folder} needs {needed:,} bytes, but the disk has {free:,} free. Free some space, or pack fewer --columns."
        )


def _notes(run: Run, sources: list[SourceEntry], left_out: tuple[str, ...]) -> list[str]:
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
