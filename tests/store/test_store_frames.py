"""Stores and DataFrames: what pandas and Polars users call, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import stoker
from stoker.errors import OptionError, TimeOrderError

FRAME = pd.DataFrame(
    {
        "meter": ["M001", "M000", "M001", "M000"],
        "ts": pd.to_datetime(["2024-01-01", "2024-01-01", "2024-01-02", "2024-01-03"]).tz_localize("Europe/Berlin"),
        "kwh": [1.5, np.nan, 2.5, 4.0],
        "count": [1, 2, 3, 4],
        "state": ["on", None, "off", "on"],
    }
)
SORTED = FRAME.sort_values(["meter", "ts"], kind="stable").reset_index(drop=True)


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> stoker.Store:
    if request.param == "memory":
        return stoker.Store.from_frame(FRAME, series="meter", time="ts")
    return stoker.pack(FRAME, tmp_path / "meters.stoker", series="meter", time="ts")


def test_a_series_is_found_by_name(store: stoker.Store) -> None:
    assert store["M001"].index == 1
    assert store["M001"]["kwh"].tolist() == [1.5, 2.5]
    with pytest.raises(KeyError, match="no series with meter 'M9'"):
        store["M9"]
    for index in (None, 1.5, True, ("M000",)):
        with pytest.raises(TypeError, match=r"is not a series; expected a number like store\[0\]"):
            store[index]  # type: ignore[call-overload]
    assert store[np.int64(1)].index == 1


def test_a_store_without_names_says_so() -> None:
    with pytest.raises(OptionError, match="its series have numbers"):
        stoker.Store.from_arrays(x=[[1.0]])["x"]


def test_frames_have_a_row_per_step(store: stoker.Store) -> None:
    frame = store.to_pandas()
    assert frame["state"].dtype == "category"
    assert str(frame["ts"].dt.tz) == "Europe/Berlin"
    for name in SORTED:
        assert [None if pd.isna(value) else value for value in frame[name]] == [
            None if pd.isna(value) else value for value in SORTED[name]
        ], name
    polars = store.to_polars()
    assert isinstance(polars, pl.DataFrame)
    assert polars["kwh"].to_list()[1:] == SORTED["kwh"].tolist()[1:]
    assert polars["state"].to_list() == [None, "on", "on", "off"]


def test_a_frame_of_one_series(store: stoker.Store) -> None:
    assert store["M001"].to_pandas()["state"].tolist() == ["on", "off"]
    plain = pd.DataFrame(store["M001"])
    assert plain.columns.tolist() == ["meter", "ts", "kwh", "count", "state"]
    assert plain["kwh"].tolist() == [1.5, 2.5]
    assert plain["meter"].tolist() == ["M001", "M001"]


def test_negative_control_pandas_takes_no_mapping_that_is_not_a_dict(store: stoker.Store) -> None:
    from collections import UserDict

    assert "kwh" not in pd.DataFrame(UserDict(store["M001"])).columns


def test_a_series_is_a_read_only_mapping(store: stoker.Store) -> None:
    series = store["M001"]
    assert list(series) == list(series.keys()) == ["meter", "ts", "kwh", "count", "state"]
    assert dict(series)["count"].tolist() == {**series}["count"].tolist() == series.copy()["count"].tolist() == [1, 3]
    assert "kwh" in series
    assert "none" not in series
    assert (series.get("none"), len(series)) == (None, 5)
    for change in (lambda: series.update(x=1), lambda: series.pop("kwh"), lambda: series.setdefault("a", 1), series.clear):
        with pytest.raises(TypeError):
            change()
    with pytest.raises(TypeError, match="is read-only"):
        series["kwh"] = 1
    with pytest.raises(ValueError, match="read-only"):
        series["kwh"][0] = 1


@pytest.mark.parametrize(
    "frame", [FRAME, pl.from_pandas(FRAME), {name: FRAME[name] for name in FRAME}], ids=["pandas", "polars", "dict"]
)
def test_a_store_of_a_frame_is_what_pack_writes(tmp_path: Path, frame: Any) -> None:
    memory = stoker.Store.from_frame(frame, series="meter", time="ts")
    packed = stoker.pack(frame, tmp_path / "out", series="meter", time="ts")
    assert (memory.path, memory.key, memory.time, memory.digest) == (None, "meter", "ts", packed.digest)
    for name in packed.schema:
        if packed.schema[name].dtype is not None:
            np.testing.assert_array_equal(memory.column(name), packed.column(name))
    assert list(memory.texts("state")) == list(packed.texts("state"))
    assert memory.save(tmp_path / "saved").to_pandas().equals(packed.to_pandas())


def test_a_frame_and_back_is_the_same_store(store: stoker.Store) -> None:
    again = stoker.Store.from_frame(store.to_pandas(), series="meter", time="ts")
    assert again.to_pandas().equals(store.to_pandas())


def test_what_from_frame_refuses() -> None:
    with pytest.raises(OptionError, match="from_frame takes a table in memory"):
        stoker.Store.from_frame("a.csv")
    with pytest.raises(TimeOrderError):
        stoker.Store.from_frame({"t": [2, 1], "x": [1.0, 2.0]}, time="t")
    assert stoker.Store.from_frame({"t": [2, 1], "x": [1.0, 2.0]}, time="t", sort=True).column("x").tolist() == [2.0, 1.0]
    rules = stoker.Time("t", duplicates="last")
    assert stoker.Store.from_frame({"t": [1, 1], "x": [1.0, 2.0]}, time=rules).column("x").tolist() == [2.0]


def test_series_without_steps_or_names() -> None:
    store = stoker.Store.from_arrays(x=[[1.0, 2.0], [], [3.0]], label=[7, 8, 9])
    assert store.to_pandas().to_dict("list") == {"series": [0, 0, 2], "x": [1.0, 2.0, 3.0], "label": [7, 7, 9]}


def test_the_nearest_name_of_a_series_is_suggested() -> None:
    frame = pd.DataFrame({"meter": ["north", "south", "south"], "x": [1.0, 2.0, 3.0]})
    store = stoker.Store.from_frame(frame, series="meter")
    with pytest.raises(KeyError, match=r"no series with meter 'nort'; did you mean 'north'\?"):
        store["nort"]
    with pytest.raises(KeyError, match="it has north, south"):  # negative control: nothing is near
        store["zzz"]
