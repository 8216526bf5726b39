"""Grouping: rows of one key become one series, wherever they lie; without a key each file is a series, or each row."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.shrink import shrunk

import stoker
from stoker import pack
from stoker.errors import BadValueError, OptionError, TimeOrderError


@pytest.mark.parametrize(
    ("keys", "label", "stored"),
    [
        (pa.array([3, -1, 3], pa.int8()), "int64", [-1, 3]),
        (pa.array([3, 1, 3], pa.uint32()), "int64", [1, 3]),
        (pa.array([2**64 - 1, 0, 2**64 - 1], pa.uint64()), "uint64", [0, 2**64 - 1]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), "text", ["a", "b"]),
        (pa.array(["b", "a", "b"], pa.large_string()), "text", ["a", "b"]),
        (pa.array([dt.date(1970, 1, 2), dt.date(1969, 12, 31), dt.date(1970, 1, 2)]), "timestamp[s]", [-86400, 86400]),
        (pa.array([5, -5, 5], pa.timestamp("us", "UTC")), "timestamp[us, UTC]", [-5, 5]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_keys_of_every_kind_are_sorted_and_keep_their_values(tmp_path: Path, keys: pa.Array, label: str, stored: list[Any]) -> None:
    store = pack(pa.table({"k": keys, "x": [1, 2, 3]}), tmp_path / "out", series="k")
    assert store.schema["k"].label == label
    assert [one["k"] for one in store] == stored
    assert [one["x"].tolist() for one in store] == [[2], [1, 3]]


@pytest.mark.parametrize(
    ("content", "row"), [("k,x\na,1\n,2\n", 2), ("k,x\n1,1\n2,2\n,3\n", 3), ("k,x\n" + "a,1\n" * 99 + ",1\n", 100)]
)
def test_a_missing_key_is_named_with_its_row(tmp_path: Path, content: str, row: int) -> None:
    (tmp_path / "a.csv").write_text(content)
    for small in (False, True):
        with (
            shrunk(line_bytes=40 if small else 1 << 20),
            pytest.raises(BadValueError, match=rf"the key 'k' is missing in row {row} of .*a.csv. Every row needs a key"),
        ):
            pack(tmp_path / "a.csv", tmp_path / "out", series="k")


@pytest.mark.parametrize("limits", [{}, {"run_bytes": 1, "chunk_bytes": 1}])
def test_a_key_that_comes_twice_is_refused_where_rows_are_series(tmp_path: Path, limits: dict[str, int]) -> None:
    table = pa.table({"k": ["b", "a", "c", "b"], "x": [[1.0], [2.0], [3.0], [4.0]]})
    with shrunk(**limits), pytest.raises(BadValueError, match=r"k 'b' occurs twice \(in row 1 of .*, and in row 4 of .*\)"):
        pack(table, tmp_path / "out", series="k")


# Time: it must rise within a series; where it does not, both rows are named, or everything is sorted and counted


def write(folder: Path, **files: str) -> str:
    for name, rows in files.items():
        (folder / f"{name}.csv").write_text("k,t,x\n" + rows)
    return str(folder / "*.csv")


SMALL = {"run_bytes": 1, "chunk_bytes": 1, "line_bytes": 1}


@pytest.mark.parametrize("limits", [{}, SMALL])
@pytest.mark.parametrize(
    ("files", "places"),
    [
        ({"a": "u,1,0\nu,3,0\nu,2,0\n"}, ["2 in row 3 of {}/a.csv", "3 in row 2 of {}/a.csv"]),
        ({"a": "u,1,0\nv,1,0\nu,1,0\n"}, ["1 in row 3 of {}/a.csv", "1 in row 1 of {}/a.csv"]),
        ({"a": "u,5,0\nv,9,0\n", "b": "v,10,0\nu,4,0\n"}, ["4 in row 2 of {}/b.csv", "5 in row 1 of {}/a.csv"]),
        ({"a": "u,5,0\n", "b": "v,1,0\n", "c": "w,1,0\nu,5,0\n"}, ["5 in row 2 of {}/c.csv", "5 in row 1 of {}/a.csv"]),
    ],
)
def test_both_places_are_named(tmp_path: Path, limits: dict[str, int], files: dict[str, str], places: list[str]) -> None:
    source = write(tmp_path, **files)
    with shrunk(**limits), pytest.raises(TimeOrderError) as caught:
        pack(source, tmp_path / "out", series="k", time="t")
    assert all(place.format(tmp_path) in str(caught.value) for place in ("k 'u'", *places))
    assert not (tmp_path / "out").exists()


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
    notes = [note for note in store.manifest.notes if "windows span such gaps" not in note]
    assert notes == [f"{equal:,} steps have the same time as the step before them"]


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


# Missing values and those that are not finite: kept bit for bit, counted, placed, and treated as the policy says


FLOATS = {"float16": "<u2", "float32": "<u4", "float64": "<u8"}
BITS = {
    "float16": [0x0000, 0x8000, 0x0001, 0x03FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7D01, 0xFE77],
    "float32": [0, 0x80000000, 1, 0x007FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345],
    "float64": [
        0,
        1 << 63,
        1,
        (1 << 52) - 1,
        0x7FEFFFFFFFFFFFFF,
        0x7FF << 52,
        0xFFF << 52,
        0x7FF8 << 48,
        (0x7FF << 52) + 1,
        0xFFF8000000012345,
    ],
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("limits", [{"chunk_bytes": 1 << 20}, {"chunk_bytes": 4, "run_bytes": 8}])
@pytest.mark.parametrize("how", ["memory", "parquet", "arrow"])
def test_every_pattern_of_bits_is_kept_and_counted(tmp_path: Path, dtype: str, limits: dict[str, int], how: str) -> None:
    """Zeros, subnormals, the largest, infinities, quiet and signalling NaN, with their payloads."""
    bits = np.array(BITS[dtype], dtype=FLOATS[dtype])
    keys = np.array([1, 0, 1, 0, 1, 0, 1, 0, 1, 0])
    table = pa.table({"k": keys, "x": pa.array(bits.view(dtype))})
    source: Any = table
    if how == "parquet":
        source = tmp_path / "a.parquet"
        pq.write_table(table, source)
    elif how == "arrow":
        source = tmp_path / "a.arrow"
        with pa.ipc.new_file(source, table.schema) as writer:
            writer.write_table(table)
    with shrunk(**limits):
        store = pack(source, tmp_path / "out", series="k")
    expected = np.concatenate([bits[keys == 0], bits[keys == 1]])
    assert store.column("x").view(FLOATS[dtype]).tolist() == expected.tolist()
    bad = store.schema["x"].nonfinite
    assert (bad.nan, bad.inf) == (3, 2)
    assert bad.first == [0, 2]
    assert store.schema["x"].missing == 0


def test_sums_that_overflow_are_not_taken_for_infinite(tmp_path: Path) -> None:
    values = np.array([1.7e308] * 10 + [-1.7e308] * 10)
    store = pack({"x": values, "y": np.array([3e38] * 20, dtype="f4")}, tmp_path / "out")
    assert [column.nonfinite.first for column in store.schema.values()] == [None, None]


# Policies


TABLE = {
    "k": ["a", "b", "a", "b", "a"],
    "x": [None, 1.0, 2.0, None, math.nan],
    "n": [1, None, 3, 4, 5],
    "w": ["u", "v", None, "v", "u"],
}


def series_of(store: Any, name: str) -> list[list[Any]]:
    texts = store.schema[name].texts
    rows = [one[name].tolist() for one in store]
    shown = [[None if value < 0 else texts[value] for value in row] for row in rows] if texts is not None else rows
    return [[None if isinstance(v, float) and math.isnan(v) else v for v in row] for row in shown]


def test_a_missing_value_is_named_where_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n,c\n")
    for source, row in ((tmp_path / "a.csv", 3), ({"x": [1.0, math.nan]}, 2)):
        with pytest.raises(BadValueError, match=rf"column 'x' is missing in row {row} of"):
            pack(source, tmp_path / "out", missing="error")
    assert pack({"x": [1.0, 2.0]}, tmp_path / "out", missing="error").num_steps == 2


def test_integers_with_gaps_are_not_taken_for_integers(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, None, 3])})
    assert pack(table, tmp_path / "out").schema["n"].label == "float64"
    with pytest.raises(BadValueError, match="'n' is missing in row 2 of <Table>, which int64 cannot store"):
        pack(table, tmp_path / "out", replace=True, dtype="n=int64")
    (tmp_path / "a.csv").write_text("n\n1\nNA\n3\n")
    with pytest.raises(BadValueError, match=r"in row 2 of .*a.csv"):
        pack(tmp_path / "a.csv", tmp_path / "out", replace=True, dtype="n=int64")
    assert pack(table, tmp_path / "out", replace=True, dtype="n=int64", missing="drop").column("n").tolist() == [1, 3]


def test_missing_values_within_lists_are_kept_dropped_or_filled(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([[1, None], [None], []], pa.list_(pa.int32())), "label": [1, None, 3]})
    store = pack(table, tmp_path / "keep")
    assert store.schema["x"].label == "float64"
    assert series_of(store, "x") == [[1.0, None], [None], []]
    dropped = pack(table.select(["x"]), tmp_path / "drop", missing="drop")
    assert dropped.lengths.tolist() == [1, 0, 0]
    filled = pack(table.select(["x"]), tmp_path / "fill", missing="ffill")
    assert series_of(filled, "x") == [[1.0, 1.0], [None], []]
    with pytest.raises(BadValueError, match="column 'x' is missing in row 1 of <Table>"):
        pack(table, tmp_path / "error", missing="error")


# `Files(name_column=)`: the file that each series comes from, as UCR's TRAIN and TEST


def write_ucr(folder: Path) -> list[Path]:
    """A set of UCR as two files, which have classes in different orders."""
    train, test = folder / "Walk_TRAIN.tsv", folder / "Walk_TEST.tsv"
    train.write_text("2\t0.5\t1.5\t2.5\n1\t0.1\t0.2\t0.3\n2\t1\t2\t3\n")
    test.write_text("1\t9\t8\t7\n2\t6\t5\t4\n")
    return [train, test]


def test_series_of_files_have_their_source(tmp_path: Path) -> None:
    store = stoker.pack(stoker.Files([str(path) for path in write_ucr(tmp_path)], name_column="source"), tmp_path / "s")
    column = store.schema["source"]
    assert (column.level, column.kind, list(column.texts or ())) == ("series", "category", ["Walk_TRAIN.tsv", "Walk_TEST.tsv"])
    assert store.column("source").tolist() == [0, 0, 0, 1, 1]
    plain = stoker.pack([str(path) for path in write_ucr(tmp_path)], tmp_path / "plain")
    assert {*store.schema} == {*plain.schema, "source"}
    assert store.column("value").tolist() == plain.column("value").tolist()
    split = stoker.split.by_value(store, stoker.Sequences(3), "source", train="*_TRAIN.tsv", valid="*_TEST.tsv")
    assert [len(subset) for subset in split] == [3, 2]


def test_rows_of_series_have_the_file_of_each(tmp_path: Path) -> None:
    for name, rows in (("a", "k,x\n1,1\n2,2\n"), ("b", "k,x\n1,3.5\n3,4\n")):
        (tmp_path / f"{name}.csv").write_text(rows)
    store = stoker.pack(
        stoker.Files(str(tmp_path / "*.csv"), name_column="file"), tmp_path / "s", series="k", columns=["x", "file"]
    )
    assert store.schema["file"].level == "step"
    texts = list(store.schema["file"].texts or ())
    found = [(one["k"], one["x"].tolist(), [texts[code] for code in store.column("file")[a:b]]) for one, a, b in
             zip(store, store.offsets[:-1], store.offsets[1:], strict=True)]  # fmt: skip
    assert found == [(1, [1.0, 3.5], ["a.csv", "b.csv"]), (2, [2.0], ["a.csv"]), (3, [4.0], ["b.csv"])]


def test_a_name_column_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,x\n1,1\n")
    path, to = str(tmp_path / "a.csv"), tmp_path / "s"
    with pytest.raises(OptionError, match=r"name_column='x' is a column of .*a.csv already. Give another name"):
        stoker.pack(stoker.Files(path, name_column="x"), to, series="k")
    with pytest.raises(OptionError, match=r"each file is one series here, which has the name of the file"):
        stoker.pack(stoker.Files(path, name_column="source"), to)
    with pytest.raises(OptionError, match=r"name_column= is not for wide=True"):
        stoker.pack(stoker.Files(path, name_column="source"), to, wide=True)
