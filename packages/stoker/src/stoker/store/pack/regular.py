"""`StepRules`: rows in their final order become the steps that `duplicates=` and `freq=` ask for.

1. Rows of a series with equal times become one row: the first or the last.
2. Between two times, the steps of the frequency that are missing become rows without values.

Blocks may end anywhere. The last row so far is kept for the next block, because rows with the same time may follow it. So the result
does not depend on where blocks end. All that lasts between two blocks are two rows, which the journal of a pack keeps.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.errors import BadValueError, OptionError
from stoker.store.arrow import from_numpy
from stoker.store.manifest import LAST_DAY, NANOSECONDS, month_parts, month_time, parse_frequency
from stoker.store.pack.blocks import PerSeries, RowBlock, join_segments
from stoker.store.pack.column_types import ColumnPlan
from stoker.store.pack.plan import PackPlan
from stoker.store.pack.sorted_runs import SortedRun, UnsortedTimesError
from stoker.store.pack.values import Key, show_time, to_bfloat16, to_local, to_utc
from stoker.store.shards import MISSING_CODE, MISSING_TIME

MAX_GAP_STEPS = 10**8


class OffGridError(Exception):
    """A time is between two steps of the grid."""

    def __init__(self, key: Key, before: int, time: int) -> None:
        super().__init__(key, before, time)
        self.key, self.before, self.time = key, before, time


class IntegerGapsError(Exception):
    """A step is missing, but a column of integers has no value for it."""


class RulesMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lasts between two blocks: the row that waits for the next block, the row before it, and counts for notes."""

    key: Key | None = None
    held: list[bytes] | None = None  # one value per column
    last: list[bytes] | None = None  # the row before it, if that is of the same series
    day: int = 0
    merged: int = 0
    added: int = 0


class StepRules:
    """Applies `duplicates=` and `freq=`. `num_merged` and `num_added` count rows, for notes."""

    def __init__(self, plan: PackPlan) -> None:
        options = plan.options
        self._plan, self._options = plan, options
        self._keeps = options.times.duplicates if options.times is not None else None
        self._time = plan.time_index if plan.time_index is not None else 0
        self._grid = StepGrid.of(plan.step[self._time], options.freq) if options.freq is not None and options.fills_steps else None
        self.restore(RulesMark())

    def restore(self, mark: RulesMark) -> None:
        """Continue from a journal; an empty mark begins again."""
        self._key, self._day = mark.key, mark.day
        self._held, self._last = self._row(mark.held), self._row(mark.last)
        self.num_merged, self.num_added = mark.merged, mark.added

    def _row(self, parts: Sequence[bytes] | None) -> list[Array] | None:
        fields = self._plan.step
        return None if parts is None else [np.frombuffer(p, dtype=f.dtype) for p, f in zip(parts, fields, strict=True)]

    def mark(self) -> RulesMark:
        """The state after the blocks so far."""
        return RulesMark(
            key=self._key,
            held=None if self._held is None else [values.tobytes() for values in self._held],
            last=None if self._last is None else [values.tobytes() for values in self._last],
            day=self._day,
            merged=self.num_merged,
            added=self.num_added,
        )

    def apply(self, block: RowBlock | None, max_rows: int) -> Iterator[RowBlock]:
        """The steps that are known with this block, or, with None, at the end; in parts of at most `max_rows` rows."""
        is_end = block is None
        joined = self._with_held(block)
        if joined is None:
            return
        steps = self._merge_equal(joined)
        key, num_rows = steps.keys[-1].as_py(), len(steps.step[0])
        num_kept = num_rows - (0 if is_end or not steps.counts[-1] else 1)
        before = self._last if self._held is not None else None  # the row before the first one
        day = self._day
        if self._grid is not None:
            day = yield from self._fill(steps, num_kept, before, max_rows)
        else:
            yield _first_rows(steps, num_kept)
        self._held = [values[num_kept:].copy() for values in steps.step] if num_kept < num_rows else None
        if steps.counts[-1] - (num_rows - num_kept):
            self._last, self._day = [values[num_kept - 1 : num_kept].copy() for values in steps.step], day
        elif len(steps.keys) > 1 or key != self._key:
            self._last = None
        self._key = key

    def _with_held(self, block: RowBlock | None) -> RowBlock | None:
        """The block behind the row that waited for it."""
        block = None if block is None or not len(block.keys) else join_segments(block)
        if self._held is None or block is None:
            return block if self._held is None else RowBlock(self._own_key(), np.array([1]), self._held, self._no_values())
        step = [np.concatenate(pair) for pair in zip(self._held, block.step, strict=True)]
        if block.keys[0].as_py() == self._key:
            counts = block.counts.copy()
            counts[0] += 1
            return RowBlock(block.keys, counts, step, block.series)
        return RowBlock(
            pa.concat_arrays([self._own_key().cast(block.keys.type), block.keys]),
            np.concatenate([[1], block.counts]),
            step,
            [_join(pair) for pair in zip(self._no_values(), block.series, strict=True)],
        )

    def _own_key(self) -> pa.Array:
        is_text = isinstance(self._key, str)
        dtype = np.uint64 if self._plan.key is not None and self._plan.key.dtype == np.uint64 else np.int64
        return pa.array([self._key], pa.large_string()) if is_text else from_numpy(np.array([self._key], dtype=dtype))

    def _no_values(self) -> list[PerSeries]:
        """Series-level values for the row that waited. Those of its series are written, so these are ignored."""
        return [pa.array([""], pa.large_string()) if f.kind == "text" else np.zeros(1, f.dtype) for f in self._plan.series]

    def _merge_equal(self, block: RowBlock) -> RowBlock:
        """Rows of equal times become one."""
        times, num_rows = block.step[self._time], len(block.step[0])
        series = np.repeat(np.arange(len(block.counts)), block.counts)
        is_same = np.concatenate([[False], series[1:] == series[:-1]]) if num_rows else np.zeros(0, dtype=bool)
        is_new = np.ones(num_rows, dtype=bool)
        is_new[1:] = (times[1:] != times[:-1]) | ~is_same[1:]
        falls = np.zeros(num_rows, dtype=bool)
        falls[1:] = is_same[1:] & (times[1:] < times[:-1])
        if falls.any() or (not is_new.all() and not self._options.merges_duplicates):
            row = int((falls | ~is_new).argmax())
            raise UnsortedTimesError(block.keys[int(series[row])].as_py(), times[row - 1].item(), times[row].item())
        firsts = np.flatnonzero(is_new)
        self.num_merged += num_rows - len(firsts)
        rows = firsts if self._keeps != "last" else np.append(firsts[1:], num_rows) - 1
        step = list(block.step) if len(firsts) == num_rows else [values[rows] for values in block.step]
        counts = np.bincount(series[firsts], minlength=len(block.counts)) if len(firsts) else np.zeros_like(block.counts)
        return RowBlock(block.keys, counts, step, block.series)

    def _fill(self, steps: RowBlock, num_kept: int, last: list[Array] | None, max_rows: int) -> Generator[RowBlock, None, int]:
        """Rows for missing steps in front of the first `num_kept` rows. Returns the day of the month of the last series."""
        grid, times = self._grid, steps.step[self._time]
        if grid is None:
            raise RuntimeError("there is no grid")
        if not len(times):
            yield steps
            return self._day
        series = np.repeat(np.arange(len(steps.counts)), steps.counts)
        has_before = np.concatenate([[last is not None], series[1:] == series[:-1]])
        first_before = times[:1] if last is None else last[self._time]
        local = grid.local(np.concatenate([first_before, times]))
        before, now = np.where(has_before, local[:-1], local[1:]), local[1:]
        days = self._days_of(now, series, steps.counts, is_old=last is not None)
        repeats, on_grid = grid.steps_between(before, now, days)
        repeats[~has_before] = 1
        bad = has_before & ~on_grid
        if bad.any():
            row = int(bad.argmax())
            known = times[row - 1] if row else first_before[0]
            raise OffGridError(steps.keys[int(series[row])].as_py(), int(known), int(times[row]))
        day = int(days[-1])
        if (repeats[:num_kept] == 1).all():
            yield _first_rows(steps, num_kept)
            return day
        self._refuse_gap(steps, repeats, before, series)
        ends = np.cumsum(repeats[:num_kept])
        self.num_added += int(ends[-1]) - num_kept
        rows_before = [np.concatenate([values[:1] if last is None else last[i], values]) for i, values in enumerate(steps.step)]
        from_series = 0
        for start in range(0, int(ends[-1]), max_rows):
            places = np.arange(start, min(start + max_rows, int(ends[-1])))
            rows = np.searchsorted(ends, places, side="right")
            number = places - (ends[rows] - repeats[rows]) + 1
            is_gap = number < repeats[rows]
            step = [self._gap_values(i, values, rows, is_gap) for i, values in enumerate(rows_before)]
            gap_times = grid.times_after(before[rows[is_gap]], number[is_gap], days[rows[is_gap]])
            step[self._time][is_gap] = gap_times
            is_last_part = places[-1] + 1 == ends[-1]
            to_series = len(steps.keys) - 1 if is_last_part else int(series[rows[-1]])
            counts = np.bincount(series[rows] - from_series, minlength=to_series - from_series + 1)
            part = slice(from_series, to_series + 1)
            yield RowBlock(steps.keys[part], counts, step, [values[part] for values in steps.series])
            from_series = to_series
        return day

    def _days_of(self, local: Array, series: Array, counts: Array, *, is_old: bool) -> Array:
        """For each row the day of the month on which the steps of its series are, with a frequency of months."""
        if self._grid is None or not self._grid.months:
            return np.zeros(len(local), dtype=np.int64)
        starts = (np.cumsum(counts) - counts)[series]
        seconds = np.minimum(starts + 1, starts + counts[series] - 1)
        days = self._grid.day_of(local[starts], local[seconds])
        if is_old:
            days[series == 0] = self._day
        return days

    def _gap_values(self, i: int, values: Array, rows: Array, is_gap: Array) -> Array:
        """Values of column i: those of each row, and missing ones, or those of the row before, in gaps."""
        if self._options.missing == "ffill":
            found: Array = values[rows + ~is_gap]
            return found
        found = values[rows + 1]
        if i != self._time:
            field = self._plan.step[i]
            found[is_gap] = to_bfloat16(np.array([np.nan], "f4"))[0] if field.kind == "bfloat16" else _missing_of(field)
        return found

    def _refuse_gap(self, steps: RowBlock, repeats: Array, before: Array, series: Array) -> None:
        """Missing steps that cannot become rows: too many, not wanted, or in integers."""
        row = int((repeats > 1).argmax())
        field = self._plan.step[self._time]
        name = f"series {steps.keys[int(series[row])].as_py()!r}" if self._plan.key is not None else "a series"
        where = f"the time {field.name!r} of {name} has {int(repeats[row]) - 1:,} missing steps of freq={self._options.freq!r}"
        where += f" after {show_time(before[row], field.unit or 'ns')}"
        if self._options.missing == "error":
            raise BadValueError(f"{where}. Fix the file, or pass missing='keep' or 'ffill'.")
        if int(repeats.max()) > MAX_GAP_STEPS:
            raise OptionError(
                f"{where}; at most {MAX_GAP_STEPS:,} can be added. Is freq= right? Time(regular=False) only declares it.",
                parameter="freq",
            )
        others = [field for i, field in enumerate(self._plan.step) if i != self._time and not field.can_be_missing]
        if others and self._options.missing != "ffill":
            raise IntegerGapsError(
                f"{where}, which column {others[0].name!r} cannot store as {others[0].dtype}. "
                "Choose a float type with dtype=, pass missing='ffill', or Time(regular=False)."
            )


def _first_rows(steps: RowBlock, num_rows: int) -> RowBlock:
    """The block without the row that waits for the next one."""
    if num_rows == len(steps.step[0]):
        return steps
    counts = steps.counts.copy()
    counts[-1] -= 1
    return RowBlock(steps.keys, counts, [values[:num_rows] for values in steps.step], steps.series)


def _join(pair: tuple[PerSeries, PerSeries]) -> PerSeries:
    return np.concatenate(pair) if isinstance(pair[1], np.ndarray) else pa.concat_arrays(pair)


def _missing_of(field: ColumnPlan) -> Any:
    return MISSING_CODE if field.kind == "category" else MISSING_TIME if field.kind in ("timestamp", "duration") else np.nan


# The grid of a frequency. Days, weeks and months are those of the local calendar where the times have a zone; hours are not.


@dataclass(frozen=True, kw_only=True)
class StepGrid:
    """The steps of a frequency in the unit of a time column."""

    unit: str
    per_day: int
    step: int  # in units; 0 for months
    months: int
    zone: str | None  # if steps are those of its calendar

    @classmethod
    def of(cls, field: ColumnPlan, freq: str) -> StepGrid:
        """The grid for a time column; raises `OptionError` where it has none."""
        frequency = parse_frequency(freq, "freq")
        unit, _, zone = (field.unit or "").partition(", ")
        if field.kind not in ("timestamp", "duration") or (frequency.months and field.kind == "duration"):
            kind = field.dtype.name if field.kind == "number" else field.kind
            raise OptionError(
                f"freq={freq!r} needs times, but the time column {field.name!r} is {kind}. Leave freq= out.", parameter="freq"
            )
        per_day = NANOSECONDS["d"] // NANOSECONDS[unit]
        step, rest = divmod(frequency.nanoseconds, NANOSECONDS[unit])
        if rest:
            raise OptionError(
                f"freq={freq!r} is finer than the times of column {field.name!r}, which are in {unit}.", parameter="freq"
            )
        is_calendar = frequency.months > 0 or frequency.text[-1] in "dw"
        return cls(
            unit=unit,
            per_day=per_day,
            step=step,
            months=frequency.months,
            zone=zone if is_calendar and zone not in ("", "UTC") else None,
        )

    def local(self, times: Array) -> Array:
        """Times on the clock that the steps follow."""
        return times if self.zone is None else to_local(times, self.unit, self.zone)

    def day_of(self, first: Array, second: Array) -> Array:
        """The day of the month that a series has: that of its first time, or the last day if its first two times are last days."""
        (_, day, _, size), (_, next_day, _, next_size) = month_parts(first, self.per_day), month_parts(second, self.per_day)
        return np.where((day == size - 1) & (next_day == next_size - 1), LAST_DAY, day)

    def steps_between(self, before: Array, now: Array, days: Array) -> tuple[Array, Array]:
        """The number of steps from one time to a later one, and whether it is an integer."""
        if self.step:
            count, rest = np.divmod(now.astype(np.uint64) - before.astype(np.uint64), np.uint64(self.step))
            return count.astype(np.int64), (rest == 0) & (now > before)
        month, day, rest, size = month_parts(now, self.per_day)
        month_before, _, rest_before, _ = month_parts(before, self.per_day)
        count, left = np.divmod(month - month_before, self.months)
        return count, (left == 0) & (day == np.minimum(days, size - 1)) & (rest == rest_before) & (count > 0)

    def times_after(self, before: Array, number: Array, days: Array) -> Array:
        """The times that many steps after others, as the column stores them."""
        if self.step:
            found = before + number * self.step
        else:
            month, _, rest, _ = month_parts(before, self.per_day)
            found = month_time(month + number * self.months, days, rest, self.per_day)
        return found if self.zone is None else to_utc(found, self.unit, self.zone)


# Without a frequency: are the steps regular?

_SAMPLE, _PART = 1 << 12, 1 << 17


def describe_irregular(run: SortedRun, field: ColumnPlan, index: int) -> str | None:
    """A note if most steps of a run have one length, but not all; None if the times are regular, or have no such step.

    Months differ in length, and days with a zone may have 23 or 25 hours: these are not irregular.
    """
    unit, _, zone = (field.unit or "").partition(", ")
    parts = _steps_of(run, index)
    first = next(parts, np.zeros(0, dtype=np.int64))
    sample = first[:_SAMPLE]
    found, counts = np.unique(sample[sample > 0], return_counts=True)
    if not len(found):
        return None
    common, day = int(found[counts.argmax()]), NANOSECONDS["d"] // NANOSECONDS[unit]
    if common >= 28 * day:
        return None
    tolerance = day // 24 if zone and common % day == 0 else 0
    total = irregular = 0
    largest = common
    for steps in itertools.chain([first], parts):
        others = steps[steps != common]  # few, where times are nearly regular
        total += len(steps) - len(others)
        others = others[others > 0]
        total, irregular = total + len(others), irregular + int((np.abs(others - common) > tolerance).sum())
        largest = max(largest, int(others.max(initial=0)))
    if not irregular or irregular * 2 > total:
        return None
    usual, most = (_duration(size * NANOSECONDS[unit]) for size in (common, largest))
    what = f"{irregular:,} of {total:,} steps of the time {field.name!r} are not {usual} (the largest: {most})"
    return f"{what}: windows span such gaps, unless --freq {usual} adds the missing steps"


def _steps_of(run: SortedRun, index: int) -> Iterator[Array]:
    """The differences of neighbouring times, in parts; 0 where a series begins."""
    row = 0
    for first in range(0, run.num_series, _PART):
        counts = run.counts.read(first, min(first + _PART, run.num_series))
        starts, end = (row + np.cumsum(counts) - counts)[counts > 0], row + int(counts.sum())
        while row < end:
            base, stop = max(row, 1), min(row + _PART, end)
            steps = np.diff(run.step[index].read(base - 1, stop))
            inside = slice(*np.searchsorted(starts, [base, stop]).tolist())
            steps[starts[inside] - base] = 0
            yield steps
            row = stop


def _duration(nanoseconds: int) -> str:
    """A duration in the largest unit that it is a multiple of, as `freq=` takes it."""
    unit, size = next((unit, size) for unit, size in reversed(NANOSECONDS.items()) if nanoseconds % size == 0)
    return f"{nanoseconds // size}{unit}"
