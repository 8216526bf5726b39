"""Calendar: microseconds since 1970 as year, month, day and time of day, as text, and back.

Days are counted in the Gregorian calendar without a beginning. The texts are those that pandas writes: all of a list with as
many decimals as one of them needs, and without a time where all are at midnight.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.statistics.keys import compiled

Array = npt.NDArray[Any]

PARTS = ("year", "month", "day", "hour", "minute", "second", "ms_E2", "ms_E1", "ms_E0")

DAY = 86_400_000_000
_LOWEST = np.array([0, 1, 1, 0, 0, 0, 0, 0, 0])
_HIGHEST = np.array([0, 12, 31, 23, 59, 59, 9, 9, 9])
_TEXT = re.compile(r"(-?\d{1,6})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{3}|\d{6}))?)?", re.ASCII)


def widen_parts(micros: Array, least: Array, most: Array) -> None:
    """Widen the range of each part by moments in ascending order."""
    kernels = compiled(len(micros))
    if kernels is not None:
        kernels.widen_part_ranges(micros, _LOWEST, _HIGHEST, least, most)
        return
    days, times = np.divmod(micros, DAY)
    seconds, thousandths = times // 1_000_000, times // 1_000 % 1_000
    of_day = (seconds // 3600, seconds // 60 % 60, seconds % 60, thousandths // 100, thousandths // 10 % 10, thousandths % 10)
    parts = np.stack([*civil_date(days), *of_day])
    np.minimum(least, parts.min(axis=1), out=least)
    np.maximum(most, parts.max(axis=1), out=most)


def moment_texts(micros: Array) -> list[str]:
    """Moments as text, like `2024-02-29 13:05:00`."""
    if not len(micros):
        return []
    days, times = np.divmod(micros, DAY)
    dates = (part.tolist() for part in civil_date(days))
    texts = [f"{year}-{month:02}-{day:02}" for year, month, day in zip(*dates, strict=True)]
    if not times.any():
        return texts
    decimals = 6 if (times % 1_000).any() else 3 if (times % 1_000_000).any() else 0
    return [f"{text} {_time_text(time, decimals)}" for text, time in zip(texts, times.tolist(), strict=True)]


def parse_moments(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """The moments of texts; ValueError for what is none."""
    return np.array([_parse(text) for text in texts], dtype=np.int64)


def _time_text(time: int, decimals: int) -> str:
    seconds, micros = divmod(time, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{micros // 10 ** (6 - decimals):0{decimals}}" if decimals else text


def _parse(text: str) -> int:
    found = _TEXT.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a moment like '2024-02-29 13:05:00'")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    days = civil_days(year, month, day)
    moment = days * DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((found[7] or "").ljust(6, "0"))
    valid = 1 <= month <= 12 and hour < 24 and minute < 60 and second < 60 and civil_date(days) == (year, month, day)
    if not valid or not -(2**63) <= moment < 2**63:
        raise ValueError(f"{text!r} is not a moment of the calendar")
    return moment


def civil_date(days: Any) -> tuple[Any, Any, Any]:
    """Year, month and day of numbers of days since 1970. Years are taken to begin in March, so that leap days end them."""
    shifted = days + 719_468
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    march = (5 * of_year + 2) // 153
    month = (march + 2) % 12 + 1
    return year + era * 400 + (month <= 2), month, of_year - (153 * march + 2) // 5 + 1


def civil_days(year: int, month: int, day: int) -> int:
    """Days since 1970."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
