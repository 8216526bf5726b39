"""Bars come as tables of any kind; what cannot be read is named."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.recipes.tfa.indicators.markets import market
from tests.recipes.tfa.indicators.specs import all_operators

from stoker.errors import BadValueError, OptionError, TimeOrderError
from stoker.store.pack.api import pack
from stoker.store.store import Store
from stoker_recipes.tfa.indicators import bars
from stoker_recipes.tfa.indicators.engine import FeatureStream, features

SPEC = all_operators(window=5)
CLOSE = {"features": [{"name": "c", "op": "IDENT"}]}


def record_array(bars: dict[str, Any]) -> Any:
    records = np.empty(len(bars["close"]), dtype=[(name, np.float64) for name in bars])
    for name, values in bars.items():
        records[name] = values
    return records


@pytest.mark.parametrize("compat", [None, "sentio"])
@pytest.mark.parametrize(
    "make",
    [
        pd.DataFrame,
        pl.DataFrame,
        lambda bars: pl.DataFrame(bars).lazy().collect(),
        pa.table,
        lambda bars: pa.table(bars).to_batches()[0],
        lambda bars: pa.concat_tables([pa.table(bars).slice(0, 7), pa.table(bars).slice(7)]),
        record_array,
        lambda bars: {name: values.tolist() for name, values in bars.items()},
        lambda bars: {name: pd.Series(values) for name, values in bars.items()},
        lambda bars: {name.capitalize(): values for name, values in bars.items()},
        lambda bars: pd.DataFrame(bars).convert_dtypes(),
        lambda bars: pd.DataFrame({"note": "x", **bars}, index=pd.date_range("2020-01-01", periods=len(bars["close"]))),
        lambda bars: Store.from_arrays(**bars),
        lambda bars: {name: np.repeat(values, 2)[::2] for name, values in bars.items()},
        lambda bars: {name: values.astype(object) for name, values in bars.items()},
    ],
)
def test_every_kind_of_table_gives_the_same(make: Any, compat: str | None) -> None:
    bars = market(120)
    assert features(make(bars), SPEC, compat=compat).values.tobytes() == features(bars, SPEC, compat=compat).values.tobytes()


@pytest.mark.parametrize(
    "column",
    [
        [1.0, None, 3.0],
        np.array([1.0, None, 3.0], dtype=object),
        pa.array([1, None, 3]),
        pa.array([Decimal("1.00"), None, Decimal("3.00")]),
        pd.Series([1, None, 3], dtype="Int64"),
        pd.Series([1, None, 3], dtype="float64[pyarrow]"),
        pl.Series([1, None, 3]),
        pl.Series(["1.0", None, "3.0"]).cast(pl.Decimal(10, 2)),
        np.array([1.0, np.nan, 3.0]),
    ],
)
def test_what_is_missing_is_not_ready(column: Any) -> None:
    frame = features({"close": column}, CLOSE)
    assert frame.ready[:, 0].tolist() == [True, False, True]
    assert frame["c"][[0, 2]].tolist() == [1, 3]


@pytest.mark.parametrize("make", [list, np.array, pd.Series, pl.Series, pa.array])
def test_strings_are_refused_with_their_row(make: Any) -> None:
    with pytest.raises(BadValueError, match=r"column 'close' holds '1.5' \(str_?\) in row 1; expected a number"):
        features({"close": make(["1.5", "2"])}, CLOSE)


def test_a_column_that_is_not_there_is_named_with_the_feature() -> None:
    spec = {"features": [{"name": "c", "op": "IDENT"}, {"name": "true range", "op": "ATR"}]}
    with pytest.raises(
        OptionError, match=r"feature 'true range' \(\$\.features\[1\]\) needs a column 'high', but the columns of the bars are"
    ):
        features({"close": [1.0], "ts": [0]}, spec)


def test_series_by_any_kind_of_key() -> None:
    close = np.arange(6.0)
    keys = ["b", "a", "b", "a", "c", "b"]
    spec = {"features": [{"name": "m", "op": "MOMENTUM", "window": 1}]}
    expected = [np.nan, np.nan, 2, 2, np.nan, 3]
    for key in (keys, np.array(keys), pd.Series(keys), pd.Series(keys, dtype="category"), pl.Series(keys), pa.array(keys)):
        found = features({"close": close, "symbol": key}, spec, series="symbol")["m"]
        np.testing.assert_array_equal(found, np.array(expected, dtype=np.float32))
    numbers = [{"a": 1, "b": 0, "c": 5}[key] for key in keys]
    found = features({"close": close, "symbol": numbers}, spec, series="symbol")["m"]
    np.testing.assert_array_equal(found, np.array(expected, dtype=np.float32))


def test_rows_without_a_series() -> None:
    with pytest.raises(OptionError, match="series names 'symbol', but the bars have the columns close"):
        features({"close": [1.0]}, CLOSE, series="symbol")
    with pytest.raises(BadValueError, match="column 'symbol' is missing in row 2; expected the series"):
        features({"close": [1.0, 2.0], "symbol": ["a", None]}, CLOSE, series="symbol")
    with pytest.raises(OptionError, match="column 'symbol' has 1 rows, but 'close' has 2"):
        features({"close": [1.0, 2.0], "symbol": ["a"]}, CLOSE, series="symbol")


def test_a_store_knows_its_series() -> None:
    store = Store.from_arrays(lengths=[3, 0, 2], close=np.arange(5.0))
    spec = {"features": [{"name": "m", "op": "MOMENTUM", "window": 1}]}
    assert np.isnan(features(store, spec)["m"]).tolist() == [True, False, False, True, False]
    with pytest.raises(OptionError, match="is a store, which has its own series"):
        features(store, spec, series="symbol")
    wide = Store.from_arrays(lengths=[2], close=np.zeros((2, 3)))
    with pytest.raises(OptionError, match=r"column 'close' of <memory> holds float64\[3\]; expected one number per bar"):
        features(wide, spec)


# Bars that are no series in the order of time are refused by what they say themselves, with column, row and value


THREE = [1.0, 2.0, 3.0]
DAYS = ["2024-01-02", "2024-01-03", "2024-01-01"]
ZONED = pd.to_datetime(DAYS).tz_localize("America/New_York")


@pytest.mark.parametrize(
    ("table", "behind", "before"),
    [
        ({"close": THREE, "ts": [2, 3, 1]}, "1 in row 3", "3 in row 2"),
        ({"close": THREE, "ts": np.array([2.5, 3.5, 1.5])}, "1.5 in row 3", "3.5 in row 2"),
        ({"close": THREE, "ts": np.array([2, 3, 1], dtype=np.uint64)}, "1 in row 3", "3 in row 2"),
        ({"close": THREE, "Date": DAYS}, "2024-01-01 in row 3", "2024-01-03 in row 2"),
        ({"close": THREE, "date": np.array(DAYS, dtype="M8[D]")}, "2024-01-01 in row 3", "2024-01-03 in row 2"),
        ({"close": THREE, "timestamp": [f"{day}T09:30:00Z" for day in DAYS]}, "2024-01-01T09:30:00Z in row 3", "2024-01-03T0"),
        (pd.DataFrame({"close": THREE, "Time": pd.to_datetime(DAYS)}), "2024-01-01 00:00:00 in row 3", "2024-01-03"),
        (pd.DataFrame({"close": THREE, "ts_utc": ZONED}), "2024-01-01 00:00:00-05:00 in row 3", "2024-01-03"),
        (pd.DataFrame({"close": THREE}, index=pd.to_datetime(DAYS)), "2024-01-01 00:00:00 in row 3", "2024-01-03"),
        (pl.DataFrame({"close": THREE, "date": pl.Series(DAYS).str.to_date()}), "2024-01-01 in row 3", "2024-01-03"),
        (pa.table({"close": THREE, "ts": [2, 3, 1]}), "1 in row 3", "3 in row 2"),
    ],
)
def test_a_time_that_falls_is_refused(table: Any, behind: str, before: str) -> None:
    with pytest.raises(
        TimeOrderError, match=rf"^the time '\w+' of the bars falls: {behind} comes after {before}.*\. Sort the bars by"
    ):
        features(table, CLOSE)


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
    assert features({"close": THREE, **told}, CLOSE)["c"].tolist() == THREE


@pytest.mark.parametrize(
    "keys", [["a", "b", "b"], pd.Categorical(["a", "b", "b"]), np.array([1, 2, 2]), pl.Series(["a", "b", "b"])]
)
def test_several_symbols_are_not_one_series(keys: Any) -> None:
    table = {"close": THREE, "Symbol": keys}
    message = (
        r"column 'Symbol' of the bars holds several series: [b2] in row 2 comes after [a1] in row 1\. Pass series='Symbol', or"
    )
    with pytest.raises(OptionError, match=message):
        features(table, CLOSE)
    with pytest.raises(OptionError, match=message):
        FeatureStream(CLOSE).extend(table)
    assert features(table, CLOSE, series="Symbol")["c"].tolist() == THREE


def test_times_rise_within_each_series() -> None:
    table = {"close": THREE, "symbol": ["a", "b", "a"], "ts": [5, 1, 6]}
    assert features(table, CLOSE, series="symbol")["c"].tolist() == THREE
    with pytest.raises(TimeOrderError, match="falls: 4 in row 3 comes after 5 in row 1"):
        features({**table, "ts": [5, 1, 4]}, CLOSE, series="symbol")


def test_a_store_is_inspected_where_it_was_packed_without_a_time_or_a_key(tmp_path: Path) -> None:
    close = np.array(THREE)
    assert len(features(Store.from_arrays(lengths=[2, 1], close=close, ts=np.array([1, 2, 0])), CLOSE)) == 3
    with pytest.raises(TimeOrderError, match=r"falls: 0 in bar 2 of series 1 comes after 2\. Pass time='ts' and sort=True when"):
        features(Store.from_arrays(lengths=[1, 2], close=close, ts=np.array([1, 2, 0])), CLOSE)
    table = pa.table({"close": THREE, "date": np.array(DAYS, dtype="M8[s]"), "symbol": ["a", "b", "a"]})
    with pytest.raises(OptionError, match=r"holds several series: b in bar 2 comes after a\. Pass series='symbol' when the bars"):
        features(pack(table, tmp_path / "plain"), CLOSE)
    keyed = pack(table, tmp_path / "keyed", series="symbol", time="date", sort=True)
    assert features(keyed, CLOSE)["c"].tolist() == [3, 1, 2]
    days = pack(table.drop_columns("symbol"), tmp_path / "days")
    with pytest.raises(TimeOrderError, match=r"falls: 2024-01-01.* in bar 3 comes after 2024-01-03"):
        features(days, CLOSE)


def test_negative_control_without_the_check_symbols_are_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"close": [1.0, 50.0, 2.0, 60.0], "symbol": ["a", "b", "a", "b"]}
    spec = {"features": [{"name": "m", "op": "MOMENTUM", "window": 1}]}
    monkeypatch.setattr(bars, "refuse_disorder", lambda *arguments, **options: None)
    assert features(table, spec)["m"].tolist()[1:] == [49, -48, 58]
    assert features(table, spec, series="symbol")["m"].tolist()[2:] == [1, 10]
