"""Encodings as mostlyai-engine has them, and `encoding_of`: an encoding from an entry of its stats.json.

    Digit            nan, neg, E2, E1, E0, E-1, ...    one class per decimal digit
    Binned           bin    up to 100 intervals between quantiles, with classes for unknown, missing, minimum, maximum
    DatetimeParts    nan, year, month, day [, hour, minute, second [, ms_E2, ms_E1, ms_E0]]
    RelativeParts    nan, start_year, ..., start_second of the first date; itt_neg, itt_week, ..., itt_second since the event before

Codes are those of mostlyai-engine for the same statistics. Where a value is missing they are 0; `compat.encode` fills them as
mostlyai-engine does, from random other values. Two things differ, because there they are wrong: a missing date is filled from the same
subject only, and a relative date is decoded from all events of a subject at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.encode import split_digits
from stoker.errors import OptionError
from stoker.recipes.tabular.dates import first_valid, join_date, split_date
from stoker.recipes.tabular.encodings import RARE, Categorical, Encoding, find_intervals
from stoker.recipes.tabular.values import Values, to_column

KINDS = {
    "TABULAR_CATEGORICAL": "text", "TABULAR_NUMERIC_AUTO": "number", "TABULAR_NUMERIC_DIGIT": "number",
    "TABULAR_NUMERIC_DISCRETE": "number", "TABULAR_NUMERIC_BINNED": "number", "TABULAR_DATETIME": "time",
    "TABULAR_DATETIME_RELATIVE": "time",
}  # fmt: skip
"""The kinds of columns, and what their values are read as. Characters and places have encodings in the recipe itself."""
NULL, MINIMUM = "<<NULL>>", "<<MIN>>"
ESCAPE = "\x01"
SECOND, DAY = 10**6, 86_400 * 10**6
"""In microseconds, as all dates are here."""
DATE, TIME, MILLIS = ("year", "month", "day"), ("hour", "minute", "second"), ("ms_E2", "ms_E1", "ms_E0")
ITT = {"week": 7 * 86_400, "day": 86_400, "hour": 3600, "minute": 60, "second": 1}
"""Seconds of the parts of a gap."""


class Digit(Encoding, frozen=True, kw_only=True, tag="digit"):
    """Decimal digits between the highest and the lowest place, counted from the smallest that occurs there."""

    highest: int
    lows: list[int]
    """The smallest digit of each place, from the highest place on."""
    highs: list[int]
    low: float
    high: float
    has_null: bool
    has_negative: bool

    @property
    def _lowest(self) -> int:
        return self.highest - len(self.lows) + 1

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        flags = ({"nan": 2} if self.has_null else {}) | ({"neg": 2} if self.has_negative else {})
        both = zip(self.lows, self.highs, strict=True)
        return flags | {f"E{self.highest - place}": high - low + 1 for place, (low, high) in enumerate(both)}

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        clipped = np.clip(values.data.astype(np.float64), self.low, self.high)
        split = split_digits(np.where(values.valid, clipped, 0.0), max_decimal=self.highest, min_decimal=self._lowest)
        low = np.array(self.lows)
        digits = np.clip(np.asarray(split.digits, np.int64) - low, 0, np.array(self.highs) - low)
        flags = ([~values.valid] if self.has_null else []) + ([np.asarray(split.negative) > 0] if self.has_negative else [])
        return np.column_stack([*flags, np.where(values.valid[:, None], digits, 0)]).astype(np.int64)

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        valid = codes[:, 0] == 0 if self.has_null else np.ones(len(codes), bool)
        if self.has_null and np.isinf(self.low):  # so few values that none may be kept
            valid = np.zeros(len(codes), bool)
        flags = int(self.has_null) + int(self.has_negative)
        places = self.highest - np.arange(len(self.lows))
        numbers = ((codes[:, flags:] + np.array(self.lows)) * 10.0**places).sum(1)
        if self.has_negative:
            numbers = np.where(codes[:, flags - 1] == 1, -numbers, numbers)
        numbers = np.round(np.clip(numbers, self.low, self.high), -self._lowest)
        return to_column(np.where(valid, numbers, 0.0), valid, kind)


class Binned(Encoding, frozen=True, kw_only=True, tag="binned"):
    """Class 0 is unknown, then a missing value where there are some, the minimum, the maximum, and the intervals."""

    edges: list[float]
    decimals: int
    """Places after the point that values are rounded down to."""
    has_null: bool
    has_ends: bool = True
    """Whether the minimum and the maximum are classes: not where no value may be kept."""

    @property
    def _first(self) -> int:
        return 1 + self.has_null + 2 * self.has_ends

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        return {"bin": self._first + len(self.edges) - 1}

    def never(self) -> dict[str, list[int]]:
        """Classes that are not to be generated."""
        return {"bin": [0]} if self.sizes["bin"] > 1 else {}

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        numbers, edges = values.data.astype(np.float64), np.array(self.edges)
        inner = edges[1:-1]
        codes = (find_intervals(np.append(np.nextafter(inner, -np.inf), np.inf), numbers) + self._first).astype(np.int64)
        if len(edges) == 1:  # no interval
            codes[:] = self._first - 1
        if self.has_ends:
            codes[numbers == edges[0]] = self._first - 2
            codes[numbers == edges[-1]] = self._first - 1
        codes[~values.valid] = int(self.has_null)
        return codes[:, None]

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        code, edges = codes[:, 0], np.array(self.edges)
        valid = code > self.has_null if self.has_ends else np.zeros(len(code), bool)
        place = np.clip(code - self._first, 0, max(0, len(edges) - 2))
        unit = 10.0**self.decimals
        upper = edges[np.minimum(place + 1, len(edges) - 1)]
        numbers = np.floor((edges[place] + uniform * (upper - edges[place])) * unit) / unit
        numbers = np.where(code == self._first - 2, edges[0], np.where(code == self._first - 1, edges[-1], numbers))
        return to_column(np.where(valid, np.clip(numbers, edges[0], edges[-1]), 0.0), valid, kind)


def _split(data: Array) -> dict[str, Array]:
    parts = split_date(data, "us")
    millis = parts["milli"]
    return parts | {"ms_E2": millis // 100, "ms_E1": millis // 10 % 10, "ms_E0": millis % 10}


def _join(parts: Mapping[str, Array]) -> Array:
    none = np.zeros_like(parts["year"])
    millis = sum((parts.get(name, none) * scale for name, scale in zip(MILLIS, (100, 10, 1), strict=True)), none)
    clock = {name: parts.get(name, none) for name in TIME}
    return join_date({**{name: parts[name] for name in DATE}, **clock, "milli": millis, "micro": none}, "us")


class _DateParts(Encoding, frozen=True, kw_only=True):
    """Dates in parts, each counted from the smallest."""

    counts: dict[str, int]
    """The number of classes of each sub-column."""
    lows: dict[str, int]
    """The smallest value of each part."""
    low: int | None
    high: int | None
    """The range of dates, or of first dates, in microseconds; None where no date may be kept."""

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        return self.counts

    @property
    def has_null(self) -> bool:
        """Whether values are missing."""
        return "nan" in self.counts


class DatetimeParts(_DateParts, frozen=True, kw_only=True, tag="datetime_parts"):
    """The parts of a date, each counted from the smallest; down to milliseconds."""

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        found = _split(values.data if self.low is None else np.clip(values.data, self.low, self.high))
        columns = [
            ~values.valid if name == "nan" else np.where(values.valid, np.clip(found[name] - self.lows[name], 0, size - 1), 0)
            for name, size in self.counts.items()
        ]
        return np.stack(columns, 1).astype(np.int64)

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        given = dict(zip(self.counts, codes.T, strict=True))
        valid = given["nan"] == 0 if "nan" in given else np.ones(len(codes), bool)
        data = _join({name: given[name] + self.lows[name] for name in given if name != "nan"})
        if self.low is not None and self.high is not None:
            unit = 1 if "ms_E0" in given else SECOND if "hour" in given else DAY
            data = np.clip(data, self.low // unit * unit, self.high // unit * unit)
        elif "nan" in given:
            valid = np.zeros(len(codes), bool)
        return to_column(np.where(valid, data, 0), valid, kind)


class RelativeParts(_DateParts, frozen=True, kw_only=True, tag="relative_parts"):
    """The parts of the first date of a subject, on all its events, and the whole seconds since the event before, in parts."""

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        found = relative_parts(values, starts)
        columns = [
            found[name] if name in ("nan", "itt_neg") else np.clip(found[name] - self.lows[name], 0, size - 1)
            for name, size in self.counts.items()
        ]
        return np.stack(columns, 1).astype(np.int64)

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        given = dict(zip(self.counts, codes.T, strict=True))
        valid = given["nan"] == 0 if "nan" in given else np.ones(len(codes), bool)
        parts = {name: given[name] + low for name, low in self.lows.items() if name in given}
        begin = _join({name.removeprefix("start_"): part for name, part in parts.items() if name.startswith("start_")})
        if self.low is not None and self.high is not None:
            begin = np.clip(begin, self.low, self.high)
        seconds = sum((parts[f"itt_{name}"] * scale for name, scale in ITT.items() if f"itt_{name}" in parts), np.zeros_like(begin))
        if "itt_neg" in given:
            seconds = np.where(given["itt_neg"] == 1, -seconds, seconds)
        # A running sum over all rows; a subject's own is the difference to its first event.
        lengths = np.diff(np.append(starts, len(codes)))
        first = np.repeat(starts, lengths)
        total = np.cumsum(np.where(np.arange(len(codes)) == first, 0, seconds))
        data = begin[first] + (total - total[first]) * SECOND
        if "start_hour" not in given:
            data = data // DAY * DAY
        return to_column(np.where(valid, data, 0), valid, kind)


def relative_parts(values: Values, starts: Array) -> dict[str, Array]:
    """All parts of relative dates: the first date of each subject, and the seconds since the date before.

    A missing date is that of the event before, or else the first one of the subject. A subject without any has the smallest date.
    """
    rows = np.arange(len(values))
    lengths = np.diff(np.append(starts, len(values)))
    first = np.repeat(starts, lengths)
    last = np.maximum.accumulate(np.where(values.valid, rows, -1)) if len(rows) else rows
    begins = np.full(len(starts), values.data[values.valid].min() if values.valid.any() else 0)
    own = first_valid(values.valid, starts)
    begins[np.repeat(np.arange(len(starts)), lengths)[own]] = values.data[own]
    begin = np.repeat(begins, lengths)
    dates = np.where(last >= first, values.data[np.maximum(last, 0)], begin) if len(rows) else values.data
    millis = np.floor_divide(np.diff(dates, prepend=0), 1000)
    millis[starts[lengths > 0]] = 0
    seconds, found = np.abs(millis) // 1000, {"nan": (~values.valid).astype(np.int64)}
    found |= {f"start_{name}": part for name, part in _split(begin).items() if name in DATE + TIME}
    found["itt_neg"] = (millis < 0).astype(np.int64)
    for name, scale in ITT.items():
        found[f"itt_{name}"] = seconds // scale
        seconds = seconds % scale
    return found


def micros_of(text: str | None) -> int | None:
    """The microseconds of a date in a stats.json."""
    return None if text is None else int(np.datetime64(text.replace(" ", "T"), "us").astype(np.int64))


def encoding_of(stats: Mapping[str, Any]) -> Categorical | Digit | Binned | DatetimeParts | RelativeParts:
    """The encoding of a column, from its entry in the stats.json of mostlyai-engine.

    Args:
        stats: The entry: `json.load(file)["columns"][name]`.

    Raises:
        OptionError: Its kind is none of `KINDS`.

    Example:
        >>> encoding_of({"encoding_type": "TABULAR_CATEGORICAL", "codes": {"_RARE_": 0, "a": 1}, "no_of_rare_categories": 0}).values
        ['a']
    """
    kind = str(getattr(stats["encoding_type"], "value", stats["encoding_type"]))
    if kind in ("TABULAR_CATEGORICAL", "TABULAR_NUMERIC_DISCRETE"):
        return _categorical(stats, is_number=kind == "TABULAR_NUMERIC_DISCRETE")
    if kind == "TABULAR_NUMERIC_DIGIT":
        places = range(stats["max_decimal"], stats["min_decimal"] - 1, -1)
        return Digit(
            highest=stats["max_decimal"],
            lows=[stats["min_digits"][f"E{place}"] for place in places],
            highs=[stats["max_digits"][f"E{place}"] for place in places],
            low=-math.inf if stats["min"] is None else float(stats["min"]),
            high=math.inf if stats["max"] is None else float(stats["max"]),
            has_null=stats["has_nan"],
            has_negative=stats["has_neg"],
        )
    if kind == "TABULAR_NUMERIC_BINNED":
        tokens, edges = stats["codes"], list(map(float, stats["bins"]))
        return Binned(edges=edges, decimals=-stats["min_decimal"], has_null=NULL in tokens, has_ends=MINIMUM in tokens)
    if kind in ("TABULAR_DATETIME", "TABULAR_DATETIME_RELATIVE"):
        of_parts = DatetimeParts if kind == "TABULAR_DATETIME" else RelativeParts
        low, high = micros_of(stats["min"]), micros_of(stats["max"])
        return of_parts(counts=dict(stats["cardinalities"]), lows=dict(stats["min_values"]), low=low, high=high)
    raise OptionError(f"the column has the encoding {kind}; expected one of {', '.join(KINDS)}.")


def _categorical(stats: Mapping[str, Any], *, is_number: bool) -> Categorical:
    tokens = list(map(str, stats["codes"]))
    known = [one.removeprefix(ESCAPE) for one in tokens if one not in (RARE, NULL)]
    if is_number and stats["min_decimal"] < 0:  # floats as Arrow writes them: 50, not 50.0
        known = pa.array([float(one) for one in known], pa.float64()).cast(pa.string()).to_pylist()
    return Categorical(values=known, has_null=NULL in tokens, has_rare=not is_number and bool(stats.get("no_of_rare_categories")))
