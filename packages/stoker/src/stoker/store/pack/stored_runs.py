"""Sorted runs that other processes have published: read in slices, verified, and cut into ranges of equal work.

    StoredColumn, StoredRun    a run in an exchange, or the slice of it between two marks; every block read is hashed
    cut_runs                   marks that cut all runs at the same keys (and, within a huge series, rows or times)

The final order of rows is that of their key, then of their time if the pack sorts, then of their run and their place in it. A cut is a
point of this order, so slices between two cuts hold exactly the rows of one range, whatever the borders of the runs are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.store.arrow import from_numpy
from stoker.store.manifest import HEADER_BYTES
from stoker.store.pack.exchange import Exchange
from stoker.store.pack.merge import CursorMark
from stoker.store.pack.sorted_runs import Key, RunLayout, RunMark
from stoker.store.shards import ColumnMark, TextFile, hash_block

HASH_BYTES = 64 << 10
"""Bytes of one hash in a run that is read in slices: small, as a slice reads whole blocks."""
SAMPLES_PER_RANGE = 64
_PART = 1 << 18  # series read at a time


class StoredColumn:
    """One file of a published run. `table`, where given, replaces codes by those of the whole pack."""

    def __init__(self, exchange: Exchange, name: str, dtype: np.dtype[Any], mark: ColumnMark, table: Array | None = None) -> None:
        self.dtype = dtype
        self.rows = mark.rows
        self._exchange = exchange
        self._name = name
        self._hashes = [*mark.blocks, mark.tail]
        self._num_bytes = mark.rows * dtype.itemsize
        self._table = table

    def read(self, start: int, stop: int) -> Array:
        """Rows `start` to `stop`, which have the hashes of those that were written."""
        first, last = start * self.dtype.itemsize // HASH_BYTES, -(-stop * self.dtype.itemsize // HASH_BYTES)
        begin, end = first * HASH_BYTES, min(last * HASH_BYTES, self._num_bytes)

        def is_right(data: Any) -> bool:
            view = memoryview(data)
            blocks = range(first, last)
            return all(hash_block(view[(i - first) * HASH_BYTES : (i - first + 1) * HASH_BYTES]) == self._hashes[i] for i in blocks)

        data = self._exchange.read_range(self._name, HEADER_BYTES + begin, HEADER_BYTES + end, is_right) if begin < end else b""
        skip = start * self.dtype.itemsize - begin
        values: Array = np.frombuffer(data, dtype=np.uint8)[skip : skip + (stop - start) * self.dtype.itemsize].view(self.dtype)
        if self._table is not None:
            return np.asarray(self._table[values])
        return values if values.flags.writeable else values.copy()


def stored_texts(exchange: Exchange, name: str, marks: Sequence[ColumnMark]) -> TextFile:
    """Published strings, which can only be read."""
    utf8 = StoredColumn(exchange, name, np.dtype("|u1"), marks[0])
    offsets = StoredColumn(exchange, f"{name}o", np.dtype("<i8"), marks[1])
    return TextFile(utf8, offsets)  # type: ignore[arg-type]


class StoredRun:
    """A published run, or the part of it between two marks, to be read like a `SortedRun`."""

    def __init__(
        self,
        exchange: Exchange,
        folder: str,
        mark: RunMark,
        layout: RunLayout,
        *,
        tables: dict[int, Array] | None = None,
        series_tables: dict[int, Array] | None = None,
    ) -> None:
        """`tables` and `series_tables` replace the codes of step columns, and of columns with one value per series."""
        self.layout, self.mark = layout, mark
        marks = iter(mark.files)
        name = f"{folder}/run{mark.number}."

        def column(part: str, dtype: np.dtype[Any] | None, table: Array | None = None) -> Any:
            of_file = next(marks)
            if dtype is None:
                return stored_texts(exchange, name + part, of_file)
            return StoredColumn(exchange, name + part, dtype, of_file[0], table)

        self.keys: Any = column("k", layout.key)
        self._counts: StoredColumn = column("n", np.dtype("<i8"))
        self._step: list[StoredColumn] = [column(f"c{i}", dtype, (tables or {}).get(i)) for i, dtype in enumerate(layout.step)]
        self._series: list[Any] = [column(f"s{i}", dtype, (series_tables or {}).get(i)) for i, dtype in enumerate(layout.series)]
        self.begin = CursorMark(series=0, in_series=0, rows=0)
        self.end = CursorMark(series=self.keys.rows, in_series=0, rows=self._step[0].rows)

    def slice(self, begin: CursorMark, end: CursorMark) -> StoredRun:
        """The rows between two marks."""
        part = object.__new__(StoredRun)
        part.__dict__.update(self.__dict__)
        part.begin, part.end = begin, end
        return part

    def verify(self) -> None:
        """Read all bytes, a part at a time.

        Raises:
            StoreDamagedError: a file is missing, or differs from what was written.
        """
        for file in (self.keys, self._counts, *self._step, *self._series):
            for start in range(0, file.rows, _PART):
                file.read(start, min(start + _PART, file.rows))

    @property
    def num_series(self) -> int:
        """Series of which rows are in the slice."""
        return self.end.series + (1 if self.end.in_series else 0) - self.begin.series

    @property
    def num_steps(self) -> int:
        """Rows of the slice."""
        return self.end.rows - self.begin.rows

    @property
    def step(self) -> list[Any]:
        """The step columns."""
        return [_Shifted(file, self.begin.rows) for file in self._step]

    @property
    def series(self) -> list[Any]:
        """The columns with one value per series."""
        return [_Shifted(file, self.begin.series) for file in self._series]

    @property
    def counts(self) -> Any:
        """The number of rows of each series in the slice."""
        return _SlicedCounts(self)

    def read_counts(self, start: int, stop: int) -> Array:
        """Counts of the series, those at the ends as far as they are in the slice."""
        begin, end = self.begin, self.end
        counts = self._counts.read(begin.series + start, begin.series + stop)
        if end.in_series and stop == self.num_series and stop > start:
            counts[-1] = end.in_series
        if begin.in_series and start == 0 and stop > start:
            counts[0] -= begin.in_series
        return counts

    def read_keys(self, start: int, stop: int) -> pa.Array:
        """Keys of series `start` to `stop`."""
        values = self.keys.read(self.begin.series + start, self.begin.series + stop)
        return from_numpy(values) if isinstance(values, np.ndarray) else values

    def parts(self) -> Iterator[tuple[int, pa.Array, Array]]:
        """The first series, keys and counts of some series at a time."""
        for start in range(0, self.num_series, _PART):
            stop = min(start + _PART, self.num_series)
            yield start, self.read_keys(start, stop), self.read_counts(start, stop)


class _Shifted:
    """A file of which row 0 is another row."""

    def __init__(self, file: Any, first: int) -> None:
        self._file, self._first = file, first
        self.dtype = getattr(file, "dtype", None)

    def read(self, start: int, stop: int) -> Any:
        return self._file.read(self._first + start, self._first + stop)


class _SlicedCounts:
    def __init__(self, run: StoredRun) -> None:
        self._run = run

    def read(self, start: int, stop: int) -> Array:
        return self._run.read_counts(start, stop)


class _Cut(NamedTuple):
    """A point between two rows: before row `row` of the series in run `run` or, where the pack sorts, before `time` of the series."""

    key: Key
    time: Any  # 0 where the pack does not sort
    run: int
    row: int


def cut_runs(runs: Sequence[StoredRun], num_ranges: int, *, time_index: int | None, splits_series: bool) -> list[list[CursorMark]]:
    """Marks that cut runs into ranges of about the same number of rows: one list of marks (a mark per run) for each border.

    Args:
        runs: whole runs, in the order of the sources.
        num_ranges: how many ranges to aim at; fewer where series cannot be split.
        time_index: the column that rows of a series are sorted by, where the pack sorts.
        splits_series: whether a series may be cut.
    """
    total = sum(run.num_steps for run in runs)
    samples = sorted(one for number, run in enumerate(runs) for one in _sample(run, number, total, num_ranges, time_index))
    bounds: list[_Cut] = []
    for i in range(1, num_ranges):
        position = i * len(samples) // num_ranges
        if not 0 < position < len(samples):
            continue
        found = samples[position]
        if not splits_series or (time_index is not None and not _is_heavy(samples, found.key)):
            found = _Cut(found.key, _FIRST, -1, 0)
        if not bounds or _order(bounds[-1]) < _order(found):
            bounds.append(found)
    columns = [_locate(run, number, bounds, time_index) for number, run in enumerate(runs)]
    borders = [[column[i] for column in columns] for i in range(len(bounds))]
    return [[run.begin for run in runs], *borders, [run.end for run in runs]]


_FIRST = float("-inf")


def _order(cut: _Cut) -> tuple[Any, ...]:
    return (cut.key, cut.time, cut.run, cut.row)


def _is_heavy(samples: list[_Cut], key: Key) -> bool:
    """Whether a series holds about half a range or more."""
    return sum(1 for sample in samples if sample.key == key) >= SAMPLES_PER_RANGE // 2


def _sample(run: StoredRun, number: int, total: int, num_ranges: int, time_index: int | None) -> Iterator[_Cut]:
    """Rows of a run at equal distances."""
    count = -(-run.num_steps * SAMPLES_PER_RANGE * num_ranges // max(total, 1))
    rows = (np.arange(count) * run.num_steps // max(count, 1)).tolist()
    done, next_row = 0, 0
    for _, keys, counts in run.parts():
        ends = done + np.cumsum(counts)
        while next_row < len(rows) and rows[next_row] < int(ends[-1]):
            series = int(np.searchsorted(ends, rows[next_row], side="right"))
            in_series = rows[next_row] - int(ends[series] - counts[series])
            key = keys[series].as_py()
            if time_index is None:
                yield _Cut(key, 0, number, in_series)
            else:
                time = run.step[time_index].read(rows[next_row], rows[next_row] + 1)[0].item()
                yield _Cut(key, time, -1, 0)
            next_row += 1
        done = int(ends[-1])


def _locate(run: StoredRun, number: int, bounds: Sequence[_Cut], time_index: int | None) -> list[CursorMark]:
    """Where each bound lies in a run."""
    found: list[CursorMark] = []
    rows = 0
    for first, keys, counts in run.parts():
        starts = rows + np.cumsum(counts) - counts
        last = keys[-1].as_py()
        while len(found) < len(bounds) and bounds[len(found)].key <= last:
            bound = bounds[len(found)]
            series = _index_of(keys, bound.key)
            start, here = int(starts[series]), 0
            if keys[series].as_py() == bound.key and bound.time != _FIRST:
                here = _rows_before(run, number, bound, start, int(counts[series]), time_index)
            is_whole = here == int(counts[series]) and here > 0
            found.append(CursorMark(series=first + series + is_whole, in_series=0 if is_whole else here, rows=start + here))
        rows += int(counts.sum())
    return found + [run.end] * (len(bounds) - len(found))


def _index_of(keys: pa.Array, key: Key) -> int:
    """The first series whose key is not before `key`."""
    return bisect_left(range(len(keys)), key, key=lambda i: keys[i].as_py())


def _rows_before(run: StoredRun, number: int, bound: _Cut, start: int, count: int, time_index: int | None) -> int:
    """Rows of the series of a bound that are before it in this run."""
    if time_index is None:
        return count if number < bound.run else min(bound.row, count) if number == bound.run else 0
    column = run.step[time_index]
    return bisect_left(range(count), bound.time, key=lambda i: column.read(start + i, start + i + 1)[0].item())
