"""Time: it must rise within a series; where it does not, both rows are named, or everything is sorted and counted."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.store.shrink import shrunk

from stoker.errors import BadValueError, TimeOrderError
from stoker.store.pack.api import pack


def write(folder: Path, **files: str) -> str:
    for name, rows in files.items():
        (folder / f"{name}.csv").write_text("k,t,x\n" + rows)
    return str(folder / "*.csv")


SMALL = {"run_bytes": 1, "chunk_bytes": 1, "line_bytes": 1}


@pytest.mark.parametrize("limits", [{}, SMALL])
@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a": "u,1,0\nu,3,0\nu,2,0\n"},
            "the time 't' of k 'u' does not increase: 2 in row 3 of {}/a.csv is before 3 in row 2 of {}/a.csv",
        ),
        (
            {"a": "u,1,0\nv,1,0\nu,1,0\n"},
            "the time 't' of k 'u' does not increase: 1 in row 3 of {}/a.csv equals 1 in row 1 of {}/a.csv",
        ),
        (
            {"a": "u,5,0\nv,9,0\n", "b": "v,10,0\nu,4,0\n"},
            "the time 't' of k 'u' does not increase: 4 in row 2 of {}/b.csv is before 5 in row 1 of {}/a.csv",
        ),
        (
            {"a": "u,5,0\n", "b": "v,1,0\n", "c": "w,1,0\nu,5,0\n"},
            "the time 't' of k 'u' does not increase: 5 in row 2 of {}/c.csv equals 5 in row 1 of {}/a.csv",
        ),
    ],
)
def test_both_places_are_named(tmp_path: Path, limits: dict[str, int], files: dict[str, str], message: str) -> None:
    source = write(tmp_path, **files)
    with shrunk(**limits), pytest.raises(TimeOrderError) as caught:
        pack(source, tmp_path / "out", series="k", time="t")
    advice = "duplicates='first' (or last, mean, keep)" if " equals " in message else "sort=True"
    assert str(caught.value) == message.replace("{}", str(tmp_path)) + f". Fix the rows, or pass {advice}."
    assert not (tmp_path / "out").exists()


def test_both_places_without_a_key(tmp_path: Path) -> None:
    source = write(tmp_path, a="u,1,0\nu,2,0\n", b="u,1,0\nu,1,0\n")
    with pytest.raises(
        TimeOrderError, match=r"the time 't' does not increase: 1 in row 2 of .*/b.csv equals 1 in row 1 of .*/b.csv"
    ):
        pack(source, tmp_path / "out", time="t")
    store = pack(write(tmp_path, b="u,1,0\nu,2,0\n"), tmp_path / "out", time="t")
    assert store.lengths.tolist() == [2, 2]


def test_moments_are_shown_as_moments(tmp_path: Path) -> None:
    source = write(tmp_path, a="u,2020-01-02,0\nu,2020-01-01,0\n")
    with pytest.raises(TimeOrderError, match=r"2020-01-01 in row 2 of .* is before 2020-01-02 in row 1"):
        pack(source, tmp_path / "out", series="k", time="t")


def test_keys_that_are_dates_are_shown_as_dates(tmp_path: Path) -> None:
    table = pa.table({"k": [dt.date(2020, 1, 1)] * 2, "t": [2, 1]})
    with pytest.raises(TimeOrderError, match="of k 2020-01-01T00:00:00 does not increase"):
        pack(table, tmp_path / "out", series="k", time="t")


def test_places_within_lists(tmp_path: Path) -> None:
    table = pa.table({"t": [[1, 2], [5, 6, 6]], "x": [[0, 0], [0, 0, 0]]})
    with pytest.raises(TimeOrderError, match=r"the time 't' does not increase: 6 in row 2 of <Table> equals 6 in row 2 of <Table>"):
        pack(table, tmp_path / "out", time="t")


@pytest.mark.parametrize("limits", [{}, SMALL, {"run_bytes": 300, "chunk_bytes": 100, "fan_in": 3}])
@pytest.mark.parametrize("kind", ["int", "float", "moment"])
def test_sorting_is_stable_and_counts_equal_times(tmp_path: Path, limits: dict[str, int], kind: str) -> None:
    rng = np.random.default_rng(11)
    times = rng.integers(0, 30, 200)
    keys = rng.integers(0, 3, 200)
    shown = {"int": times, "float": times / 4, "moment": times.astype("datetime64[s]")}[kind]
    with shrunk(**limits):
        store = pack({"k": keys, "t": shown, "x": np.arange(200)}, tmp_path / "out", series="k", time="t", sort=True)
    equal = 0
    for key, one in enumerate(store):
        mine = sorted(np.flatnonzero(keys == key).tolist(), key=lambda i: (times[i], i))
        assert one["x"].tolist() == mine
        ordered = times[mine]
        equal += int((ordered[1:] == ordered[:-1]).sum())
    assert equal > 0
    assert store.manifest is not None
    notes = [note for note in store.manifest.notes if "windows span such gaps" not in note]
    assert notes == [f"{equal:,} steps have the same time as the step before them"]


def test_sorting_lists_within_their_row(tmp_path: Path) -> None:
    table = pa.table({"t": [[2, 1], [3, 1, 2]], "x": [[20, 10], [30, 10, 20]]})
    store = pack(table, tmp_path / "out", time="t", sort=True)
    assert [one["x"].tolist() for one in store] == [[10, 20], [10, 20, 30]]


@pytest.mark.parametrize(
    ("times", "row"),
    [
        (pa.array([1, None, 3]), 2),
        (pa.array([1.0, 2.0, None]), 3),
        (pa.array([1.0, float("nan"), 3.0]), 2),
        (pa.array([None, 1], pa.timestamp("s")), 1),
        (pa.array([1, None], pa.date32()), 2),
    ],
)
@pytest.mark.parametrize("options", [{}, {"sort": True}, {"missing": "ffill"}, {"wide": True}])
def test_a_missing_time_is_named(tmp_path: Path, times: pa.Array, row: int, options: dict[str, Any]) -> None:
    table = pa.table({"t": times, "x": [0.0] * len(times)})
    with pytest.raises(BadValueError, match=rf"the time 't' is missing in row {row} of <Table>. Every row needs a time"):
        pack(table, tmp_path / "out", time="t", **options)


def test_rows_without_a_time_are_dropped_where_that_was_asked_for(tmp_path: Path) -> None:
    store = pack(pa.table({"t": [1, None, 3], "x": [0.0, 1.0, 2.0]}), tmp_path / "out", time="t", missing="drop")
    assert store.column("x").tolist() == [0.0, 2.0]


def test_a_file_that_begins_with_dropped_rows_has_no_time_before_it(tmp_path: Path) -> None:
    """The last time seen is that of another file."""
    source = write(tmp_path, a="u,100,1\n", b="u,1,\nu,2,\nu,3,1\n")
    with shrunk(**SMALL):
        store = pack(source, tmp_path / "out", time="t", missing="drop", columns="t,x")
    assert [one["t"].tolist() for one in store] == [[100], [3]]


def test_a_gap_is_not_filled_from_another_file(tmp_path: Path) -> None:
    source = write(tmp_path, a="u,1,5\n", b="u,1,\nu,2,6\nu,3,\n")
    for limits in ({}, SMALL):
        with shrunk(**limits):
            store = pack(source, tmp_path / "out", replace=True, time="t", missing="ffill", columns="t,x")
        assert np.isnan(store[1]["x"][0])
        assert store[1]["x"][1:].tolist() == [6.0, 6.0]


def test_zones_are_part_of_the_type(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,x\n2020-01-01T00:00:00Z,1\n2020-01-01T00:00:01Z,2\n")
    store = pack(tmp_path / "a.csv", tmp_path / "out", time="t")
    assert store.schema["t"].unit in ("s, UTC", "ns, UTC")


def test_the_time_is_remembered(tmp_path: Path) -> None:
    store = pack({"t": [1, 2], "x": [1, 2]}, tmp_path / "out", time="t")
    assert store.time == "t"
