"""Dates come back: exact parts, exact gaps, and nothing from another subject."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stoker._types import Array
from stoker_recipes.tabular.dates import fit_datetime, fit_relative, join_date, split_date
from stoker_recipes.tabular.encodings import Subjects
from stoker_recipes.tabular.values import read_values


def relative_back(column: pa.Array, starts: Array, *, least: int = 0) -> pd.Series:
    values = read_values("t", column)
    encoding = fit_relative(values, Subjects(starts=starts, num_rows=len(column), least=least), column.type)
    assert encoding is not None
    codes = encoding.encode(values, starts)
    assert (codes < list(encoding.sizes.values())).all()
    back: pd.Series = encoding.decode(codes, column.type, starts, np.full(len(column), 0.5)).to_pandas()
    return back


@pytest.mark.parametrize("unit", ["D", "s", "ms", "us", "ns"])
def test_parts_are_those_of_pandas(rng: np.random.Generator, unit: str) -> None:
    per_day = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}[unit]
    data = rng.integers(-30_000, 60_000, 500) * per_day + rng.integers(0, per_day, 500)
    found = split_date(data, unit)
    times = pd.DatetimeIndex(data.astype(f"datetime64[{unit}]"))
    for name in ("year", "month", "day", *(("hour", "minute", "second") if unit != "D" else ())):
        assert (found[name] == getattr(times, name)).all(), name
    assert (join_date(found, unit) == data).all()


def test_dates_with_a_time_zone_and_missing_values_come_back(rng: np.random.Generator) -> None:
    seconds = rng.integers(1.5e9, 1.6e9, 300)
    column = pa.array(np.where(rng.random(300) < 0.1, None, seconds), pa.int64()).cast(pa.timestamp("s", "Europe/Vienna"))
    values = read_values("t", column)
    starts = np.arange(300)
    encoding = fit_datetime(values, Subjects(starts=starts, num_rows=300, least=0), column.type)
    assert encoding is not None
    assert next(iter(encoding.sizes)) == "nan"
    assert encoding.decode(encoding.encode(values, starts), column.type, starts, np.zeros(300)).equals(column)


def test_fractions_that_are_noise_are_drawn(rng: np.random.Generator) -> None:
    column = pa.array(rng.integers(0, 10**15, 2000)).cast(pa.timestamp("us"))
    encoding = fit_datetime(read_values("t", column), Subjects(starts=np.arange(2000), num_rows=2000, least=0), column.type)
    assert encoding is not None
    assert "micro" not in encoding.sizes
    codes = encoding.encode(read_values("t", column), np.arange(2000))
    back = encoding.decode(codes, column.type, np.arange(2000), rng.random(2000))
    assert np.abs(np.asarray(back.cast(pa.int64())) - np.asarray(column.cast(pa.int64()))).max() < 10**6


@pytest.mark.parametrize("step", [1, 60, 900])
def test_days_to_seconds_of_first_dates_are_drawn_where_they_are_uniform(rng: np.random.Generator, step: int) -> None:
    starts = np.arange(0, 2000, 2)
    begins = 1_600_000_000 // 3600 * 3600 + rng.integers(0, 10**7 // step, 1000) * step
    data = np.repeat(begins, 2) + np.tile([0, 7], 1000)
    column = pa.array(data).cast(pa.timestamp("s"))
    values = read_values("t", column)
    encoding = fit_relative(values, Subjects(starts=starts, num_rows=2000, least=0), column.type)
    assert encoding is not None
    assert ("start_second" in encoding.sizes, "start_minute" in encoding.sizes) == (False, step == 900)  # quarters are learned
    back = np.asarray(encoding.decode(encoding.encode(values, starts), column.type, starts, rng.random(2000)).cast(pa.int64()))
    assert (np.diff(back)[::2] == 7).all()
    assert {"start_day", "start_hour"}.isdisjoint(encoding.sizes)  # these are uniform, too
    months = [one.astype("datetime64[s]").astype("datetime64[M]") for one in (back, data)]
    assert (months[0] == months[1])[::2].all()
    days = back[::2] // 86_400
    assert days.min() >= begins.min() // 86_400
    assert days.max() <= begins.max() // 86_400
    assert np.bincount(days - days.min()).max() < 30  # also in the first month, of which only a part is there
    minutes = back[::2] // 60 % 60
    assert len(np.unique(minutes)) == (4 if step == 900 else 60)
    assert len(np.unique(back[::2] % 60)) == (60 if step == 1 else 1)


def test_days_and_hours_of_first_dates_are_learned_where_they_are_not_uniform(rng: np.random.Generator) -> None:
    starts = np.arange(0, 2000, 2)
    day = rng.integers(0, 12, 1000) * 30 + rng.binomial(20, 0.5, 1000)
    begins = 1_577_836_800 + day * 86_400 + rng.binomial(23, 0.5, 1000) * 3600 + rng.integers(0, 3600, 1000)
    column = pa.array(np.repeat(begins, 2) + np.tile([0, 7], 1000)).cast(pa.timestamp("s"))
    encoding = fit_relative(read_values("t", column), Subjects(starts=starts, num_rows=2000, least=0), column.type)
    assert encoding is not None
    assert {"start_day", "start_hour"} <= set(encoding.sizes)


@pytest.mark.promise("P30")
@pytest.mark.parametrize("gap", ["1s", "250ms", "36h", "70D"])
def test_constant_gaps_come_back_exactly(gap: str) -> None:
    """Upstream loses parts of a second, and hours where every sequence begins at midnight."""
    starts = np.arange(0, 200, 10)
    times = [
        time
        for one in range(20)
        for time in pd.date_range(pd.Timestamp("2020-01-01") + pd.Timedelta(days=one), periods=10, freq=gap)
    ]
    column = pa.array(pd.Series(times).astype("datetime64[ms]"))
    assert relative_back(column, starts).tolist() == times


def test_gaps_below_zero_come_back() -> None:
    times = pd.to_datetime(["2020-01-05", "2020-01-03", "2020-01-04"] * 5)
    assert relative_back(pa.array(times), np.arange(0, 15, 3)).tolist() == times.tolist()


@pytest.mark.promise("P30")
def test_missing_dates_take_nothing_from_another_subject() -> None:
    """Upstream fills a subject without dates with the next subject's."""
    first, *others = pd.to_datetime(["2020-01-01", "2020-01-04", "2020-01-10", "2020-01-11"])
    rows = [first, None, others[0], None, None, None, None, *others[1:]]
    back = relative_back(pa.array(pd.Series(rows)), np.array([0, 3, 6]))
    assert [None if pd.isna(one) else one for one in back] == rows
