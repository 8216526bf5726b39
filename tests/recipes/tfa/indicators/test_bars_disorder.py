"""Bars that are no series in the order of time are refused by what they say themselves, with column, row and value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from stoker.errors import OptionError, TimeOrderError
from stoker.store.pack.api import pack
from stoker.store.store import Store
from stoker_recipes.tfa.indicators import bars
from stoker_recipes.tfa.indicators.engine import FeatureStream, features

SPEC = {"features": [{"name": "c", "op": "IDENT"}]}
CLOSE = [1.0, 2.0, 3.0]
DAYS = ["2024-01-02", "2024-01-03", "2024-01-01"]
ZONED = pd.to_datetime(DAYS).tz_localize("America/New_York")


@pytest.mark.parametrize(
    ("table", "behind", "before"),
    [
        ({"close": CLOSE, "ts": [2, 3, 1]}, "1 in row 3", "3 in row 2"),
        ({"close": CLOSE, "ts": np.array([2.5, 3.5, 1.5])}, "1.5 in row 3", "3.5 in row 2"),
        ({"close": CLOSE, "ts": np.array([2, 3, 1], dtype=np.uint64)}, "1 in row 3", "3 in row 2"),
        ({"close": CLOSE, "Date": DAYS}, "2024-01-01 in row 3", "2024-01-03 in row 2"),
        ({"close": CLOSE, "date": np.array(DAYS, dtype="M8[D]")}, "2024-01-01 in row 3", "2024-01-03 in row 2"),
        ({"close": CLOSE, "timestamp": [f"{day}T09:30:00Z" for day in DAYS]}, "2024-01-01T09:30:00Z in row 3", "2024-01-03T0"),
        (pd.DataFrame({"close": CLOSE, "Time": pd.to_datetime(DAYS)}), "2024-01-01 00:00:00 in row 3", "2024-01-03"),
        (pd.DataFrame({"close": CLOSE, "ts_utc": ZONED}), "2024-01-01 00:00:00-05:00 in row 3", "2024-01-03"),
        (pd.DataFrame({"close": CLOSE}, index=pd.to_datetime(DAYS)), "2024-01-01 00:00:00 in row 3", "2024-01-03"),
        (pl.DataFrame({"close": CLOSE, "date": pl.Series(DAYS).str.to_date()}), "2024-01-01 in row 3", "2024-01-03"),
        (pa.table({"close": CLOSE, "ts": [2, 3, 1]}), "1 in row 3", "3 in row 2"),
    ],
)
def test_a_time_that_falls_is_refused(table: Any, behind: str, before: str) -> None:
    with pytest.raises(
        TimeOrderError, match=rf"^the time '\w+' of the bars falls: {behind} comes after {before}.*\. Sort the bars by"
    ):
        features(table, SPEC)


@pytest.mark.parametrize(
    "told",
    [
        {"ts": [1, 1, 2]},
        {"ts": [1.0, np.nan, 2.0]},
        {"ts": pd.to_datetime(["2024-01-01", None, "2024-01-02"])},
        {"date": [1, 1, 2], "time": [930, 931, 900]},
        {"date": ["02/01/2024", "01/02/2024", "03/01/2024"]},
        {"time": ["09:30", "09:31", "09:00"]},
        {"ts": [object(), 1, "x"]},
        {"expiry": [3, 2, 1]},
        {"symbol": ["a", "a", "a"], "side": ["x", "y", "x"]},
        {"symbol": ["a", None, "a"]},
    ],
)
def test_bars_in_order_are_accepted(told: Any) -> None:
    assert features({"close": CLOSE, **told}, SPEC)["c"].tolist() == CLOSE


@pytest.mark.parametrize(
    "keys", [["a", "b", "b"], pd.Categorical(["a", "b", "b"]), np.array([1, 2, 2]), pl.Series(["a", "b", "b"])]
)
def test_several_symbols_are_not_one_series(keys: Any) -> None:
    table = {"close": CLOSE, "Symbol": keys}
    message = (
        r"column 'Symbol' of the bars holds several series: [b2] in row 2 comes after [a1] in row 1\. Pass series='Symbol', or"
    )
    with pytest.raises(OptionError, match=message):
        features(table, SPEC)
    with pytest.raises(OptionError, match=message):
        FeatureStream(SPEC).extend(table)
    assert features(table, SPEC, series="Symbol")["c"].tolist() == CLOSE


def test_times_rise_within_each_series() -> None:
    table = {"close": CLOSE, "symbol": ["a", "b", "a"], "ts": [5, 1, 6]}
    assert features(table, SPEC, series="symbol")["c"].tolist() == CLOSE
    with pytest.raises(TimeOrderError, match="falls: 4 in row 3 comes after 5 in row 1"):
        features({**table, "ts": [5, 1, 4]}, SPEC, series="symbol")


def test_a_store_is_inspected_where_it_was_packed_without_a_time_or_a_key(tmp_path: Path) -> None:
    close = np.array(CLOSE)
    assert len(features(Store.from_arrays(lengths=[2, 1], close=close, ts=np.array([1, 2, 0])), SPEC)) == 3
    with pytest.raises(TimeOrderError, match=r"falls: 0 in bar 2 of series 1 comes after 2\. Pass time='ts' and sort=True when"):
        features(Store.from_arrays(lengths=[1, 2], close=close, ts=np.array([1, 2, 0])), SPEC)
    table = pa.table({"close": CLOSE, "date": np.array(DAYS, dtype="M8[s]"), "symbol": ["a", "b", "a"]})
    with pytest.raises(OptionError, match=r"holds several series: b in bar 2 comes after a\. Pass series='symbol' when the bars"):
        features(pack(table, tmp_path / "plain"), SPEC)
    keyed = pack(table, tmp_path / "keyed", series="symbol", time="date", sort=True)
    assert features(keyed, SPEC)["c"].tolist() == [3, 1, 2]
    days = pack(table.drop_columns("symbol"), tmp_path / "days")
    with pytest.raises(TimeOrderError, match=r"falls: 2024-01-01.* in bar 3 comes after 2024-01-03"):
        features(days, SPEC)


def test_negative_control_without_the_check_symbols_are_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"close": [1.0, 50.0, 2.0, 60.0], "symbol": ["a", "b", "a", "b"]}
    spec = {"features": [{"name": "m", "op": "MOMENTUM", "window": 1}]}
    monkeypatch.setattr(bars, "refuse_disorder", lambda *arguments, **options: None)
    assert features(table, spec)["m"].tolist()[1:] == [49, -48, 58]
    assert features(table, spec, series="symbol")["m"].tolist()[2:] == [1, 10]
