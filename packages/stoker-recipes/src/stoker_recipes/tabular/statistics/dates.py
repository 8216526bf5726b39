"""Columns of dates: the range of each calendar part, extremes and quantiles.

Values are microseconds since 1970; finer ones are rounded down, and those with a time zone are in UTC. Days are counted in the
proleptic Gregorian calendar. Strings are written as pandas does: all of a list with as many decimals as one of them needs, and
without a time where all are at midnight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import UNSET, UnsetType

from stoker.errors import BadValueError
from stoker.extend import Array
from stoker.store import to_numpy
from stoker_recipes.tabular.calendar_features import split_days
from stoker_recipes.tabular.statistics.quantiles import (
    BaseColumn,
    KeyRun,
    OrderedGatherer,
    decode_keys,
    whole_keys,
)

PARTS = ("year", "month", "day", "hour", "minute", "second", "ms_E2", "ms_E1", "ms_E0")
DAY = 86_400_000_000
_CLOCK = ((3_600_000_000, 24), (60_000_000, 60), (1_000_000, 60), (100_000, 10), (10_000, 10), (1_000, 10))
"""Microseconds of the parts of a day, and how many of them the next larger one has."""
_BLOCK = 1 << 14


def widen_parts(micros: Array, least: Array, most: Array) -> None:
    """Widen the range of each part by timestamps in ascending order."""
    for start in range(0, len(micros), _BLOCK):
        days, times = np.divmod(micros[start : start + _BLOCK], DAY)
        dates = split_days(days[np.append(True, days[1:] != days[:-1])])
        for part, (unit, count) in enumerate(_CLOCK, 3):
            if least[part] > 0 or most[part] < count - 1:  # else it has its full range
                _widen(part, times // unit % count, least, most)
        for part, values in enumerate(dates):
            _widen(part, values, least, most)


def _widen(part: int, values: Array, least: Array, most: Array) -> None:
    least[part], most[part] = min(least[part], values.min()), max(most[part], values.max())


def moment_texts(micros: Array) -> list[str]:
    """Timestamps as strings like `2024-02-29 13:05:00`."""
    if not len(micros):
        return []
    days, times = np.divmod(micros, DAY)
    dates = (part.tolist() for part in split_days(days))
    texts = [f"{year}-{month:02}-{day:02}" for year, month, day in zip(*dates, strict=True)]
    if not times.any():
        return texts
    unit = "us" if (times % 1_000).any() else "ms" if (times % 1_000_000).any() else "s"
    clocks = np.datetime_as_string(times.view("M8[us]").astype(f"M8[{unit}]")).tolist()  # of 1970-01-01
    return [f"{text} {clock[11:]}" for text, clock in zip(texts, clocks, strict=True)]


_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DEFAULT = {"year": 2022, "month": 1, "day": 1}
"""The parts of a column without any date."""


class DateColumn(BaseColumn, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="date"):
    """A column of dates or timestamps, in microseconds without a time zone: those with a zone are in UTC."""

    num_distinct: int | None
    min: str | None
    max: str | None
    min_values: dict[str, int]
    max_values: dict[str, int]
    """The smallest and largest year, month, day, hour, minute, second, and digits of the milliseconds."""
    min_n: list[str]
    max_n: list[str]
    quantiles: list[str] | None
    rank_error: int
    log_hist: list[int]
    """Of the microseconds since 1970."""
    run: KeyRun | UnsetType = UNSET
    """As for numbers."""

    def analysis(self) -> dict[str, Any]:
        """What `analyze_datetime` of mostlyai-engine returns for these values."""
        return {
            "has_nan": self.num_null > 0,
            "min_values": self.min_values,
            "max_values": self.max_values,
            "min_n": self.min_n,
            "max_n": self.max_n,
            "log_hist": self.log_hist,
        }


class DateGatherer(OrderedGatherer):
    """Takes in Arrow arrays of dates or timestamps."""

    def __init__(self, name: str, limit: int) -> None:
        super().__init__("int", limit)
        self.least = np.full(len(PARTS), np.iinfo(np.int64).max)
        self.most = np.full(len(PARTS), np.iinfo(np.int64).min)
        self._name = name

    def add(self, values: pa.Array) -> None:
        """Take in values."""
        micros = self._microseconds(values)
        self.num_values += len(values)
        self.num_null += values.null_count
        self.add_keys(whole_keys(micros))

    def column(self, **known: Any) -> DateColumn:
        """All that was gathered; `known` are the fields that all columns have."""
        known |= self.finish()
        distribution = self.distribution
        present = self.num_values > self.num_null
        nothing = {part: _DEFAULT.get(part, 0) for part in PARTS}
        ends = [] if distribution.least is None else [distribution.least, distribution.most]
        texts = [_texts(np.array([end], dtype=np.uint64))[0] for end in ends]
        return DateColumn(
            **known,
            num_distinct=len(distribution.run) if distribution.sketch is None else None,
            min=texts[0] if texts else None,
            max=texts[1] if texts else None,
            min_values=dict(zip(PARTS, self.least.tolist(), strict=True)) if present else nothing,
            max_values=dict(zip(PARTS, self.most.tolist(), strict=True)) if present else nothing,
            min_n=_texts(self.extremes.smallest),
            max_n=_texts(self.extremes.largest[::-1]),
            quantiles=_texts(distribution.quantiles()) if present else None,
        )

    def _microseconds(self, values: pa.Array) -> npt.NDArray[np.int64]:
        if pa.types.is_date32(values.type):
            values = values.cast(pa.timestamp("s"))
        elif pa.types.is_date64(values.type):
            values = values.cast(pa.timestamp("ms"))
        unit = values.type.unit
        present = values.drop_null() if values.null_count else values
        numbers = to_numpy(present.view(pa.int64()))
        if unit == "ns":
            return numbers // 1000
        scale = _MICROSECONDS[unit]
        bound = np.iinfo(np.int64).max // scale
        if scale > 1 and len(numbers) and not -bound <= numbers.min() <= numbers.max() <= bound:
            worst = int(max(numbers.min(), numbers.max(), key=abs))
            raise BadValueError(
                f"column {self._name!r} holds {worst} {unit} since 1970 near row {self.num_values + 1:,}, which is beyond the "
                "290,000 years that microseconds can hold. Fix it, or make it missing."
            )
        return numbers * scale

    def _widen(self, run: KeyRun) -> None:
        widen_parts(decode_keys(run.keys, "int"), self.least, self.most)


def _texts(keys: npt.NDArray[np.uint64]) -> list[str]:
    return moment_texts(decode_keys(keys, "int"))
