"""Frequencies: grids equal to those of pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import OptionError
from stoker.store.manifest import parse_frequency

OFFSETS = {
    "s": lambda n: pd.DateOffset(seconds=n),
    "min": lambda n: pd.DateOffset(minutes=n),
    "h": lambda n: pd.DateOffset(hours=n),
    "d": lambda n: pd.DateOffset(days=n),
    "w": lambda n: pd.DateOffset(weeks=n),
    "mo": lambda n: pd.DateOffset(months=n),
    "q": lambda n: pd.DateOffset(months=3 * n),
    "y": lambda n: pd.DateOffset(years=n),
}


@given(
    st.sampled_from(sorted(OFFSETS)),
    st.integers(1, 5),
    st.datetimes(pd.Timestamp("1960-01-01"), pd.Timestamp("2060-01-01")),
    st.lists(st.integers(0, 40), min_size=1, max_size=20),
)
def test_a_grid_is_that_of_pandas(unit: str, count: int, start: pd.Timestamp, places: list[int]) -> None:
    first = pd.Timestamp(start)
    if first.is_month_end and unit in ("mo", "q", "y"):
        first = first - pd.Timedelta(days=5)  # grids of last days have their own test
    places = [0, *sorted(places)]
    times = np.array([(first + OFFSETS[unit](count * one if one else 0)).as_unit("ns").value for one in places])
    index, on_grid = parse_frequency(f"{count}{unit}", "freq").grid_index(times)
    assert on_grid.all()
    assert index.tolist() == places
    assert parse_frequency(f"{count}{unit}", "freq").times_at(times, index).tolist() == times.tolist()


@pytest.mark.parametrize(("alias", "ours"), [("ME", "1mo"), ("QE", "1q"), ("YE", "1y")])
def test_last_days_of_months_stay_last_days(alias: str, ours: str) -> None:
    times = pd.date_range("2019-01-31", periods=30, freq=alias).as_unit("ns").asi8
    index, on_grid = parse_frequency(ours, "freq").grid_index(times)
    assert on_grid.all()
    assert index.tolist() == list(range(30))


def test_times_between_two_grid_points_are_found() -> None:
    times = pd.to_datetime(["2026-01-15 06:00", "2026-02-15 05:00", "2026-02-15 06:00", "2026-03-20 00:00"]).as_unit("ns").asi8
    index, on_grid = parse_frequency("1mo", "freq").grid_index(times)
    assert index.tolist() == [0, 0, 1, 2]
    assert on_grid.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("h", "1h"),
        ("H", "1h"),
        ("2 hours", "2h"),
        ("15T", "15min"),
        ("15m", "15min"),
        ("D", "1d"),
        ("month", "1mo"),
        ("M", "1mo"),
        ("MS", "1mo"),
        ("2ME", "2mo"),
        ("QS", "1q"),
        ("YE", "1y"),
        ("m", "1min"),
        ("ms", "1ms"),
        ("S", "1s"),
    ],
)
def test_spellings(text: str, same: str) -> None:
    assert str(parse_frequency(text, "freq")) == same


@pytest.mark.parametrize("text", ["", "0h", "1", "-1h", "1.5h", "1 fortnight", "1h30", None, 3, "999999999w"])
def test_what_is_not_a_frequency_is_refused(text: object) -> None:
    with pytest.raises(OptionError, match=r"freq is .* expected a number and a unit"):
        parse_frequency(text, "freq")  # type: ignore[arg-type]
