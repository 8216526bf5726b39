"""Rules for times: equal times become one row, missing steps become rows, as pandas does it; wherever blocks end."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.store.shrink import shrunk

import stoker
from stoker import Store, pack
from stoker.errors import BadValueError, OptionError, TimeOrderError
from stoker.store.pack import regular

SMALL = {"run_bytes": 300, "chunk_bytes": 100, "fan_in": 3}
HOUR = pd.Timedelta("1h")


def notes(store: Store) -> list[str]:
    return store.manifest.notes


def twin(table: pd.DataFrame, *, sort: bool, duplicates: str, freq: str | None, missing: str) -> dict[Any, pd.DataFrame]:
    """What pandas makes of the rows of each key."""
    found = {}
    for key, rows in table.groupby("k"):
        one = rows.drop(columns="k")
        one = one.sort_values("t", kind="stable") if sort else one
        one = one.drop_duplicates("t", keep=duplicates)  # type: ignore[call-overload]
        one = one.set_index("t")
        one = one.asfreq(freq) if freq is not None else one
        found[key] = one.ffill() if missing == "ffill" else one
    return found


@st.composite
def panels(draw: st.DrawFn) -> tuple[pd.DataFrame, bool]:
    """Rows of a few series on a grid of hours, with gaps and repeated times; sorted by time, or not."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size, is_sorted = draw(st.integers(1, 60)), draw(st.booleans())
    span = draw(st.sampled_from([3, 20, 200]))
    places = rng.integers(0, span, size)
    places = np.sort(places) if is_sorted else places
    x = rng.normal(size=size)
    x[rng.random(size) < draw(st.sampled_from([0.0, 0.4]))] = np.nan
    table = pd.DataFrame(
        {
            "k": rng.integers(0, 3, size),
            "t": pd.Timestamp("2020-02-27") + places * HOUR,
            "x": x,
            "n": rng.integers(-5, 5, size),
            "word": rng.choice(["red", "blue"], size),
        }
    )
    return table, is_sorted


@pytest.mark.promise("P25")
@settings(max_examples=8)
@given(
    panel=panels(),
    duplicates=st.sampled_from(["first", "last"]),
    freq=st.sampled_from([None, "1h"]),
    missing=st.sampled_from(["keep", "ffill"]),
    limits=st.sampled_from([{}, SMALL, {"run_bytes": 1, "chunk_bytes": 1}]),
)
def test_equal_times_and_missing_steps_are_those_of_pandas(
    panel: tuple[pd.DataFrame, bool], duplicates: str, freq: str | None, missing: str, limits: dict[str, int]
) -> None:
    table, is_sorted = panel
    expected = twin(table, sort=not is_sorted, duplicates=duplicates, freq=freq, missing=missing)
    options: dict[str, Any] = {"missing": missing, "sort": not is_sorted}
    with tempfile.TemporaryDirectory() as folder, shrunk(**limits):
        store = pack(table, folder + "/out", series="k", time=stoker.Time("t", freq=freq, duplicates=duplicates), **options)
        assert store.column("k").tolist() == sorted(expected)
        for one, rows in zip(store, expected.values(), strict=True):
            assert one["t"].tolist() == rows.index.as_unit("us").astype(np.int64).tolist()
            for name in ("x", "n"):
                np.testing.assert_allclose(one[name].astype(float), rows[name].to_numpy(float), rtol=1e-13, atol=1e-13)
            words = [None if code < 0 else store.texts("word")[code] for code in one["word"].tolist()]
            assert words == [None if pd.isna(word) else word for word in rows["word"]]
        assert store.freq == freq


@pytest.mark.parametrize(
    ("freq", "times", "expected"),
    [
        ("1mo", ["2020-01-31", "2020-04-30"], ["2020-01-31", "2020-02-29", "2020-03-31", "2020-04-30"]),
        ("1mo", ["2021-02-28", "2021-05-28"], ["2021-02-28", "2021-03-28", "2021-04-28", "2021-05-28"]),
        ("1q", ["2020-01-15", "2020-10-15"], ["2020-01-15", "2020-04-15", "2020-07-15", "2020-10-15"]),
        ("1y", ["2019-02-28", "2020-02-28", "2022-02-28"], ["2019-02-28", "2020-02-28", "2021-02-28", "2022-02-28"]),
        ("2w", ["2020-01-01", "2020-02-12"], ["2020-01-01", "2020-01-15", "2020-01-29", "2020-02-12"]),
    ],
)
@pytest.mark.parametrize("limits", [{}, {"run_bytes": 1, "chunk_bytes": 1}])
def test_months_follow_the_calendar(
    tmp_path: Path, freq: str, times: list[str], expected: list[str], limits: dict[str, int]
) -> None:
    table = {"k": [0] * len(times) + [1] * len(times), "t": np.array(times * 2, "datetime64[ms]"), "x": np.arange(2.0 * len(times))}
    with shrunk(**limits):
        store = pack(table, tmp_path / "out", series="k", time=stoker.Time("t", freq=freq))
    assert [one["t"].astype("datetime64[ms]").astype("datetime64[D]").astype(str).tolist() for one in store] == [expected] * 2


def test_days_of_a_zone_follow_its_clock_and_hours_do_not(tmp_path: Path) -> None:
    days = pd.date_range("2021-03-26", periods=6, freq="D", tz="Europe/Berlin")
    table = pd.DataFrame({"t": days.delete([2, 3]), "x": 1.0})
    store = pack(table, tmp_path / "days", time=stoker.Time("t", freq="1d"))
    assert store.column("t").tolist() == days.as_unit("us").asi8.tolist()
    with pytest.raises(TimeOrderError, match="not on the grid of freq='24h'"):
        pack(table, tmp_path / "hours", time=stoker.Time("t", freq="24h"))


@pytest.mark.promise("P25")
@pytest.mark.parametrize("limits", [{}, SMALL])
def test_a_time_off_the_grid_is_named(tmp_path: Path, limits: dict[str, int]) -> None:
    rows = (
        "".join(f"a,2020-01-01 {h:02}:00:00,1\n" for h in range(20))
        + "b,2020-01-01,1\nb,2020-01-01 01:00:00,2\nb,2020-01-01 02:30:00,3\n"
    )
    (tmp_path / "a.csv").write_text("k,t,x\n" + rows)
    with shrunk(**limits), pytest.raises(TimeOrderError) as caught:
        pack(tmp_path / "a.csv", tmp_path / "out", series="k", time=stoker.Time("t", freq="1h"))
    for place in ("02:30:00 in row 23", "01:00:00 in row 22"):
        assert place in str(caught.value)
    store = pack(tmp_path / "a.csv", tmp_path / "out", series="k", time=stoker.Time("t", freq="60min", regular=False))
    assert (store.freq, store.lengths.tolist(), notes(store)) == ("60min", [20, 3], [])


def gap(**columns: Any) -> dict[str, Any]:
    return {"t": np.array(["2020-01-01T00", "2020-01-01T03"], dtype="datetime64[s]"), **columns}


def test_integers_become_floats_only_where_steps_are_missing(tmp_path: Path) -> None:
    table = gap(n=np.array([1, 2], "i2"), ok=np.array([True, False]), seen=np.array([5, 6], "datetime64[s]"), w=["a", "b"])
    store = pack(table, tmp_path / "out", time=stoker.Time("t", freq="1h"))
    assert store.column("n").tobytes() == np.array([1, np.nan, np.nan, 2]).tobytes()
    assert store.column("ok").tobytes() == np.array([1, np.nan, np.nan, 0]).tobytes()
    assert store.column("seen").tolist() == [5, -(2**63), -(2**63), 6]
    assert store.column("w").tolist() == [0, -1, -1, 1]
    assert store.schema["n"].nonfinite.nan == 2
    assert pack(table, tmp_path / "whole", time=stoker.Time("t", freq="3h")).schema["n"].label == "int16"
    filled = pack(table, tmp_path / "filled", time=stoker.Time("t", freq="1h"), missing="ffill")
    assert (filled.schema["n"].label, filled.column("n").tolist()) == ("int16", [1, 1, 1, 2])


@pytest.mark.parametrize(
    ("rules", "missing", "message"),
    [
        (
            {"freq": "1h"},
            "error",
            r"has 2 missing steps of freq='1h' after 2020-01-01T00:00:00. Fix the file, or pass missing",
        ),
        ({"freq": "1h"}, "drop", "freq= adds missing steps, and missing='drop' drops them"),
        ({"freq": "1h", "duplicates": "keep"}, "keep", "freq= needs one row per time, so duplicates='keep' is invalid"),
        ({"freq": "1ms"}, "keep", "freq='1ms' is finer than the times of column 't', which are in s"),
        ({"freq": "soon"}, "keep", "freq is 'soon'; expected a number and a unit"),
        ({"regular": False}, "keep", "regular=False says that freq= is only declared, so it needs freq="),
        ({"duplicates": "some"}, "keep", "duplicates='some' is invalid; expected one of error, first, last, keep"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, rules: dict[str, Any], missing: str, message: str) -> None:
    with pytest.raises((OptionError, BadValueError), match=message):
        pack(gap(x=[1.0, 2.0]), tmp_path / "out", time=stoker.Time("t", **rules), missing=missing)
    assert not (tmp_path / "out").exists()


def test_a_frequency_that_is_far_too_fine_is_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    times = np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[ns]")
    with pytest.raises(OptionError, match=r"has 31,622,399,999 missing steps of freq='1ms' .* at most 100,000,000 can be added"):
        pack({"t": times, "x": [1.0, 2.0]}, tmp_path / "out", time=stoker.Time("t", freq="1ms"))


@pytest.mark.promise("P25")
def test_a_large_gap_is_added_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    apply = regular.StepRules.apply

    def counted(self: Any, block: Any, max_rows: int) -> Any:
        for part in apply(self, block, 100):
            sizes.append(len(part.step[0]))
            yield part

    monkeypatch.setattr(regular.StepRules, "apply", counted)
    times = np.array(["2020-01-01", "2020-02-01", "2020-02-02"] * 2, dtype="datetime64[s]")
    store = pack(
        {"k": [0] * 3 + [1] * 3, "t": times, "x": np.arange(6.0)}, tmp_path / "out", series="k", time=stoker.Time("t", freq="1h")
    )
    assert store.lengths.tolist() == [32 * 24 + 1] * 2
    assert (np.diff(store[1]["t"]) == 3600).all()
    assert max(sizes) <= 100
    assert np.flatnonzero(~np.isnan(store[1]["x"])).tolist() == [0, 31 * 24, 32 * 24]


def test_series_that_are_rows_keep_their_values(tmp_path: Path) -> None:
    table = pa.table(
        {
            "t": pa.array([[0, 7200], [], [3600], [0, 0, 3600]], pa.list_(pa.timestamp("s"))),
            "x": [[1.0, 2.0], [], [3.0], [4.0, 5.0, 6.0]],
            "label": ["a", "b", "c", "d"],
            "size": [1, 2, 3, 4],
        }
    )
    with shrunk(run_bytes=1, chunk_bytes=1):
        store = pack(table, tmp_path / "out", time=stoker.Time("t", freq="1h", duplicates="last"))
    assert store.lengths.tolist() == [3, 0, 1, 2]
    assert list(store.texts("label")) == ["a", "b", "c", "d"]
    assert store.column("size").tolist() == [1, 2, 3, 4]
    np.testing.assert_equal(store.column("x"), [1.0, np.nan, 2.0, 3.0, 5.0, 6.0])


@pytest.mark.promise("P25", control=True)
def test_negative_control_without_the_held_row_equal_times_of_two_blocks_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"t": [1] * 100, "x": np.arange(100.0)}
    with shrunk(run_bytes=1, chunk_bytes=1):
        assert pack(table, tmp_path / "one", time=stoker.Time("t", duplicates="first")).num_steps == 1
        monkeypatch.setattr(regular.StepRules, "_with_held", lambda self, block: block)
        with pytest.raises((TimeOrderError, IndexError)):
            pack(table, tmp_path / "several", time=stoker.Time("t", duplicates="first"))


# Without a frequency


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (pd.date_range("2020", periods=40, freq="h"), None),
        (
            pd.date_range("2020", periods=40, freq="h").delete(range(10, 20)),
            "1 of 29 steps .* are not 1h .the largest: 11h.: .* --freq 1h",
        ),
        (pd.date_range("2020", periods=40, freq="15min").delete([3]), "1 of 38 steps .* are not 15min .the largest: 30min."),
        (pd.date_range("2020", periods=40, freq="MS"), None),
        (pd.date_range("2020", periods=400, freq="D", tz="Europe/Berlin"), None),
        (
            pd.date_range("2020", periods=400, freq="D", tz="Europe/Berlin").delete([7]),
            "1 of 398 steps .* are not 1d .the largest: 2d.",
        ),
        (pd.Timestamp("2020") + pd.to_timedelta(np.cumsum(np.arange(1, 40) ** 2), "s"), None),
    ],
)
def test_gaps_in_regular_times_are_noted(tmp_path: Path, times: pd.DatetimeIndex, expected: str | None) -> None:
    store = pack(pd.DataFrame({"t": times, "x": 1.0}), tmp_path / "out", time="t")
    assert store.manifest.version == 1
    if expected is None:
        assert notes(store) == []
    else:
        assert len(notes(store)) == 1
        assert re.match(expected, notes(store)[0])
