"""Sorted runs: series sorted by key, on disk as column files; and the `Sorter` that writes them.

A pack whose rows are in order writes one run, and that run becomes the store; otherwise it writes several and merges them. Within a
run keys increase strictly, and within a series times increase (strictly, unless the pack sorts).

`read_ahead` decodes chunks on a pool of threads, `BackgroundWriter` hashes and writes in the background.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from stoker._disk import remove_file
from stoker._types import Array
from stoker.store.arrow import from_bfloat16, from_numpy, to_numpy
from stoker.store.pack.blocks import PerSeries, RowBlock, join_segments, sort_blocks
from stoker.store.pack.values import fill_forward, is_missing
from stoker.store.shards import ColumnFile, ColumnMark, NonFiniteCount, TextFile

T = TypeVar("T")


def read_ahead(
    tasks: Iterable[Callable[[], T]], pool: ThreadPoolExecutor, *, depth: int, max_bytes: int | None = None
) -> Generator[T, None, None]:
    """Run tasks on the pool, at most `depth` ahead of the consumer, and yield their results in the order of the tasks.

    Getting the next task may itself be slow (Parquet decodes there), so that happens on the pool as well, one at a time. An error is
    raised in the position of the result it belongs to. Close the generator when it is left early, or tasks that wait for room block.

    Args:
        tasks: functions without arguments. One with an attribute `num_bytes` starts only while the tasks ahead of the consumer hold at
            most `max_bytes` together, or alone: not every thread may hold a long line.
        pool: the threads to run them on.
        depth: how many tasks run or wait ahead of the consumer.
        max_bytes: how much they may hold together.

    Example:
        >>> with ThreadPoolExecutor(2) as pool:
        ...     list(read_ahead([lambda: 1, lambda: 2], pool, depth=2))
        [1, 2]
    """
    iterator = iter(tasks)
    change = threading.Condition()
    turn = 0  # the number of the next task; the call that has this number takes it
    held: deque[int] = deque()  # bytes of the tasks that have started and are not yet consumed
    ended = False

    def work(number: int) -> T:
        nonlocal turn
        with change:
            change.wait_for(lambda: ended or turn == number)
        if ended:
            raise StopIteration
        try:
            task = next(iterator)  # StopIteration too is raised in its place
            num_bytes = getattr(task, "num_bytes", 0)
            with change:
                # Later tasks wait for earlier ones, which the consumer always reaches.
                change.wait_for(lambda: ended or max_bytes is None or not sum(held) or sum(held) + num_bytes <= max_bytes)
                held.append(num_bytes)
        finally:
            with change:
                turn += 1
                change.notify_all()
        return task()

    running: deque[Future[T]] = deque()
    try:
        for number in itertools.count():
            running.append(pool.submit(work, number))
            if len(running) < depth:
                continue
            try:
                result = running.popleft().result()
            except StopIteration:
                return
            yield result
            del result
            with change:
                held.popleft()
                change.notify_all()
    finally:
        with change:
            ended = True
            change.notify_all()
        for future in running:
            future.cancel()
        wait(running)
        if isinstance(iterator, Generator):
            iterator.close()  # a stream that is to be read again must not be open


class BackgroundWriter:
    """Runs tasks in order on a thread of its own; at most `max_bytes` of their data wait at a time.

    Tasks run in the order given, so the sequence of disk operations is the same on every run. After an error no other task runs, and
    the error is raised to the caller at its next call.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._failed = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stoker-writer")

    def submit(self, task: Callable[[], None], num_bytes: int = 0) -> None:
        """Queue a task that holds `num_bytes` of data; waits while too much is queued."""
        while self._waiting and (self._waiting[0][0].done() or self._is_full(num_bytes)):
            self._wait_for_first()
        self._waiting.append((self._pool.submit(self._run, task), num_bytes))

    def _is_full(self, num_bytes: int) -> bool:
        return len(self._waiting) > 1 and sum(size for _, size in self._waiting) + num_bytes > self._max_bytes

    def drain(self) -> None:
        """Wait until all tasks are done."""
        while self._waiting:
            self._wait_for_first()

    def _wait_for_first(self) -> None:
        self._waiting[0][0].result()  # raises its error, also at later calls
        self._waiting.popleft()

    def _run(self, task: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            task()
        except BaseException:
            self._failed = True
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the thread; after an error, what is still queued is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        self._waiting.clear()  # an error keeps alive everything where it was raised, open files too


Key = int | str


@dataclass(frozen=True, kw_only=True)
class RunLayout:
    """What the files of a run hold. None stands for strings."""

    key: np.dtype[Any] | None
    step: Sequence[np.dtype[Any]]
    series: Sequence[np.dtype[Any] | None]
    time_index: int | None = None
    strict_time: bool = True  # whether equal times within a series are an error too
    unique_keys: bool = False  # whether a repeated key is an error: rows that are whole series cannot be joined
    fill: frozenset[int] = field(default_factory=frozenset)
    """Step columns whose missing values are filled with the value before them."""
    bfloat16: frozenset[int] = field(default_factory=frozenset)  # step columns whose numbers are upper halves of float32
    with_marks: frozenset[int] = field(default_factory=frozenset)  # step columns in which an integer means missing
    block_bytes: int | None = None  # what each hash of a file is of, where it is read in slices


class RunMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a run, enough to resume it."""

    number: int
    files: list[list[ColumnMark]]
    pending: int  # steps of the last series so far
    shortest: int
    longest: int
    tallies: list[list[int | None]]
    equal_times: int


class UnsortedTimesError(Exception):
    """Times of a series do not increase; `explain_disorder` finds the rows."""

    def __init__(self, key: Key, before: Any, behind: Any) -> None:
        super().__init__(key, before, behind)
        self.key, self.before, self.behind = key, before, behind


class RepeatedKeyError(Exception):
    """Two rows that are whole series have the same key."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.key = key


class ReadableRun:
    """What a merge reads: series sorted by key. Its files have `read(start, stop)`."""

    keys: Any
    counts: Any
    step: list[Any]
    series: list[Any]

    def __init__(self, layout: RunLayout) -> None:
        self.layout = layout
        self.num_series = 0
        self.num_steps = 0

    def open_files(self, open_file: Callable[[str, np.dtype[Any] | None], Any]) -> None:
        """Open the file of each part, which has a name and a type (None: strings)."""
        layout = self.layout
        self.keys, self.counts = open_file("k", layout.key), open_file("n", np.dtype("<i8"))
        self.step = [open_file(f"c{i}", dtype) for i, dtype in enumerate(layout.step)]
        self.series = [open_file(f"s{i}", dtype) for i, dtype in enumerate(layout.series)]

    @property
    def files(self) -> list[Any]:
        """All files of the run, always in the same order."""
        return [self.keys, self.counts, *self.step, *self.series]

    def read_keys(self, start: int, stop: int) -> pa.Array:
        """Keys of series `start` to `stop`."""
        values = self.keys.read(start, stop)
        return from_numpy(values) if isinstance(values, np.ndarray) else values


class SortedRun(ReadableRun):
    """One run, appended to through a background writer."""

    keys: ColumnFile | TextFile
    counts: ColumnFile
    step: list[ColumnFile]
    series: list[ColumnFile | TextFile]

    def __init__(self, folder: Path, number: int, layout: RunLayout, writer: BackgroundWriter) -> None:
        super().__init__(layout)
        self.number = number
        self.last_key: Key | None = None
        self._last_row: list[Any] = []
        self._writer = writer
        self._pending = 0
        self.shortest = -1
        self.longest = 0
        self.equal_times = 0
        self.tallies = [NonFiniteCount() for _ in layout.step]
        self._folder = folder

    @classmethod
    def create(cls, folder: Path, number: int, layout: RunLayout, writer: BackgroundWriter) -> SortedRun:
        """Start an empty run in the work folder."""
        run = cls(folder, number, layout, writer)

        def create(part: str, dtype: np.dtype[Any] | None) -> ColumnFile | TextFile:
            if dtype is None:
                return TextFile.create(run._path(part), block_bytes=layout.block_bytes)
            return ColumnFile.create(run._path(part), dtype, block_bytes=layout.block_bytes)

        run.open_files(create)
        return run

    def _path(self, name: str) -> Path:
        return self._folder / f"run{self.number}.{name}"

    @property
    def end(self) -> tuple[Any, ...]:
        """Key (and time) of the last row; what follows is not before it."""
        index = self.layout.time_index
        return (self.last_key,) if index is None or not self._last_row else (self.last_key, self._last_row[index].item())

    def add(self, block: RowBlock) -> None:
        """Append a block whose keys increase and are not below the last key. Its arrays must not change any more."""
        block = block if self.layout.unique_keys else join_segments(block)
        if not len(block.keys):
            return
        if self.layout.unique_keys:
            if self.num_series and block.keys[0].as_py() == self.last_key:
                raise RepeatedKeyError(block.keys[0].as_py())
            if not block.rises():
                raise RepeatedKeyError(next(a for a, b in itertools.pairwise(block.keys.to_pylist()) if a >= b))
        continues = self.num_series > 0 and block.keys[0].as_py() == self.last_key
        step = self._checked_steps(block, continues=continues and self._pending > 0)
        counts = block.counts.copy()
        first_step = self.num_steps
        if continues:
            counts[0] += self._pending
        elif self.num_series:
            counts = np.concatenate([[self._pending], counts])
        self._pending = int(counts[-1])
        fresh = 1 if continues else 0
        self.num_series += len(block.keys) - fresh
        self.num_steps += int(block.counts.sum())
        self.last_key = block.keys[-1].as_py()
        done = counts[:-1]
        self._count(done)
        keys, series = block.keys[fresh:], [values[fresh:] for values in block.series]
        if len(step) and len(step[0]):
            self._last_row = [values[-1] for values in step]
        self._writer.submit(partial(self._write, keys, done, step, series, first_step), block.num_bytes)

    def _count(self, counts: Array) -> None:
        if len(counts):
            low, high = int(counts.min()), int(counts.max())
            self.shortest = low if self.shortest < 0 else min(self.shortest, low)
            self.longest = max(self.longest, high)

    def _checked_steps(self, block: RowBlock, *, continues: bool) -> list[Array]:
        """The step columns with times checked and gaps filled."""
        step = [np.ascontiguousarray(values) for values in block.step]
        starts = (np.cumsum(block.counts) - block.counts)[block.counts > 0]
        if continues and block.counts[0] > 0:
            starts = starts[1:]
        if self.layout.time_index is not None:
            self._check_times(step[self.layout.time_index], starts, block, continues)
        for i in self.layout.fill:
            step[i] = fill_forward(step[i], starts, self._last_row[i] if continues and self._last_row else None)
        return step

    def _check_times(self, times: Array, starts: Array, block: RowBlock, continues: bool) -> None:
        """Check that times increase within each series; `starts` are the rows where a new series begins."""
        if not len(times):
            return
        continues = continues and bool(self._last_row)
        before = np.empty_like(times)
        before[0], before[1:] = self._last_row[self.layout.time_index or 0] if continues else times[0], times[:-1]
        within = np.ones(len(times), dtype=bool)
        within[starts] = False
        within[0] &= continues
        self.equal_times += int((within & (before == times)).sum())
        bad = within & ~(before < times if self.layout.strict_time else before <= times)
        if bad.any():
            row = int(bad.argmax())
            segment = int(np.searchsorted(np.cumsum(block.counts), row, side="right"))
            raise UnsortedTimesError(block.keys[segment].as_py(), before[row].item(), times[row].item())

    def _write(self, keys: pa.Array, counts: Array, step: Sequence[Array], series: Sequence[PerSeries], first_step: int) -> None:
        """On the writer's thread: hash and append everything."""
        _append(self.keys, keys)
        self.counts.append(counts)
        for i, (file, values, tally) in enumerate(zip(self.step, step, self.tallies, strict=True)):
            tally.add(from_bfloat16(values) if i in self.layout.bfloat16 else values, first_step=first_step)
            if i in self.layout.with_marks:
                tally.nan += int(is_missing(values).sum())
            file.append(values)
        for column, part in zip(self.series, series, strict=True):
            _append(column, part)

    def finish(self) -> None:
        """Write the count of the last series. Nothing can be added after that."""
        if self.num_series:
            last = np.array([self._pending], dtype="<i8")
            self._count(last)
            self._writer.submit(partial(self.counts.append, last))
            self._writer.drain()

    def mark(self) -> Callable[[], RunMark]:
        """The end of the run once all writes so far are done; call the result on the writer's thread."""
        pending, shortest, longest, equal_times = self._pending, self.shortest, self.longest, self.equal_times

        def finish() -> RunMark:
            return RunMark(
                number=self.number,
                files=[file.mark() if isinstance(file, TextFile) else [file.mark()] for file in self.files],
                pending=pending,
                shortest=shortest,
                longest=longest,
                tallies=[[tally.nan, tally.inf, tally.first_step] for tally in self.tallies],
                equal_times=equal_times,
            )

        return finish

    @classmethod
    def reopen(cls, folder: Path, mark: RunMark, layout: RunLayout, writer: BackgroundWriter) -> SortedRun | None:
        """Resume a run of an earlier process; None if its files have changed."""
        run, marks = cls(folder, mark.number, layout, writer), iter(mark.files)

        def reopen(part: str, dtype: np.dtype[Any] | None) -> ColumnFile | TextFile | None:
            if dtype is None:
                return TextFile.reopen(run._path(part), next(marks))
            return ColumnFile.reopen(run._path(part), dtype, None, next(marks)[0])

        run.open_files(reopen)
        if None in run.files:
            for file in run.files:
                if file is not None:
                    file.close()
            return None
        run._pending, run.shortest, run.longest = mark.pending, mark.shortest, mark.longest
        run.equal_times = mark.equal_times
        run.tallies = [NonFiniteCount(nan=nan or 0, inf=inf or 0, first_step=first) for nan, inf, first in mark.tallies]
        run.num_series = run.keys.rows
        run.num_steps = run.step[0].rows
        if run.num_series:
            run.last_key = run.read_keys(run.num_series - 1, run.num_series)[0].as_py()
        if run.num_steps:
            run._last_row = [file.read(run.num_steps - 1, run.num_steps)[0] for file in run.step]
        return run

    def close(self) -> None:
        """Close the descriptors; the files stay."""
        for file in self.files:
            file.close()

    def remove(self) -> None:
        """Remove the files."""
        self.close()
        for path in sorted(self._folder.glob(f"run{self.number}.*")):
            remove_file(path)


def _append(file: ColumnFile | TextFile, values: PerSeries) -> None:
    if isinstance(file, TextFile):
        file.append(values)
    else:
        plain = values if isinstance(values, np.ndarray) else to_numpy(values)
        file.append(np.ascontiguousarray(plain, dtype=file.dtype))


_RUNS_PER_RELEASE = 4
"""Arrow keeps freed memory for later. To return it after every run took a tenth of the CPU time of a sort (docs/journal.md)."""


class Sorter:
    """Writes blocks in any order to runs. Blocks in order are written at once; others are collected and sorted in memory first.

    `runs` are the runs so far; only the last still grows.
    """

    def __init__(
        self,
        folder: Path,
        layout: RunLayout,
        writer: BackgroundWriter,
        *,
        sort_time: bool,
        run_bytes: int,
        runs: list[SortedRun] | None = None,
    ) -> None:
        self.runs = runs or []
        self._gathered_bytes = 0
        self._folder = folder
        self._layout = layout
        self._writer = writer
        self._sort_time = layout.time_index if sort_time else None
        self._run_bytes = run_bytes
        self._gathered: list[RowBlock] = []

    def add(self, block: RowBlock) -> None:
        """Add a block. Its arrays must not change any more."""
        if not self._gathered and block.rises(self._sort_time) and self._follows(block):
            self._last().add(block)
            return
        self._gathered.append(block)
        self._gathered_bytes += block.sorting_bytes
        if self._gathered_bytes >= self._run_bytes:
            self.flush()

    def flush(self) -> None:
        """Sort the collected blocks and write them, to the last run if they follow it."""
        if not self._gathered:
            return
        block = sort_blocks(self._gathered, self._sort_time)
        self._gathered, self._gathered_bytes = [], 0
        if not self._follows(block):
            self.runs[-1].finish()
            self.runs[-1].close()  # only read from now on; a thousand runs must not hold a thousand descriptors
            self.runs.append(SortedRun.create(self._folder, self.runs[-1].number + 1, self._layout, self._writer))
        self._last().add(block)
        if len(self.runs) % _RUNS_PER_RELEASE == 0:
            pa.default_memory_pool().release_unused()

    def _follows(self, block: RowBlock) -> bool:
        """Whether a sorted block can be appended to the last run."""
        if not self.runs or not self.runs[-1].num_series or not len(block.keys):
            return True
        first = block.keys[0].as_py()
        filled = block.counts.nonzero()[0]  # a series may begin with segments that have no rows
        if self._sort_time is None or not len(filled) or block.keys[int(filled[0])].as_py() != first:
            return bool(first >= self.runs[-1].last_key)
        # With a time to sort by, a series that continues must not belong between rows of the last run.
        return (first, block.step[self._sort_time][0].item()) >= self.runs[-1].end

    def _last(self) -> SortedRun:
        if not self.runs:
            self.runs.append(SortedRun.create(self._folder, 0, self._layout, self._writer))
        return self.runs[-1]

    def finish(self) -> list[SortedRun]:
        """Write the remaining rows and return all runs, all finished."""
        self.flush()
        if self.runs:
            self.runs[-1].finish()
        return self.runs
