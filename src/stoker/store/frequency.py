"""Frequencies like "1h", "15min" or "1mo": the regular grid of times that a series has, with or without gaps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stoker._types import Array
from stoker.errors import OptionError

NANOSECONDS = {
    "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9, "w": 604_800 * 10**9,
}  # fmt: skip
_MONTHS = {"mo": 1, "q": 3, "y": 12}
_PANDAS = {"M": "mo", "ME": "mo", "MS": "mo", "QE": "q", "QS": "q", "YE": "y", "YS": "y"}  # where case decides: "m" is a minute
_ALIASES = {"sec": "s", "t": "min", "m": "min", "minute": "min", "hour": "h", "day": "d", "week": "w", "month": "mo", "year": "y"}


@dataclass(frozen=True)
class Frequency:
    """The distance between two steps: a number of nanoseconds, or of months."""

    text: str
    nanoseconds: int = 0
    months: int = 0

    def __str__(self) -> str:
        return self.text

    def grid_index(self, times: Array) -> tuple[Array, Array]:
        """Where times lie on the grid that begins with the first of them.

        Args:
            times: Nanoseconds since 1970, int64; at least one.

        Returns:
            The index of the last grid point up to each time, and whether the time is that grid point.
        """
        if self.nanoseconds:
            index, rest = np.divmod(times - times[0], self.nanoseconds)
            return index, rest == 0
        month, _, _ = _month_parts(times)
        index = (month - month[0]) // self.months
        is_later = self.times_at(times, index) > times
        index = index - is_later
        return index, self.times_at(times, index) == times

    def times_at(self, times: Array, index: Array) -> Array:
        """The times at some indices of the grid that begins with the first of `times`, nanoseconds since 1970.

        A grid of months keeps the day of the month (the last day, where a month is shorter). If all times are the last day of their
        month, so is the grid.
        """
        if self.nanoseconds:
            found: Array = times[0] + index * self.nanoseconds
            return found
        month, day, rest = _month_parts(times)
        days = np.int64(30) if (day == _days_in(month) - 1).all() else day[0]
        target = month[0] + index * self.months
        first_day = target.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        found = (first_day + np.minimum(days, _days_in(target) - 1)) * NANOSECONDS["d"] + rest[0]
        return found


def parse_frequency(text: str, option: str) -> Frequency:
    """A frequency from text; raises `OptionError` naming the option.

    Units of any case are the same, except for those of pandas: "M", "ME" and "MS" are months.

    Example:
        >>> parse_frequency("15min", "freq").nanoseconds == 15 * 60 * 10**9, parse_frequency("q", "freq").months
        (True, 3)
    """
    found = re.fullmatch(r"\s*(\d{0,9})\s*([a-zA-Z]+)\s*", text) if isinstance(text, str) else None
    if found is not None and (not found[1] or int(found[1])):
        count, unit = int(found[1] or 1), _PANDAS.get(found[2], found[2].lower())
        if unit not in NANOSECONDS and unit not in _MONTHS:  # "ms" is not several "m"
            unit = _ALIASES.get(unit, _ALIASES.get(unit.removesuffix("s"), unit))
        if unit in NANOSECONDS and count * NANOSECONDS[unit] < 2**62:
            return Frequency(f"{count}{unit}", nanoseconds=count * NANOSECONDS[unit])
        if unit in _MONTHS:
            return Frequency(f"{count}{unit}", months=count * _MONTHS[unit])
    raise OptionError(
        f"{option} is {text!r}; expected a number and a unit, like '15min', '1h', '1d' or '1mo' (ns us ms s min h d w mo q y)."
    )


def _month_parts(times: Array) -> tuple[Array, Array, Array]:
    """Months since 1970, days since the first of the month, and nanoseconds since midnight."""
    days, rest = np.divmod(times, NANOSECONDS["d"])
    month = days.astype("datetime64[D]").astype("datetime64[M]")
    return month.astype(np.int64), days - month.astype("datetime64[D]").astype(np.int64), rest


def _days_in(month: Array) -> Array:
    first: Array = month.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    found: Array = (month + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) - first
    return found
