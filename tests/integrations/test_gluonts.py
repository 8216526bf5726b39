"""The series of a store as a dataset of GluonTS."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.integrations.feeds import store

import stoker
from stoker.integrations.gluonts import StoreEntries

pd = pytest.importorskip("pandas")


def test_entries_are_the_series() -> None:
    entries = list(StoreEntries(store(), target="load", freq="h", dynamic_reals=["hour"]))
    assert [entry["item_id"] for entry in entries] == ["0", "1", "2", "3"]
    assert all(np.array_equal(entry["target"], series["load"]) for entry, series in zip(entries, store(), strict=True))
    assert entries[0]["feat_dynamic_real"].shape == (1, 12)
    assert entries[0]["start"] == pd.Period("1970-01-01", freq="h")


def test_the_start_is_the_first_time(tmp_path: Path) -> None:
    table = pd.DataFrame({"key": "a", "ts": pd.date_range("2026-03-01", periods=3, freq="D"), "x": [1.0, 2.0, 3.0]})
    store = stoker.pack(table, tmp_path / "days.stoker", series="key", time="ts")
    entry = next(iter(StoreEntries(store, target="x", freq="D", time="ts")))
    assert (entry["start"], entry["item_id"]) == (pd.Period("2026-03-01", freq="D"), "a")


@pytest.mark.slow
def test_a_predictor_of_theirs_forecasts() -> None:
    pytest.importorskip("gluonts", reason="`make test-adapters` installs it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gluonts.model.seasonal_naive import SeasonalNaivePredictor

        forecasts = list(
            SeasonalNaivePredictor(prediction_length=2, season_length=1).predict(StoreEntries(store(), target="load", freq="h"))
        )
    assert [forecast.mean.tolist() for forecast in forecasts] == [[float(series["load"][-1])] * 2 for series in store()]
