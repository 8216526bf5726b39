"""Sorted runs that other processes have published: read in slices, verified, and cut into ranges of equal work.

StoredColumn    a file of a run in an exchange, from some row on; every block read is hashed
stored_run      a run, or the series of it between two borders
cut_runs        borders that cut all runs at the same keys
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.store.manifest import HEADER_BYTES
from stoker.store.pack.exchange import Exchange
from stoker.store.pack.sorted_runs import Key, ReadableRun, RunLayout, RunMark
from stoker.store.shards import ColumnMark, TextFile, hash_block

HASH_BYTES = 64 << 10
"""Bytes of one hash in a run that is read in slices: small, as a slice reads whole blocks."""
SAMPLES_PER_RANGE = 64
_PART = 1 << 18  # series read at a time


class StoredColumn:
    """One file of a published run, from row `first` on. `table`, where there is one, replaces codes by those of the whole pack."""

    def __init__(
        self, exchange: Exchange, name: str, dtype: np.dtype[Any], mark: ColumnMark, *, first: int = 0, table: Array | None = None
    ) -> None:
        self.dtype = dtype
        self.rows = mark.rows - first
        self._exchange = exchange
        self._name = name
        self._hashes = [*mark.blocks, mark.tail]
        self._num_bytes = mark.rows * dtype.itemsize
        self._first = first
        self._table = table

    def read(self, start: int, stop: int) -> Array:
        """Rows `start` to `stop`, which have the hashes of those that were written."""
        first_byte, num_bytes = (self._first + start) * self.dtype.itemsize, (stop - start) * self.dtype.itemsize
        first, last = first_byte // HASH_BYTES, -(-(first_byte + num_bytes) // HASH_BYTES)
        begin, end = first * HASH_BYTES, min(last * HASH_BYTES, self._num_bytes)

        def is_right(data: Any) -> bool:
            view = memoryview(data)
            blocks = (view[i : i + HASH_BYTES] for i in range(0, end - begin, HASH_BYTES))
            return [hash_block(block) for block in blocks] == self._hashes[first:last]

        data = self._exchange.read_range(self._name, HEADER_BYTES + begin, HEADER_BYTES + end, is_right) if begin < end else b""
        values: Array = np.frombuffer(data, dtype=np.uint8)[first_byte - begin :][:num_bytes].view(self.dtype)
        if self._table is not None:
            return np.asarray(self._table[values])
        return values if values.flags.writeable else values.copy()


def stored_texts(exchange: Exchange, name: str, marks: Sequence[ColumnMark], *, first: int = 0) -> TextFile:
    """Published strings, which can only be read."""
    utf8 = StoredColumn(exchange, name, np.dtype("|u1"), marks[0])
    offsets = StoredColumn(exchange, f"{name}o", np.dtype("<i8"), marks[1], first=first)
    return TextFile(utf8, offsets)  # type: ignore[arg-type]


class Border(NamedTuple):
    """A point between two series of a run: how many series and rows are before it."""

    series: int
    rows: int


def stored_run(
    exchange: Exchange,
    folder: str,
    mark: RunMark,
    layout: RunLayout,
    *,
    tables: Mapping[int, Array] | None = None,
    series_tables: Mapping[int, Array] | None = None,
    begin: Border | None = None,
    end: Border | None = None,
) -> ReadableRun:
    """A published run, or the series of it between two borders.

    `tables` and `series_tables` replace the codes of step columns, and of columns with one value per series.
    """
    run, marks, begin = ReadableRun(layout), iter(mark.files), begin or Border(0, 0)

    def column(part: str, dtype: np.dtype[Any] | None, first: int, table: Array | None = None) -> Any:
        name, of_file = f"{folder}/run{mark.number}.{part}", next(marks)
        if dtype is None:
            return stored_texts(exchange, name, of_file, first=first)
        return StoredColumn(exchange, name, dtype, of_file[0], first=first, table=table)

    run.keys = column("k", layout.key, begin.series)
    run.counts = column("n", np.dtype("<i8"), begin.series)
    run.step = [column(f"c{i}", dtype, begin.rows, (tables or {}).get(i)) for i, dtype in enumerate(layout.step)]
    run.series = [column(f"s{i}", dtype, begin.series, (series_tables or {}).get(i)) for i, dtype in enumerate(layout.series)]
    run.num_series = run.keys.rows if end is None else end.series - begin.series
    run.num_steps = run.step[0].rows if end is None else end.rows - begin.rows
    return run


def cut_runs(runs: Sequence[ReadableRun], num_ranges: int) -> list[list[Border]]:
    """Borders that cut whole runs into ranges of about the same number of rows: for each cut, the border in each run.

    There are fewer than `num_ranges` where a few series have most of the rows, because a series is in one range.
    """
    total = max(sum(run.num_steps for run in runs), 1)
    samples = sorted(key for run in runs for key in _sample(run, -(-run.num_steps * SAMPLES_PER_RANGE * num_ranges // total)))
    cuts = {samples[i * len(samples) // num_ranges] for i in range(1, num_ranges)} - {samples[0]} if samples else set()
    columns = [_borders(run, sorted(cuts)) for run in runs]
    return [list(borders) for borders in zip(*columns, strict=True)]


def _parts(run: ReadableRun) -> Iterator[tuple[int, pa.Array, Array]]:
    """The first series, keys and counts of some series at a time."""
    for start in range(0, run.num_series, _PART):
        stop = min(start + _PART, run.num_series)
        yield start, run.read_keys(start, stop), run.counts.read(start, stop)


def _sample(run: ReadableRun, count: int) -> Iterator[Key]:
    """The keys of rows at equal distances."""
    rows, done = np.arange(count) * run.num_steps // max(count, 1), 0
    for _, keys, counts in _parts(run):
        ends = done + np.cumsum(counts)
        here = rows[(rows >= done) & (rows < ends[-1])]
        yield from (keys[i].as_py() for i in np.searchsorted(ends, here, side="right").tolist())
        done = int(ends[-1])


def _borders(run: ReadableRun, cuts: Sequence[Key]) -> list[Border]:
    """The begin of a run, where each cut lies in it, and its end."""
    borders, rows = [Border(0, 0)], 0
    for first, keys, counts in _parts(run):
        starts, last = rows + np.cumsum(counts) - counts, keys[-1].as_py()
        while len(borders) <= len(cuts) and cuts[len(borders) - 1] <= last:
            series = bisect_left(range(len(keys)), cuts[len(borders) - 1], key=lambda i: keys[i].as_py())
            borders.append(Border(first + series, int(starts[series])))
        rows += int(counts.sum())
    return borders + [Border(run.num_series, run.num_steps)] * (len(cuts) + 2 - len(borders))
