"""Appending: a store that grew is the one that a pack of all rows makes, and what does not fit is refused with the store as it was."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.store.appending import assert_same_content, joined

import stoker
from stoker import Store, inspect
from stoker._disk import Lock
from stoker.errors import (
    OptionError,
    SchemaError,
    StoreError,
    StoreLockedError,
    TimeOrderError,
)
from stoker.store import append as appends

Table = Mapping[str, Sequence[Any]]

DAYS: list[dict[str, list[Any]]] = [
    {"id": ["b", "d", "b"], "t": [1, 1, 2], "x": [1.0, np.nan, 2.0], "mood": ["up", "down", None], "n": [1, 2, 3]},
    {"id": ["d", "a", "b"], "t": [2, 2, 3], "x": [4.0, np.inf, 5.0], "mood": ["new", "up", "down"], "n": [4, 5, 6]},
    {"id": ["z", "a"], "t": [3, 4], "x": [np.nan, 6.0], "mood": [None, "newer"], "n": [7, 8]},
]


def grown(folder: Path, tables: Sequence[Table], **options: Any) -> Store:
    store = stoker.pack(tables[0], folder, **options)
    for table in tables[1:]:
        store = stoker.append(folder, table)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    grown(tmp_path / "store", DAYS, series="id", time="t")
    return tmp_path / "store"


@pytest.mark.promise("P26")
@pytest.mark.parametrize("key", ["text", "number", "date"])
def test_an_appended_store_equals_a_full_pack(tmp_path: Path, key: str) -> None:
    names = {"a": -5, "b": 2, "d": 7, "z": 1}
    keys = {"text": str, "number": names.get, "date": lambda name: dt.date(1970, 1, 10 + names[name])}[key]
    days = [{**day, "id": [keys(name) for name in day["id"]]} for day in DAYS]
    appended = grown(tmp_path / "store", days, series="id", time="t")
    full = stoker.pack(joined(days), tmp_path / "full", series="id", time="t")
    assert inspect(appended).num_appends == 2
    assert_same_content(appended, full)
    assert [appended.find(one) for one in (appended[0]["id"], appended[3]["id"])] == [0, 3]


@pytest.mark.promise("P26")
def test_a_compacted_store_has_the_shards_of_a_full_pack(store: Path, tmp_path: Path) -> None:
    full = stoker.pack(joined(DAYS), tmp_path / "full", series="id", time="t").manifest
    copy = stoker.compact(store, tmp_path / "copy").manifest
    compacted = stoker.compact(store).manifest
    for found in (copy, compacted):
        assert (found.version, found.columns, found.offsets, found.length) == (1, full.columns, full.offsets, full.length)
    assert {path.name for path in store.iterdir()} == {path.name for path in (tmp_path / "full").iterdir()}


@pytest.mark.promise("P26")
def test_an_append_writes_new_files_only(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    stoker.pack(DAYS[0], folder, series="id", time="t")
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")}
    stoker.append(folder, DAYS[1])
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")} == before


@pytest.mark.promise("P26")
def test_a_reader_keeps_its_rows_while_others_append(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    grown(folder, DAYS[:2], series="id", time="t")
    reader = stoker.open(folder)
    stoker.append(folder, DAYS[2])
    assert_same_content(reader, stoker.pack(joined(DAYS[:2]), tmp_path / "full", series="id", time="t"))


def test_a_reader_that_has_read_outlives_a_compaction_and_another_is_asked_to_open_again(store: Path) -> None:
    reader, late = stoker.open(store), stoker.open(store)
    x = reader.column("x").copy()
    t = len(reader.column("t"))
    stoker.compact(store)
    np.testing.assert_array_equal(reader.column("x"), x)
    assert len(reader.column("n")) == t  # its files are mapped
    with pytest.raises(StoreError, match=r"was compacted or replaced since it was opened. Open it again"):
        late.column("x")


# ---- sources ----


def test_files_of_text_take_the_types_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id,day,x,word\nb,2021-01-01,1.5,red\nb,2021-01-02,2.5,blue\n")
    (tmp_path / "2.csv").write_text("day,extra,word,x,id\n2021-01-03 00:00:00,9,green,3,b\n2021-01-03 00:00:00,9,red,4,c\n")
    stoker.pack(tmp_path / "1.csv", tmp_path / "store", series="id", time="day")
    appended = stoker.append(tmp_path / "store", tmp_path / "2.csv")
    assert appended.schema["x"].dtype == np.float64
    assert appended[0]["x"].tolist() == [1.5, 2.5, 3.0]
    assert list(appended.texts("word")) == ["red", "blue", "green"]
    days = appended[0]["day"].view(f"datetime64[{appended.schema['day'].unit}]")
    assert days.astype("datetime64[D]").astype(str).tolist() == ["2021-01-01", "2021-01-02", "2021-01-03"]


def test_each_file_is_a_series_so_a_new_file_is_a_new_series(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text(f"t,x\n1,{ord(name)}\n2,0\n")
    stoker.pack([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "store", time="t")
    appended = stoker.append(tmp_path / "store", tmp_path / "c.csv")
    full = stoker.pack([tmp_path / f"{name}.csv" for name in "abc"], tmp_path / "full", time="t")
    assert_same_content(appended, full)
    assert appended.uniform_length == 2
    appended = stoker.append(tmp_path / "store", {"t": [1], "x": [5]})
    assert appended[3]["series"] == "<dict>"


def test_rows_of_a_wide_table_go_to_the_series_of_their_columns(tmp_path: Path) -> None:
    for day, text in enumerate(("left,right\n1,2\n3,4\n", "new,right,left\n9,6,5\n")):
        (tmp_path / str(day)).mkdir()
        (tmp_path / str(day) / "data.csv").write_text(text)
    stoker.pack(tmp_path / "0" / "data.csv", tmp_path / "store", wide=True)
    appended = stoker.append(tmp_path / "store", tmp_path / "1" / "data.csv")
    assert {one["series"].rpartition(":")[2]: one["value"].tolist() for one in appended} == {
        "left": [1, 3, 5],
        "right": [2, 4, 6],
        "new": [9],
    }


def test_values_per_series_are_those_of_the_newest_rows(tmp_path: Path) -> None:
    first = pa.table({"id": ["a", "b"], "x": [[1.0, 2.0], [3.0]], "label": [1, 2], "place": ["here", "there"]})
    second = pa.table({"id": ["c", "a"], "x": [[9.0], [4.0, 5.0]], "label": [3, 7], "place": ["far", "gone"]})
    stoker.pack(first, tmp_path / "store", series="id")
    appended = stoker.append(tmp_path / "store", second)
    assert [(one["id"], one["x"].tolist(), int(one["label"]), one["place"]) for one in appended] == [
        ("a", [1.0, 2.0, 4.0, 5.0], 7, "gone"),
        ("b", [3.0], 2, "there"),
        ("c", [9.0], 3, "far"),
    ]


# ---- times ----


@pytest.mark.parametrize("overlap", ["error", "replace", "keep"])
def test_late_rows_are_refused_or_merged_by_the_rule(store: Path, overlap: Any) -> None:
    late = {"id": ["b", "b", "b"], "t": [0, 2, 9], "x": [10.0, 20.0, 90.0], "mood": ["late"] * 3, "n": [1, 1, 1]}
    before = stoker.open(store)
    if overlap == "error":
        with pytest.raises(TimeOrderError, match=r"rows of id 'b' begin at t 0, .* up to 3. .* overlap='replace'"):
            stoker.append(store, late)
        assert stoker.open(store).digest == before.digest
        assert sorted(path.name for path in (store / "parts").iterdir()) == ["000002", "000003"]
        return
    appended = stoker.append(store, late, overlap=overlap)
    series = appended[appended.find("b")]
    assert series["t"].tolist() == [0, 1, 2, 3, 9]
    assert series["x"].tolist() == [10.0, 1.0, 20.0 if overlap == "replace" else 2.0, 5.0, 90.0]
    assert appended.schema["x"].nonfinite == stoker.compact(store, store.parent / "plain").schema["x"].nonfinite
    appended = stoker.append(store, {**late, "t": [10, 11, 12]})
    assert appended[appended.find("b")]["t"].tolist() == [0, 1, 2, 3, 9, 10, 11, 12]
    compacted = stoker.compact(store)
    assert_same_content(compacted, appended)


def test_times_of_another_unit_are_converted_exactly(tmp_path: Path) -> None:
    def moments(unit: str, *numbers: int) -> pa.Array:
        return pa.array(numbers, type=pa.timestamp(unit))

    stoker.pack(pa.table({"id": [1, 1], "t": moments("ms", 1, 2), "x": [1.0, 2.0]}), tmp_path / "store", series="id", time="t")
    appended = stoker.append(tmp_path / "store", pa.table({"id": [1, 1], "t": moments("us", 3000, 4000), "x": [1.0, 2.0]}))
    appended = stoker.append(tmp_path / "store", pa.table({"id": [1], "t": moments("s", 1), "x": [1.0]}))
    assert appended.column("t").tolist() == [1, 2, 3, 4, 1000]
    with pytest.raises(SchemaError, match="column 't' has times that 'ms', the unit of the store, cannot hold exactly"):
        stoker.append(tmp_path / "store", pa.table({"id": [1], "t": moments("us", 2_000_001), "x": [1.0]}))


# ---- refusals ----


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"x": None}, SchemaError, "<dict> has no column 'x', which .*store has. It has id, t, mood, n."),
        ({"id": None}, SchemaError, "<dict> has no column 'id', which names the series of"),
        ({"n": [1.5]}, stoker.StokerError, "n"),
        ({"x": ["high"]}, stoker.StokerError, "column 'x'"),
        ({"id": [5]}, SchemaError, "column 'id' is int64 per series, not text per series"),
    ],
)
def test_columns_that_do_not_fit_are_refused(store: Path, change: Table, error: type[Exception], match: str) -> None:
    table = {"id": ["b"], "t": [9], "x": [1.0], "mood": ["up"], "n": [1], **change}
    before = stoker.open(store).digest
    with pytest.raises(error, match=match):
        stoker.append(store, {name: values for name, values in table.items() if values is not None})
    assert stoker.open(store).digest == before
    assert not (store / "parts" / "000004").exists()


@pytest.mark.parametrize("options", [{"overlap": "merge"}, {"series": "id"}, {"missing": "ffill"}], ids=str)
def test_options_that_do_not_fit_are_refused(store: Path, options: Any) -> None:
    with pytest.raises(OptionError):
        stoker.append(store, DAYS[0], **options)


@pytest.mark.promise("P26")
def test_one_process_writes_at_a_time(store: Path) -> None:
    late = {**DAYS[2], "t": [100, 100]}
    with Lock(store):
        with pytest.raises(StoreLockedError):
            stoker.append(store, late)
        with pytest.raises(StoreLockedError):
            stoker.compact(store)
        assert inspect(store).num_appends == 2
    assert inspect(stoker.append(store, late)).num_appends == 3


def test_a_folder_of_the_user_among_the_parts_stays(store: Path) -> None:
    (store / "parts" / "000003" / "notes.txt").write_text("mine")
    (store / "parts" / "notes").mkdir()
    stoker.compact(store)
    assert sorted(path.relative_to(store / "parts").as_posix() for path in (store / "parts").rglob("*")) == [
        "000003",
        "000003/notes.txt",
        "notes",
    ]


@pytest.mark.promise("P26", control=True)
def test_negative_control_without_the_check_of_times_a_series_is_out_of_order(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appends, "_refuse_early", lambda *_: None)
    late = {"id": ["b"], "t": [0], "x": [10.0], "mood": ["late"], "n": [1]}
    appended = stoker.append(store, late)
    assert appended[appended.find("b")]["t"].tolist() == [1, 2, 3, 0]
