"""The state of a packing: what it holds between two blocks, and what its journal records so that another process can
take it up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker import files
from stoker.store.packing import journal as journals
from stoker.store.packing.categories import Categories
from stoker.store.packing.field import Field
from stoker.store.packing.journal import Journal, MergeMark
from stoker.store.packing.merge import FAN_IN, CursorMark, merge_runs
from stoker.store.packing.plan import Plan
from stoker.store.packing.readahead import read_ahead
from stoker.store.packing.run import Layout, Run
from stoker.store.packing.shape import Shaper
from stoker.store.packing.sorter import Sorter
from stoker.store.packing.writer import Writer
from stoker.store.sharing import from_texts
from stoker.store.sources.source import Place, Source
from stoker.store.store import WORK_NAME
from stoker.store.textfile import TextFile

JOURNAL_BYTES = 256 << 20
"""How much may have to be done again after a kill."""

Progress = Callable[[str, float, int], None]
"""Gets the phase, the share of it that is done (0 to 1), and rows so far."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be packed, and where."""

    plan: Plan
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

    def __init__(self, job: Job, writer: Writer) -> None:
        self._job = job
        self._plan = job.plan
        self._writer = writer
        self._source = 0
        self._place = Place()
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

    def _make_sorter(self, runs: list[Run]) -> Sorter:
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
            self._source, self._place = number + 1, Place()
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

    def merge(self) -> Run | None:
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

    def _merge_out(self, last: bool) -> Run:
        layout = _layout(self._plan, merged=True, fill=last or not self._plan.options.sort)
        if self._merge is not None:
            out = Run.reopen(self._job.work, self._merge.out, layout, self._writer)
            if out is not None:
                return out
            self._merge = None
        number = max(run.number for run in self.sorter.runs) + 1
        for path in self._job.work.glob(f"run{number}.*"):
            files.remove_file(path)
        return Run.create(self._job.work, number, layout, self._writer)

    def _merging(self, first: int, count: int, out: Run, rows: int, cursors: list[CursorMark], num_bytes: int) -> None:
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

        def save() -> None:
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
            journals.save(job.work, journal)

        self._writer.submit(save)

    @classmethod
    def restore(cls, journal: Journal, job: Job, writer: Writer) -> State | None:
        """The state that a journal describes; None if the files on disk are not as it says."""
        state = cls.__new__(cls)
        plan, work = job.plan, job.work
        state._job, state._plan, state._writer = job, plan, writer
        state._source, state._place = journal.source, Place(journal.row, journal.position)
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
            run = Run.reopen(work, mark, layout, writer)
            if run is None:
                return None
            if mark is not journal.runs[-1]:
                run.close()  # only read from now on
            runs.append(run)
        state.sorter = state._make_sorter(runs)
        return state


def _layout(plan: Plan, *, merged: bool = False, fill: bool | None = None) -> Layout:
    options = plan.options
    key = plan.key
    filling = options.missing == "ffill" and (fill if fill is not None else not options.sort)
    return Layout(
        key=np.dtype("<i8") if key is None else None if key.kind == "text" else key.dtype,
        step=[field.dtype for field in plan.step],
        series=[None if field.kind == "text" else field.dtype for field in plan.series],
        time_index=plan.time_index,
        strict_time=not options.sort,
        unique_keys=plan.rows_are_series and not merged,
        fill=frozenset(i for i, field in enumerate(plan.step) if filling and _has_missing_number(field)),
        bfloat16=frozenset(i for i, field in enumerate(plan.step) if field.kind == "bfloat16"),
    )


def _has_missing_number(field: Field) -> bool:
    return field.kind in ("timestamp", "duration", "category", "bfloat16") or field.dtype.kind == "f"


def _category_fields(plan: Plan) -> list[Field]:
    return [field for field in (*plan.step, *plan.series) if field.kind == "category"]


def _remove_strays(work: Path, journal: Journal) -> None:
    """Remove runs that were begun after the journal was written: they would be in the way of those that follow it."""
    marks = [*journal.runs, *([journal.merge.out] if journal.merge is not None else [])]
    kept = {f"run{mark.number}" for mark in marks}
    for path in sorted(work.iterdir()):
        if path.name.startswith("run") and path.name.partition(".")[0] not in kept:
            files.remove_file(path)


def _remove_runs(runs: list[Run]) -> None:
    for run in runs:
        run.close()
        for path in run.paths():
            files.remove_file(path)


def _share(source: Source, place: Place) -> float:
    return min(place.position / source.num_positions, 1.0) if source.num_positions else 0.0
