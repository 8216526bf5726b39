"""Local times become UTC like those of pandas: hours that occur twice by the order of rows, those that never occur by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.store.shrink import shrunk

import stoker
from stoker import pack
from stoker.errors import BadValueError, OptionError
from stoker.store.pack import values

ZONE = "Europe/Berlin"
SMALL = {"run_bytes": 1, "chunk_bytes": 1, "line_bytes": 40}


def autumn(freq: str, zone: str = ZONE, periods: int = 120) -> pd.DatetimeIndex:
    """Times around the end of daylight saving."""
    start = {"Europe/Berlin": "2021-10-30 20:00", "America/Nuuk": "2023-10-28 10:00", "Australia/Lord_Howe": "2021-04-03 10:00"}[
        zone
    ]
    return pd.date_range(start, periods=periods, freq=freq, tz=zone)


@pytest.mark.promise("P25")
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Nuuk", "Australia/Lord_Howe"])
@pytest.mark.parametrize(("freq", "limits"), [("15min", {}), ("15min", SMALL)])
def test_a_repeated_hour_is_resolved_by_the_order_of_rows(tmp_path: Path, zone: str, freq: str, limits: dict[str, int]) -> None:
    times = autumn(freq, zone)
    rows = pd.DataFrame({"t": times.tz_localize(None).repeat(2), "k": ["a", "b"] * len(times), "x": 1.0})
    pd.testing.assert_index_equal(times.tz_localize(None).tz_localize(zone, ambiguous="infer"), times, check_names=False)
    rows.to_csv(tmp_path / "a.csv", index=False)
    with shrunk(**limits):
        store = pack(tmp_path / "a.csv", tmp_path / "out", series="k", time=stoker.Time("t", freq=freq, timezone=zone))
    assert store.schema["t"].unit == f"ns, {zone}"
    for one in store:
        assert one["t"].tolist() == times.as_unit("ns").asi8.tolist()


@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
def test_a_wide_table_of_local_hours(tmp_path: Path, form: str) -> None:
    """The table of a newcomer: an hour that occurs twice, and a row that is there twice."""
    times = autumn("h", periods=48)
    rows = pd.DataFrame({"date": times.tz_localize(None), "MT_001": np.arange(48.0), "MT_003": np.arange(48.0) * 2})
    rows = pd.concat([rows, rows.iloc[40:]]).sort_values("date", kind="stable").reset_index(drop=True)
    source: Any = rows if form == "frame" else tmp_path / f"a.{form}"
    if form == "csv":
        rows.to_csv(source, index=False)
    elif form == "parquet":
        rows.to_parquet(source, index=False)
    store = pack(source, tmp_path / "out", wide=True, time=stoker.Time("date", freq="1h", duplicates="last", timezone=ZONE))
    one = store[store.find("MT_003")]
    assert one["date"].tolist() == times.as_unit("ns").asi8.tolist()
    assert one["value"].tolist() == (np.arange(48.0) * 2).tolist()


@pytest.mark.promise("P25")
@pytest.mark.parametrize(("ambiguous", "pandas"), [("first", True), ("last", False)])
def test_an_hour_that_is_passed_once_needs_a_rule(tmp_path: Path, ambiguous: str, pandas: bool) -> None:
    local = pd.DatetimeIndex(["2021-10-31 01:30", "2021-10-31 02:30", "2021-10-31 03:30"])
    rows = pd.DataFrame({"t": local, "x": 1.0})
    for given, why in (("infer", "pass through that hour only once"), ("error", "ambiguous='error' refuses it")):
        with pytest.raises(BadValueError, match=rf"is 2021-10-31T02:30:00 in row 2 of <DataFrame>, which occurs twice .*{why}"):
            pack(rows, tmp_path / "out", time=stoker.Time("t", timezone=ZONE, ambiguous=given))
    store = pack(rows, tmp_path / "out", time=stoker.Time("t", timezone=ZONE, ambiguous=ambiguous))
    expected = local.tz_localize(ZONE, ambiguous=np.full(3, pandas)).as_unit("ns").asi8
    assert store.column("t").tolist() == expected.tolist()


@pytest.mark.promise("P25")
def test_an_hour_that_does_not_exist_needs_a_rule(tmp_path: Path) -> None:
    local = pd.DatetimeIndex(["2021-03-28 01:30", "2021-03-28 02:30", "2021-03-28 03:30"])
    rows = pd.DataFrame({"t": local, "x": 1.0})
    with pytest.raises(BadValueError, match=r"T02:30:00 in row 2 .* does not exist in Europe/Berlin"):
        pack(rows, tmp_path / "out", time=stoker.Time("t", timezone=ZONE))
    store = pack(rows, tmp_path / "out", time=stoker.Time("t", timezone=ZONE, nonexistent="shift"))
    expected = local.tz_localize(ZONE, nonexistent="shift_forward").as_unit("ns").asi8
    assert store.column("t").tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("times", "zone", "message"),
    [
        (
            pd.date_range("2020", periods=2, tz="UTC"),
            ZONE,
            "the time column 't' of <DataFrame> has the zone UTC already. Leave timezone= out",
        ),
        ([1, 2], ZONE, "the time column 't' of <DataFrame> is int64. Leave timezone= out"),
        (pd.date_range("2020", periods=2), "Mars/Olympus", "timezone is 'Mars/Olympus'; expected a name like 'Europe/Berlin'"),
    ],
)
def test_zones_that_do_not_fit(tmp_path: Path, times: Any, zone: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pack(pd.DataFrame({"t": times, "x": 1.0}), tmp_path / "out", time=stoker.Time("t", timezone=zone))
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("P25", control=True)
def test_negative_control_without_the_order_of_rows_a_repeated_hour_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values.LocalTimes, "_second_passes", lambda self, times, *more: np.zeros(len(times), dtype=bool))
    monkeypatch.setattr(values.LocalTimes, "finish", lambda self: None)
    rows = pd.DataFrame({"t": autumn("h", periods=12).tz_localize(None), "x": 1.0})
    assert pack(rows, tmp_path / "out", time=stoker.Time("t", duplicates="first", timezone=ZONE)).num_steps == 11
