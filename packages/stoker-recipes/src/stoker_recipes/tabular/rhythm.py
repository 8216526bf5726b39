"""The rhythm of dates: weekdays and months of events, which follow from absolute times and not from gaps.

A model of gaps knows neither. So a gap is chosen among several that the model draws, by how much more often such a gap follows an event
of this weekday, and of this month, than it follows others (lifts). By weekday a gap is 0 to 6 days, or from 7 days on the remainder by 7;
by month it is the number of months between both dates. The mean over weekdays and months stays that of the model. The days of first
events are shifted by up to 3, so that weekdays have their shares, where the day of a first event is noise.

`clock.py` does it while events are generated.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from msgspec import Struct

from stoker.extend import Array

WEEK, THURSDAY = 7, 3
"""Day 0, the first of 1970, is a Thursday; Monday is 0."""
LEAST_DEVIATIONS = 4.0
"""Standard deviations by which a chi-square statistic exceeds its mean where there is a rhythm. Events of a subject are not independent."""
PRIOR = 1.0
"""Events that a lift of 1 has in advance."""
MONTHS_FROM, MONTHS_TO = "1900-01-01", "2200-01-01"
"""Months of dates beyond are those of the nearest day in this range."""


class Rhythm(Struct, frozen=True, kw_only=True):
    """How dates depend on the calendar."""

    per_day: int
    """The unit of dates in a day."""
    weekdays: list[list[float]] = []
    """Lifts: (weekday of the event before, class of the gap in days); empty where gaps do not depend on weekdays."""
    months: list[list[float]] = []
    """Lifts: (month of the event before, months between); empty where gaps do not depend on months."""
    first: list[float] = []
    """The shares of weekdays of first events; empty where they are uniform."""

    def on_weekday(self, data: Array, uniform: Array) -> Array:
        """Move first dates by up to 3 days, to weekdays with their shares."""
        days = data // self.per_day
        shifts = np.arange(-3, 4)
        shares = np.array(self.first)[(days[:, None] + shifts + THURSDAY) % WEEK]
        place = (np.cumsum(shares, 1) < ((uniform * 7919.0) % 1.0)[:, None]).sum(1)
        return np.asarray(data + shifts[np.minimum(place, WEEK - 1)] * self.per_day)


@functools.cache
def months_of_days() -> Array:
    """The month, counted from 1970, of each day from `MONTHS_FROM` on."""
    days = np.arange(np.datetime64(MONTHS_FROM), np.datetime64(MONTHS_TO))
    return np.asarray(days.astype("M8[M]").astype(np.int64))


def later_rows(num_rows: int, starts: Array) -> Array:
    """The rows that are not the first of a subject."""
    is_later = np.ones(num_rows, bool)
    is_later[starts] = False
    return np.flatnonzero(is_later)


def _month_place(days: Any) -> Any:
    first, last = (int(np.datetime64(date).astype(np.int64)) for date in (MONTHS_FROM, MONTHS_TO))
    return (days - first).clip(0, last - first - 1)


def places_of_gaps(months: Any, before: Any, after: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Where days and those after them are in the lifts of weekdays and of months."""
    gap = after - before
    by_week = gap.clip(0, WEEK - 1) * (gap < WEEK) + (WEEK + gap % WEEK) * (gap >= WEEK)
    month, later = months[_month_place(before)], months[_month_place(after)]
    return ((before + THURSDAY) % WEEK, by_week), (month % 12, (later - month).clip(0, 12))


def _deviations(counts: Array) -> float:
    """By how many standard deviations the chi-square statistic of a table exceeds its mean."""
    expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / max(1, counts.sum())
    cells = expected >= 1
    freedom = max(1.0, cells.sum() * (1 - 1 / counts.shape[0]))
    statistic = ((counts - expected)[cells] ** 2 / expected[cells]).sum() if cells.any() else 0.0
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def fit_rhythm(data: Array, starts: Array, per_day: int) -> Rhythm | None:
    """Find the rhythm of dates that never fall within subjects; None where they have none.

    Args:
        data: Dates, those of a subject side by side.
        starts: The first row of each subject that has rows.
        per_day: The unit of dates in a day.
    """
    later = later_rows(len(data), starts)
    days = data // per_day
    lifts = []
    for size, (row, column) in zip(
        ((WEEK, 2 * WEEK), (12, 13)), places_of_gaps(months_of_days(), days[later - 1], days[later]), strict=True
    ):
        counts = np.bincount(row * size[1] + column, minlength=size[0] * size[1]).reshape(size)
        expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / max(1, len(later))
        has_rhythm = _deviations(counts) > LEAST_DEVIATIONS
        lifts.append(((counts + PRIOR) / (expected + PRIOR)).tolist() if has_rhythm else [])
    shares = np.bincount((days[starts] + THURSDAY) % WEEK, minlength=WEEK)
    even = np.full(WEEK, len(starts) / WEEK)
    deviations = (((shares - even) ** 2 / even).sum() - (WEEK - 1)) / np.sqrt(2 * (WEEK - 1))
    first = (shares / len(starts)).tolist() if deviations > LEAST_DEVIATIONS else []
    return Rhythm(per_day=per_day, weekdays=lifts[0], months=lifts[1], first=first) if any(lifts) or first else None
