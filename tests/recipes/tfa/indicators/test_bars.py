"""Bars come as tables of any kind; what cannot be read is named."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.recipes.tfa.indicators.markets import market
from tests.recipes.tfa.indicators.specs import all_operators

from stoker.errors import BadValueError, OptionError
from stoker.store.store import Store
from stoker_recipes.tfa.indicators.engine import features

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


@pytest.mark.parametrize(
    "column",
    [
        ["1.5", "2"],
        np.array(["1.5", "2"]),
        pd.Series(["1.5", "2"]),
        pl.Series(["1.5", "2"]),
        pa.array(["1.5", "2"]),
    ],
)
def test_strings_are_refused_with_their_row(column: Any) -> None:
    with pytest.raises(BadValueError, match=r"column 'close' holds '1.5' \(str_?\) in row 1; expected a number"):
        features({"close": column}, CLOSE)


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
