"""Blocks: rows in memory, grouped into segments of one series each.

RowBlock       segments end to end; `sort_blocks`, `concatenate`, `join_segments`
key_ranges     neighbouring rows with the same key
Shaper         chunks of a source become blocks, as the plan says
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._types import Array
from stoker.errors import BadValueError, SourceInvalidError
from stoker.store.arrow import fill_null, from_numpy, to_numpy
from stoker.store.formats.base import Chunk, DataSource, RowPlace, is_list, place_fields
from stoker.store.pack.column_types import ColumnPlan, plain_type
from stoker.store.pack.plan import PackPlan
from stoker.store.pack.values import Categories, LocalTimes, Locate, missing_mask, one_array, to_numbers
from stoker.store.pack.wide import wide_series

_KEY_BYTES, _TEXT_KEY_BYTES = 48, 128

PerSeries = Any  # one value per segment: a NumPy array of numbers, or an Arrow array of strings


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Segments end to end. The steps of segment i are the `counts[i]` rows from `counts[:i].sum()` on."""

    keys: pa.Array  # one per segment: int64, uint64 or large_string
    counts: Array
    step: Sequence[Array]  # one array per column, all steps end to end
    series: Sequence[PerSeries]  # one array per column, one value per segment

    @property
    def num_bytes(self) -> int:
        """Memory of the block."""
        return sum(int(v.nbytes) for v in (*self.step, *self.series, self.keys, self.counts))

    @property
    def sorting_bytes(self) -> int:
        """Memory that sorting this block needs besides its result: the block, and indices for each segment."""
        return self.num_bytes + len(self.keys) * (_TEXT_KEY_BYTES if pa.types.is_large_string(self.keys.type) else _KEY_BYTES)

    def rises(self, time_index: int | None = None) -> bool:
        """Whether keys increase strictly and, with a time, times do not decrease within a segment."""
        if len(self.keys) > 1 and not pc.all(pc.less(self.keys[:-1], self.keys[1:])).as_py():
            return False
        if time_index is None:
            return True
        times = self.step[time_index]
        falls = times[1:] < times[:-1]
        ends = np.cumsum(self.counts)[:-1]
        falls[ends[(ends > 0) & (ends < len(times))] - 1] = False
        return not falls.any()


def take(values: PerSeries, order: Array) -> PerSeries:
    """Values in another order."""
    return values[order] if isinstance(values, np.ndarray) else values.take(from_numpy(order))


def concatenate(blocks: Sequence[RowBlock]) -> RowBlock:
    """Blocks end to end."""
    if len(blocks) == 1:
        return blocks[0]
    return RowBlock(
        keys=pa.concat_arrays([block.keys for block in blocks]),
        counts=np.concatenate([block.counts for block in blocks]),
        step=[np.concatenate(columns) for columns in zip(*(block.step for block in blocks), strict=True)],
        series=[_end_to_end(parts) for parts in zip(*(block.series for block in blocks), strict=True)],
    )


def sort_blocks(blocks: Sequence[RowBlock], time_index: int | None) -> RowBlock:
    """Sort the segments of blocks by key; equal keys keep their order or, with a time, rows are sorted by it.

    Segments of one key are not joined. The blocks are concatenated column by column: a whole copy of them would need new pages.
    """
    keys = pa.concat_arrays([block.keys for block in blocks])
    counts = np.concatenate([block.counts for block in blocks])
    codes = _ranks(keys)
    order = stable_order(codes)
    sorted_counts = counts[order]
    if time_index is None:
        starts = np.cumsum(counts) - counts
        shift = starts[order] - (np.cumsum(sorted_counts) - sorted_counts)
        rows = np.repeat(shift, sorted_counts) + np.arange(sorted_counts.sum())
    else:
        rows = stable_order(np.repeat(codes, counts), np.concatenate([block.step[time_index] for block in blocks]))
    columns = zip(*(block.step for block in blocks), strict=True)
    per_series = zip(*(block.series for block in blocks), strict=True)
    return RowBlock(
        keys=keys.take(from_numpy(order)),
        counts=sorted_counts,
        step=[np.concatenate(parts)[rows] for parts in columns],
        series=[take(_end_to_end(parts), order) for parts in per_series],
    )


def _ranks(keys: pa.Array) -> Array:
    """Integers that are ordered as the keys are."""
    if not pa.types.is_large_string(keys.type):
        return to_numpy(keys)
    encoded = keys.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), dtype=np.int64)
    rank[to_numpy(pc.array_sort_indices(encoded.dictionary))] = np.arange(len(rank))
    return np.asarray(rank[to_numpy(encoded.indices)])


def _end_to_end(parts: Sequence[PerSeries]) -> PerSeries:
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)


def stable_order(*keys: Array) -> Array:
    """Return the order of the rows by the first key, then by the second, then by their position: `np.lexsort(keys[::-1])`.

    Integers and the position are packed into 64 bits, lowest bits dropped, and sorted as numbers, which NumPy does with vector
    instructions (benchmarks/store/bench_sort.py). Only rows that are equal in these bits can be in a wrong order.
    That is checked, and rare.
    """
    num_rows = len(keys[0])
    if num_rows > 1 and all(values.dtype.kind in "iu" for values in keys):
        position_bits = (num_rows - 1).bit_length()
        packed, is_exact = _packed(keys, 64 - position_bits)
        packed <<= np.uint64(position_bits)
        packed |= np.arange(num_rows, dtype=np.uint64)
        packed.sort()
        order: Array = (packed & np.uint64((1 << position_bits) - 1)).view(np.int64)
        if is_exact:
            return order
        packed >>= np.uint64(position_bits)
        ties = np.flatnonzero(packed[1:] == packed[:-1])
        if not _falls(keys, order[ties], order[ties + 1]).any():
            return order
    if len(keys) == 1:
        return np.argsort(keys[0], kind="stable")
    order = stable_order(keys[-1])
    return order[stable_order(*(values[order] for values in keys[:-1]))]


def _packed(keys: Sequence[Array], num_bits: int) -> tuple[Array, bool]:
    """The highest bits of integer keys, as numbers of at most `num_bits` bits, and whether these are all bits of the keys."""
    packed = np.zeros(len(keys[0]), dtype=np.uint64)
    for values in keys:
        low, high = int(values.min()), int(values.max())
        span = (high - low).bit_length()
        fits = min(span, num_bits)
        # Wraps around where the span exceeds int64, and is still right: differences fit into uint64.
        rest = values.astype(np.uint64)
        rest -= np.uint64(low % 2**64)
        rest >>= np.uint64(span - fits)
        packed <<= np.uint64(fits)
        packed |= rest
        num_bits -= fits
        if fits < span:
            return packed, False
    return packed, True


def _falls(keys: Sequence[Array], rows: Array, after: Array) -> Array:
    """Whether each of `after` belongs before its row."""
    falls, equal = np.zeros(len(rows), dtype=bool), np.ones(len(rows), dtype=bool)
    for values in keys:
        falls |= equal & (values[after] < values[rows])
        equal &= values[after] == values[rows]
    return falls


def join_segments(block: RowBlock) -> RowBlock:
    """Join neighbouring segments of the same key. Only for rows that are steps: it removes nothing but repeated keys."""
    if len(block.keys) < 2:
        return block
    fresh = np.ones(len(block.keys), dtype=bool)
    fresh[1:] = to_numpy(pc.not_equal(block.keys[:-1], block.keys[1:]))
    if fresh.all():
        return block
    firsts = np.flatnonzero(fresh)
    return RowBlock(
        keys=block.keys.take(from_numpy(firsts)),
        counts=np.add.reduceat(block.counts, firsts),
        step=block.step,
        series=[take(values, firsts) for values in block.series],
    )


# Keys: the values of the column that names the series.


def key_ranges(column: pa.Array, field: ColumnPlan, locate: Locate) -> tuple[pa.Array, Array]:
    """Neighbouring rows with the same key: the key (int64, uint64 or large_string) and the number of rows of each range."""
    if pa.types.is_dictionary(column.type):
        # Codes are compared instead of strings. Two codes of one string make two ranges, which the run joins again.
        refuse_missing_keys(column, field, locate)
        starts = _starts(to_numpy(column.indices))
        texts = column.dictionary.take(column.indices.take(from_numpy(starts)))
        keys = key_values(texts, field, lambda i: locate(int(starts[i])))
    elif field.kind == "text":
        refuse_missing_keys(column, field, locate)
        runs = pc.run_end_encode(column, run_end_type=pa.int64())
        starts = np.concatenate([[0], to_numpy(runs.run_ends)[:-1]]) if len(column) else np.empty(0, dtype=np.int64)
        keys = key_values(runs.values, field, lambda i: locate(int(starts[i])))
    else:
        numbers = key_values(column, field, locate)
        starts = _starts(to_numpy(numbers))
        keys = numbers.take(from_numpy(starts))
    return keys, np.diff(starts, append=len(column))


def _starts(values: Array) -> Array:
    """Rows where a value differs from the one before it."""
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])) if len(values) else np.empty(0, dtype=np.int64)


def key_values(keys: pa.Array, field: ColumnPlan, locate: Locate) -> pa.Array:
    """One key per row, as int64, uint64 or large_string; a missing one is an error."""
    refuse_missing_keys(keys, field, locate)
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    if field.kind == "text":
        refuse_missing_keys(keys, field, locate, from_numpy(to_numpy(pc.binary_length(keys)) == 0))
        return keys.cast(pa.large_string())
    if field.kind == "timestamp":
        return from_numpy(to_numbers(keys, field, locate))
    return keys.cast(pa.uint64() if field.dtype == np.uint64 else pa.int64())


def refuse_missing_keys(column: pa.Array, field: ColumnPlan, locate: Locate, missing: pa.Array | None = None) -> None:
    """Raise an error for the first null, or the first key that is `missing`."""
    if column.null_count or (missing is not None and pc.any(missing).as_py()):
        where = locate(int(to_numpy(pc.is_null(column) if missing is None else missing).argmax()))
        what = f"the key {field.name!r} is missing in {where}. Every row needs a key."
        raise BadValueError(what, parameter="series", column=field.name, **place_fields(where))


# Shaping: rows get their keys, missing values are handled, and list columns are flattened.


class Shaper:
    """Turns chunks into blocks. Keeps what lasts between them: categories, and counts of missing values."""

    def __init__(self, plan: PackPlan, categories: dict[str, Categories], new_texts: Callable[[str, list[str]], None]) -> None:
        self.plan = plan
        self.missing: dict[str, int] = {field.name: 0 for field in (*plan.step, *plan.series)}
        self.categories = categories
        self._new_texts = new_texts
        counts = [len(wide_series(schema, plan.options)) if plan.options.wide else 1 for schema in plan.schemas]
        self._firsts = np.cumsum([0, *counts]) if plan.grouping == "wide" else None
        """With `wide=True`: the number of the first series of each source, and the total."""
        self.local_times: LocalTimes | None = None
        if plan.options.times is not None and plan.options.times.timezone is not None:
            self.local_times = LocalTimes(plan.options.times)

    def block(self, chunk: Chunk, source: DataSource, number: int, series_before: int) -> RowBlock:
        """Shape one chunk. `number` is the index of the source, `series_before` the number of rows of earlier chunks."""
        table = chunk.table
        rows: range | Array = range(chunk.begin.row, chunk.end.row)
        if self.plan.rows_are_series:
            return self._lists(table, source, rows, series_before)
        kept = rows
        if self.plan.grouping != "wide" or self.plan.options.missing == "error":
            table, kept = self._without_missing(table, rows, source)

        def locate(i: int) -> str:
            return RowPlace.of(source, int(kept[i]))

        if self.plan.grouping == "wide":
            return self._wide(table, number, locate)
        if self.plan.key is None:
            keys, counts = self._keys_of(number), np.array([table.num_rows], dtype=np.int64)
        else:
            keys, counts = key_ranges(one_array(table.column(self.plan.key.name)), self.plan.key, locate)
        step = [self._values(one_array(table.column(f.name)), f, locate) for f in self.plan.step]
        return RowBlock(keys, counts, self._utc(step, keys, counts, locate), [])

    def empty(self, number: int) -> RowBlock:
        """The block of a source without rows: one series without steps per file (and column), so that each file is in the store."""
        keys = self._keys_of(number)
        return RowBlock(keys, np.zeros(len(keys), dtype=np.int64), [np.empty(0, dtype=f.dtype) for f in self.plan.step], [])

    def _keys_of(self, number: int) -> pa.Array:
        """The series of a source where no column names them: one, or with `wide=True` one per column."""
        first, end = (number, number + 1) if self._firsts is None else self._firsts[number : number + 2].tolist()
        return from_numpy(np.arange(first, end, dtype=np.int64))

    def _without_missing(self, table: pa.Table, rows: range | Array, source: DataSource) -> tuple[pa.Table, range | Array]:
        """Apply the policies "drop" and "error" to the rows of the source."""
        if self.plan.options.missing not in ("drop", "error"):
            return table, rows
        series = self.plan.options.series
        columns = {name: one_array(table.column(name)) for name in table.column_names if name != series}
        kept = self._rows_to_keep(columns, table.num_rows, lambda i: RowPlace.of(source, int(rows[i])))
        return (table, rows) if kept.all() else (table.filter(from_numpy(kept)), np.asarray(rows)[kept])

    def _rows_to_keep(self, columns: dict[str, pa.Array], num_rows: int, locate: Locate) -> Array:
        """Which rows have no missing value; with missing="error", one is an error. Missing values are counted."""
        kept = np.ones(num_rows, dtype=bool)
        for name, values in columns.items():
            mask = missing_mask(values)
            if self.plan.options.missing == "error" and mask.any():
                where = locate(int(mask.argmax()))
                raise BadValueError(
                    f"column {name!r} is missing in {where}. Fix the file, or pass missing='keep', 'ffill' or 'drop'.",
                    parameter="missing",
                    column=name,
                    **place_fields(where),
                )
            self.missing[name] = self.missing.get(name, 0) + int(mask.sum())
            kept &= ~mask
        return kept

    def _values(self, values: pa.Array, field: ColumnPlan, locate: Locate) -> PerSeries:
        """The numbers (or, per series, strings) of one column; missing values are counted."""
        if field.kind == "text":
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            self.missing[field.name] += values.null_count
            return values.cast(pa.large_string())
        gaps = values.null_count
        if gaps or (pa.types.is_floating(values.type) and field.name == self.plan.options.time):
            self._refuse_missing_time(values, field, locate)
        if self.plan.options.missing not in ("drop", "error") and field.name in self.missing:
            self.missing[field.name] += gaps
        if field.kind == "category":
            texts = values if pa.types.is_dictionary(values.type) else values.cast(pa.string())
            codes, new = self.categories[field.name].encode(texts, locate(0) if len(values) else "its first row")
            if new:
                self._new_texts(field.name, new)
            return codes
        return to_numbers(values, field, locate)

    def _refuse_missing_time(self, values: pa.Array, field: ColumnPlan, locate: Locate) -> None:
        if field.name == self.plan.options.time:
            mask = missing_mask(values)
            if mask.any():
                where = locate(int(mask.argmax()))
                what = f"the time {field.name!r} is missing in {where}. Every row needs a time."
                raise BadValueError(what, parameter="time", column=field.name, **place_fields(where))

    def _utc(self, step: list[Array], keys: pa.Array, counts: Array, locate: Locate) -> list[Array]:
        """The step columns, with local times as UTC."""
        index = self.plan.time_index
        if self.local_times is None or index is None:
            return step
        ends = np.cumsum(counts)

        def keys_of(rows: Array) -> list[Any]:
            keys_of_rows: list[Any] = keys.take(from_numpy(np.searchsorted(ends, rows, side="right"))).to_pylist()
            return keys_of_rows

        step[index] = self.local_times.to_utc(step[index], keys_of, locate)
        return step

    def _wide(self, table: pa.Table, number: int, locate: Locate) -> RowBlock:
        """One segment per column, each with the time, which all series share."""
        options, field = self.plan.options, self.plan.step[-1]
        times = None if options.time is None else self._wide_times(table, number, locate)
        step: list[list[Array]] = [[] for _ in self.plan.step]
        for name in wide_series(self.plan.schemas[number], options):
            values = one_array(table.column(name))
            mask, kept, locate_here = missing_mask(values), times, locate
            self.missing[field.name] += int(mask.sum())
            if options.missing == "drop" and mask.any():
                values, kept = values.filter(from_numpy(~mask)), None if times is None else times[~mask]
                locate_here = partial(_locate_kept, np.flatnonzero(~mask), locate)
            step[-1].append(to_numbers(values, replace(field, name=name), locate_here))
            if kept is not None:
                step[0].append(kept)
        counts = np.array([len(values) for values in step[-1]], dtype=np.int64)
        return RowBlock(self._keys_of(number), counts, [np.concatenate(parts) for parts in step], [])

    def _wide_times(self, table: pa.Table, number: int, locate: Locate) -> Array:
        """The times of a wide table, which all its series share."""
        field = self.plan.step[0]
        values = one_array(table.column(field.name))
        self._refuse_missing_time(values, field, locate)
        times = to_numbers(values, field, locate)
        if self.local_times is not None:
            times = self.local_times.to_utc(times, lambda rows: [number] * len(rows), locate)
        return times

    def _lists(self, table: pa.Table, source: DataSource, numbers: range | Array, series_before: int) -> RowBlock:
        """Rows that are whole series: list columns are flattened, the others have one value per series."""
        names = [field.name for field in self.plan.step]
        flats, counts = self._flatten(table, names, source, numbers)

        def locate_row(i: int) -> str:
            return RowPlace.of(source, int(numbers[i]))

        if self.plan.options.missing in ("drop", "error"):
            rows = np.repeat(np.arange(len(counts)), counts)
            kept = self._rows_to_keep(flats, len(rows), lambda i: locate_row(int(rows[i])))
            if not kept.all():
                flats = {name: flat.filter(from_numpy(kept)) for name, flat in flats.items()}
                counts = np.bincount(rows[kept], minlength=len(counts)).astype(np.int64)
        ends = np.cumsum(counts)

        def locate(i: int) -> str:
            row = int(np.searchsorted(ends, i, side="right"))
            step = i - int(ends[row] - counts[row])
            return RowPlace.of(source, int(numbers[row]), step)

        step = [self._values(flats[f.name], f, locate) for f in self.plan.step]
        series = [self._values(one_array(table.column(f.name)), f, locate_row) for f in self.plan.series]
        if self.plan.key is not None:
            keys = key_values(one_array(table.column(self.plan.key.name)), self.plan.key, locate_row)
        else:
            keys = from_numpy(np.arange(series_before, series_before + table.num_rows, dtype=np.int64))
        return RowBlock(keys, counts, self._utc(step, keys, counts, locate), series)

    def _flatten(
        self, table: pa.Table, names: list[str], source: DataSource, numbers: range | Array
    ) -> tuple[dict[str, pa.Array], Array]:
        flats: dict[str, pa.Array] = {}
        counts: Array | None = None
        for name in names:
            column = one_array(table.column(name))
            lengths = to_numpy(fill_null(pc.list_value_length(column), 0)).astype(np.int64)
            if counts is not None and not np.array_equal(lengths, counts):
                row = int((lengths != counts).argmax())
                raise SourceInvalidError(
                    f"row {numbers[row] + 1:,} of {source.label} has {lengths[row]:,} values in {name!r} "
                    f"but {counts[row]:,} in {names[0]!r}; the lists of one series must have the same length."
                )
            counts = lengths
            flat = column.flatten()
            if is_list(plain_type(flat.type)):
                raise SourceInvalidError(
                    f"column {name!r} of {source.label} holds lists of lists. Give each dimension a column of its own."
                )
            flats[name] = flat
        return flats, counts if counts is not None else np.empty(0, dtype=np.int64)


def _locate_kept(kept: Array, locate: Locate, i: int) -> str:
    return locate(int(kept[i]))
