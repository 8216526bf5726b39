"""Encodings of dates and times: by their parts, or relative to the event before.

    Datetime    year, month, day, hour, minute, second, milli, micro, nano: those that differ between values; parts of a second
                with more than 100 values are noise, which is drawn and not learned
    Relative    start_*: the parts of the first date of a subject, of which days to seconds that are uniform are drawn, too; or the time
                since a date of its context that no event is before; or the first integer, as `Numeric`
                gap_*: the time since the event before, as `Numeric`
    Since       the time since another date of the same row that is never after it, as `Numeric`

A relative date is exact in its own unit: constant gaps come back as they are, below a second or above a week. Missing dates are
skipped: a gap is counted from the last date of the same subject, and only from there. Where no gap is negative in the training data, none
is generated: dates and integers of a subject never go back (`rise`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from stoker.extend import Array, kernel
from stoker_recipes.tabular import join_days, split_days
from stoker_recipes.tabular.encodings import Encoding, Moment, Numeric, Subjects, fit_numeric
from stoker_recipes.tabular.rhythm import Rhythm, fit_rhythm
from stoker_recipes.tabular.values import Values, to_column

NANOS = {"D": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY = NANOS["D"]
CLOCK = {
    "hour": (3600 * 10**9, 24), "minute": (60 * 10**9, 60), "second": (10**9, 60), "milli": (10**6, 1000), "micro": (10**3, 1000),
    "nano": (1, 1000),
}  # fmt: skip
"""Nanoseconds of a part, and how many of them the next one has."""

MOST_FRACTIONS = 100
LEAST_RISES = 20
"""Integers that rise this often within subjects, and never fall, do so by a rule: by chance they would once in 2**20 tables."""
LEAST_OVERLAP = 0.1
"""A date is counted from another one of its row if it would be before that one in this share of other rows."""
MOST_DEVIATIONS = 4.0
"""Days, hours, minutes or seconds whose chi-square statistic exceeds its mean by fewer standard deviations are uniform."""


def unit_of(kind: pa.DataType) -> str:
    """The unit that values of a type count: "D", "s", "ms", "us" or "ns"."""
    return "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else str(kind.unit)


def split_date(data: Array, unit: str) -> dict[str, Array]:
    """The parts of times, in UTC."""
    per_day = DAY // NANOS[unit]
    days, rest = np.divmod(data, per_day)
    parts: dict[str, Array] = dict(zip(("year", "month", "day"), split_days(days), strict=True))
    for name, (nanos, count) in CLOCK.items():
        if nanos >= NANOS[unit]:
            parts[name] = rest // (nanos // NANOS[unit]) % count
    return parts


def join_date(parts: dict[str, Array], unit: str) -> Array:
    """Times of parts; a day beyond the end of its month is the last day of it."""
    first, length = _months(parts)
    days = first + np.minimum(parts["day"], length) - 1
    data = days * (DAY // NANOS[unit])
    for name, (nanos, _) in CLOCK.items():
        if nanos >= NANOS[unit]:
            data = data + parts[name] * (nanos // NANOS[unit])
    return np.asarray(data)


def _months(parts: dict[str, Array]) -> tuple[Array, Array]:
    """The first day of the month of dates, counted from 1970, and its number of days."""
    first = join_days(parts["year"], parts["month"], 1)
    return first, join_days(parts["year"], parts["month"] + 1, 1) - first


def _possible_days(parts: dict[str, Array], unit: str, low: int, high: int) -> tuple[Array, Array]:
    """The first and the last day of the month of dates that lies between two times."""
    first, length = _months(parts)
    per_day = DAY // NANOS[unit]
    least = np.clip(low // per_day - first + 1, 1, length)
    return least, np.clip(high // per_day - first + 1, least, length)


class DatePart(Struct, frozen=True, kw_only=True):
    """A part of dates: the classes are `low` and the integers after it."""

    name: str
    low: int
    size: int
    is_drawn: bool = False


class Datetime(Encoding, frozen=True, kw_only=True, tag="datetime"):
    """One sub-column per part that differs between values; `nan` before them where values are missing."""

    parts: list[DatePart]
    unit: str
    low: int
    high: int
    has_null: bool

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        learned = {part.name: part.size for part in self.parts if part.size > 1 and not part.is_drawn}
        return ({"nan": 2} if self.has_null else {}) | (learned or ({} if self.has_null else {"year": 1}))

    def ordered(self) -> dict[str, int]:
        """Sub-columns whose classes are in the order of values, from this class on."""
        return dict.fromkeys((name for name in self.sizes if name != "nan"), 0)

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        parts = split_date(np.clip(values.data, self.low, self.high), self.unit)
        codes = {part.name: np.clip(parts[part.name] - part.low, 0, part.size - 1) for part in self.parts}
        columns = [~values.valid if name == "nan" else np.where(values.valid, codes[name], 0) for name in self.sizes]
        return np.stack(columns, 1).astype(np.int64)

    def numbers(self, codes: Array, uniform: Array) -> tuple[Array, Array]:
        """Times and whether they are there, of classes and of uniform numbers from [0, 1)."""
        valid = codes[:, 0] == 0 if self.has_null else np.ones(len(codes), bool)
        learned = dict(zip(self.sizes, codes.T, strict=True))
        none = np.zeros(len(codes), np.int64)
        parts = {part.name: part.low + learned.get(part.name, none) for part in self.parts}
        rest = uniform
        for part in self.parts:
            if part.is_drawn:  # each takes what the ones before have left of the random number
                low, high = none, none + CLOCK.get(part.name, (0, 1))[1] - 1
                if part.name == "day":
                    low, high = _possible_days(parts, self.unit, self.low, self.high)
                whole = np.floor(rest * (high - low + 1))
                parts[part.name], rest = low + whole.astype(np.int64), rest * (high - low + 1) - whole
        return np.clip(join_date(parts, self.unit), self.low, self.high), valid

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        data, valid = self.numbers(codes, uniform)
        return to_column(np.where(valid, data, 0), valid, kind)


def fit_datetime(values: Values, subjects: Subjects, kind: pa.DataType, *, is_start: bool = False) -> Datetime | None:
    """Find the parts that differ; None where no value may be kept."""
    bounds = subjects.bounds(values.data, values.valid)
    if bounds is None:
        return None
    low, high = map(int, bounds)
    unit = unit_of(kind)
    parts_of = split_date(np.clip(values.data[values.valid], low, high), unit)
    days = _possible_days(parts_of, unit, low, high)
    parts = [
        DatePart(
            name=name,
            low=int(part.min()),
            size=int(part.max() - part.min()) + 1,
            is_drawn=_is_noise(name, part, days, is_start=is_start),
        )
        for name, part in parts_of.items()
    ]
    return Datetime(parts=parts, unit=unit, low=low, high=high, has_null=not bool(values.valid.all()))


def _is_noise(name: str, values: Array, days: tuple[Array, Array], *, is_start: bool) -> bool:
    """Whether a part of times is not worth learning: a head for it would only learn the training subjects by heart."""
    count = CLOCK.get(name, (DAY, 31))[1]
    if name in CLOCK and CLOCK[name][0] < 10**9:
        return len(np.unique(values)) > MOST_FRACTIONS
    if not is_start or name not in ("day", "hour", "minute", "second") or len(values) < 5 * count:
        return False
    expected, counts = np.full(count, len(values) / count), np.bincount(values, minlength=count)
    if name == "day":  # of the days that its month has
        each = 1 / (days[1] - days[0] + 1)
        begin, end = (np.bincount(edge, each, minlength=count + 2) for edge in (days[0], days[1] + 1))
        expected, counts = np.maximum(np.cumsum(begin - end)[1:-1], 1e-9), np.bincount(values - 1, minlength=count)
    statistic = ((counts - expected) ** 2 / expected).sum()
    return bool(statistic - (count - 1) < MOST_DEVIATIONS * np.sqrt(2 * (count - 1)))


class Relative(Encoding, frozen=True, kw_only=True, tag="relative"):
    """The first date of a subject by its parts, others by the time since the date before; `nan` where dates are missing."""

    start: Datetime | Numeric
    gap: Numeric
    has_null: bool
    base: str | None = None
    """The date of the context that the first one is counted from."""
    floors: tuple[str, ...] = ()
    """Other dates of the context that the first one is never before."""
    rhythm: Rhythm | None = None
    """How gaps and first dates depend on weekdays and months, where they do."""

    @property
    def bases(self) -> list[str]:
        """The dates of the context that first dates depend on."""
        return [*([] if self.base is None else [self.base]), *self.floors]

    @property
    def rises(self) -> bool:
        """Whether the dates of a subject never go back."""
        return self.gap.lows[0] >= 0

    @property
    def inner(self) -> dict[str, Encoding]:
        """The encodings that it is made of, by the begin of the names of their sub-columns."""
        return {"start_": self.start, "gap_": self.gap}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        return ({"nan": 2} if self.has_null else {}) | super().sizes

    def never(self) -> dict[str, list[int]]:
        """Classes that are not to be generated: later events have a gap."""
        return {} if self.has_null else {"gap_bin": [0]}

    def moments(self) -> dict[str, Moment]:
        """Where no date is missing, the first event has the start, and later ones have gaps."""
        return {} if self.has_null else {name: "first" if name.startswith("start_") else "later" for name in self.sizes}

    def encode(self, values: Values, starts: Array, bounds: Mapping[str, Values] | None = None) -> Array:
        """The codes of values, (rows, sub-columns); `bounds` are the dates of contexts, a row per subject."""
        first, gap, has_gap = gaps_of(values, starts)
        begins = values if self.base is None else _since_context(values, starts, (bounds or {})[self.base])
        start = np.where(first[:, None], self.start.encode(begins, starts), 0)
        gaps = self.gap.encode(Values(family="number", data=gap, valid=has_gap), starts)
        columns = [start, gaps] if not self.has_null else [~values.valid[:, None], start, gaps]
        return np.asarray(np.concatenate(columns, 1), np.int64)

    def decode(
        self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array, bounds: Mapping[str, Values] | None = None
    ) -> pa.Array:
        """The values of codes; `bounds` are the dates of contexts, a row per subject."""
        valid = codes[:, 0] == 0 if self.has_null else np.ones(len(codes), bool)
        of_row = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(codes))))
        begin = self.first_dates(codes, uniform, {name: dates.data[of_row] for name, dates in (bounds or {}).items()})
        at = int(self.has_null) + len(self.start.sizes)
        gap, has_gap = self.gap.numbers(codes[:, at:], uniform)
        first = first_valid(valid, starts)
        # A running sum over all rows; a subject's own is the difference to its first date.
        added = np.cumsum(np.where(valid & has_gap & ~first, gap, 0))
        owner = np.maximum.accumulate(np.where(first, np.arange(len(codes)), 0)) if len(codes) else np.zeros(0, np.int64)
        data = begin[owner] + added - added[owner] if len(codes) else begin
        return to_column(np.where(valid, data, 0), valid, kind)

    def first_dates(self, codes: Array, uniform: Array, bounds: Mapping[str, Array]) -> Array:
        """First dates, of codes (rows, sub-columns) and the dates of contexts of each row."""
        at = int(self.has_null)
        begin, _ = self.start.numbers(codes[:, at : at + len(self.start.sizes)], uniform)
        since = begin
        if self.base is not None:
            begin = begin + bounds[self.base]
        if self.rhythm is not None and self.rhythm.first:
            moved = self.rhythm.on_weekday(begin, uniform)
            if isinstance(self.start, Numeric):  # a short time since the other date stays
                begin = np.where(since >= 4 * self.rhythm.per_day, moved, begin)
            elif any(part.name == "day" and part.is_drawn for part in self.start.parts):  # a day that is learned stays
                begin = np.clip(moved, self.start.low, self.start.high)
        for name in self.floors:
            begin = np.maximum(begin, bounds[name])
        return begin


class Since(Encoding, frozen=True, kw_only=True, tag="since"):
    """The time since a date of another column, so that the date is never before that one."""

    null_class = 0
    base: str
    gap: Numeric
    rises: bool = False
    """Whether the dates of a subject never go back."""

    @property
    def has_null(self) -> bool:
        """Whether dates are missing."""
        return self.gap.has_null

    @property
    def inner(self) -> dict[str, Encoding]:
        """The encodings that it is made of, by the begin of the names of their sub-columns."""
        return {"gap_": self.gap}

    def encode(self, values: Values, starts: Array, others: Mapping[str, Values]) -> Array:
        """The codes of values, (rows, sub-columns); `others` has the dates that they are counted from."""
        return self.gap.encode(since(values, others[self.base]), starts)

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array, others: Mapping[str, Values]) -> pa.Array:
        """The values of codes; `others` has the dates that they are counted from."""
        base = others[self.base]
        gap, has_gap = self.gap.numbers(codes, uniform)
        valid = has_gap & base.valid
        data = np.where(valid, base.data + gap, 0)
        if self.rises:  # later than the base, so still not before it
            rise(data, valid, np.zeros(len(data), np.bool_), starts)
        return to_column(data, valid, kind)


def since(values: Values, base: Values) -> Values:
    """The time from one date to the other."""
    valid = values.valid & base.valid
    return Values(family="number", data=np.where(valid, values.data - base.data, 0), valid=valid)


def find_base(values: Values, others: Mapping[str, Values], *, least: int) -> str | None:
    """The date that is never after this one, and nearest to it; None where there is none.

    That must be a rule of rows. It is none where all dates of one column are before nearly all of the other, as dates of birth are.
    """
    rows, means = np.flatnonzero(values.valid), {}
    for name, other in others.items():
        gap = values.data[rows] - other.data[rows]
        if len(rows) > 2 * least and other.valid.all() and (gap >= 0).all():
            mixed = np.roll(rows, len(rows) // 2 + 1)
            if (values.data[rows] < other.data[mixed]).mean() > LEAST_OVERLAP:
                means[name] = gap.mean()
    return min(means, key=lambda name: means[name]) if means else None


def fit_since(values: Values, base: str, other: Values, subjects: Subjects, *, rises: bool = False) -> Since | None:
    """Find intervals of the time between two dates; None where no value may be kept."""
    gap = fit_numeric(since(values, other), subjects)
    return None if gap is None else Since(base=base, gap=gap, rises=rises)


def find_floors(values: Values, starts: Array, others: Mapping[str, Values], *, least: int) -> tuple[str | None, list[str]]:
    """Find the dates of contexts that no event is before: the one that first dates are counted from, and the others."""
    first = first_valid(values.valid, starts)
    owner = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))[first]
    begins = Values(family="time", data=values.data[first], valid=np.ones(len(owner), bool))
    of_events = {
        name: Values(family="time", data=other.data[owner], valid=other.valid[owner])
        for name, other in others.items()
        if other.valid.all() and len(owner) > 2 * least and (other.data[owner] <= begins.data).all()
    }
    base = find_base(begins, of_events, least=least)
    return base, [name for name in of_events if name != base]


def _since_context(values: Values, starts: Array, base: Values) -> Values:
    """The time since the date of the context of each row."""
    owner = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))
    return Values(family="number", data=values.data - base.data[owner], valid=values.valid)


@kernel
def rise(data: Array, valid: Array, fixed: Array, starts: Array) -> None:
    """Raise the values of each subject that are before an earlier one, in place.

    Fixed values stay. A value before a fixed one is at most as late as that one.
    """
    for subject in range(len(starts)):
        begin, end = starts[subject], starts[subject + 1] if subject + 1 < len(starts) else len(data)
        bound, is_bound = data[begin:end].max() if end > begin else 0, False
        for i in range(end - 1, begin - 1, -1):
            if valid[i] and fixed[i]:
                bound, is_bound = data[i], True
            elif valid[i] and is_bound:
                data[i] = min(data[i], bound)
        is_bound = False
        for i in range(begin, end):
            if valid[i]:
                if is_bound and not fixed[i]:
                    data[i] = max(data[i], bound)
                bound, is_bound = data[i], True


def never_falls(values: Values, starts: Array, *, least: int) -> bool:
    """Whether values never fall within subjects, and rise at least `least` times."""
    _, gap, has_gap = gaps_of(values, starts)
    return bool(has_gap.any() and (gap[has_gap] >= 0).all() and (gap[has_gap] > 0).sum() >= least)


def first_valid(valid: Array, starts: Array) -> Array:
    """Whether a row is the first of its subject that is valid."""
    before = np.append(0, np.cumsum(valid))
    owner = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(valid))))
    return np.asarray(valid & (before[:-1] == before[starts][owner]))


def gaps_of(values: Values, starts: Array) -> tuple[Array, Array, Array]:
    """Of each row: whether it has the first date of its subject; the time since the date before; whether there is one."""
    first = first_valid(values.valid, starts)
    rows = np.arange(len(values))
    last = np.maximum.accumulate(np.where(values.valid, rows, 0)) if len(rows) else rows
    before = np.append(0, last[:-1]) if len(rows) else rows
    has_gap = values.valid & ~first
    return first, np.where(has_gap, values.data - values.data[before], 0) if len(rows) else rows, has_gap


def fit_relative(
    values: Values, subjects: Subjects, kind: pa.DataType, *, base: str | None = None, floors: Sequence[str] = (),
    bounds: Mapping[str, Values] | None = None,
) -> Relative | None:  # fmt: skip
    """Find parts of first dates, or intervals of first integers, and intervals of gaps; None where no value may be kept."""
    first, gap, has_gap = gaps_of(values, subjects.starts)
    start: Datetime | Numeric | None
    if base is not None or values.family == "number":
        begins = values if base is None else _since_context(values, subjects.starts, (bounds or {})[base])
        start = fit_numeric(Values(family="number", data=begins.data, valid=first), subjects)
    else:
        start = fit_datetime(Values(family="time", data=values.data, valid=first), subjects, kind, is_start=True)
    gaps = fit_numeric(Values(family="number", data=gap, valid=has_gap), subjects)
    if start is None or gaps is None:
        return None
    # Dates that are missing have a class of their own; a gap that is missing is that of a first date.
    start = structs.replace(start, has_null=False)
    gaps = structs.replace(gaps, decimals=None, has_null=True)
    rhythm = None
    if values.family == "time" and values.valid.all() and gaps.lows[0] >= 0:
        rhythm = fit_rhythm(values.data, subjects.starts, DAY // NANOS[unit_of(kind)])
    return Relative(start=start, gap=gaps, has_null=not bool(values.valid.all()), base=base, floors=tuple(floors), rhythm=rhythm)
