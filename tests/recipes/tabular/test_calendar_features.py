"""Calendar features: equal to those of Python's datetime for each time, in any zone."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import OptionError
from stoker_recipes.tabular import calendar
from stoker_recipes.tabular.calendar_features import FEATURES

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]


def slow(seconds: list[int], features: list[str], encoding: str, zone: str) -> list[list[float]]:
    """One time after the other, by Python's own calendar."""
    rows = []
    for second in seconds:
        moment = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).astimezone(ZoneInfo(zone))
        parts = {
            "second": moment.second,
            "minute": moment.minute,
            "hour": moment.hour,
            "weekday": moment.weekday(),
            "day": moment.day,
            "dayofyear": moment.timetuple().tm_yday,
            "week": moment.isocalendar().week,
            "month": moment.month,
            "quarter": (moment.month + 2) // 3,
        }
        row: list[float] = []
        for name in features:
            least, most = FEATURES[name]
            if encoding == "ordinal":
                row.append(parts[name])
            elif encoding == "scaled":
                row.append((parts[name] - least) / (most - least) - 0.5)
            else:
                angle = 2 * math.pi * (parts[name] - least) / (most - least + 1)
                row += [math.sin(angle), math.cos(angle)]
        rows.append(row)
    return rows


@given(
    st.lists(st.integers(-(2**31), 2**32), min_size=1, max_size=20),
    st.lists(st.sampled_from(sorted(FEATURES)), min_size=1, max_size=4),
    st.sampled_from(["cyclic", "scaled", "ordinal"]),
    st.sampled_from(ZONES),
)
def test_features_are_those_of_pythons_calendar(seconds: list[int], features: list[str], encoding: str, zone: str) -> None:
    found = calendar(np.array(seconds, dtype=np.int64), features, encoding=encoding, timezone=zone, unit="s")
    np.testing.assert_allclose(found, np.array(slow(seconds, features, encoding, zone)), atol=1e-6)


def test_missing_times_are_nan() -> None:
    times = np.array(["2026-01-01", "NaT"], dtype="datetime64[D]")
    assert np.isnan(calendar(times, timezone="Europe/Berlin")).all(axis=1).tolist() == [False, True]


def test_clocks_that_are_set_back_give_the_hour_twice() -> None:
    times = np.arange(np.datetime64("2026-10-24T23:00", "h"), np.datetime64("2026-10-25T03:00", "h"))
    assert calendar(times, ["hour"], encoding="ordinal", timezone="Europe/Berlin").ravel().tolist() == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ["fortnight"]}, "fortnight.*expected names of second"),
        ({"features": []}, "expected names of"),
        ({"encoding": "one-hot"}, "one-hot.*'cyclic'"),
        ({"timezone": "Mars/Olympus"}, "Mars/Olympus.*Europe/Berlin"),
        ({"unit": "h"}, "'h'.*'ns'"),
        ({"unit": None}, "int64 with unit='ns'"),
    ],
)
def test_what_is_unknown_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        calendar(np.zeros(2, dtype=np.int64), **{"unit": "s", **options})
