"""Grouping: rows of one key become one series, wherever they lie; without a key each file is a series, or each row."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.shrink import shrunk

from stoker.errors import BadValueError
from stoker.store.pack.api import pack


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
def test_kinds_of_keys(tmp_path: Path, keys: pa.Array, label: str, stored: list[Any]) -> None:
    store = pack(pa.table({"k": keys, "x": [1, 2, 3]}), tmp_path / "out", series="k")
    assert store.schema["k"].label == label
    assert [one["k"] for one in store] == stored
    assert [one["x"].tolist() for one in store] == [[2], [1, 3]]


def test_texts_sort_by_code_point(tmp_path: Path) -> None:
    words = ["b", "B", "é", "\U0001f600", "\uffff", "aa", "a", "a b", "A\x00"]
    with shrunk():
        store = pack({"k": words, "x": list(range(9))}, tmp_path / "out", series="k")
    assert list(store.texts("k")) == sorted(words)
    assert [one["x"].tolist()[0] for one in store] == [words.index(word) for word in sorted(words)]


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


def test_each_file_is_a_series(tmp_path: Path) -> None:
    for name, rows in (("b", "1\n2\n"), ("a", "3\n"), ("c", "")):
        (tmp_path / f"{name}.csv").write_text("x\n" + rows)
    store = pack(str(tmp_path / "*.csv"), tmp_path / "out")
    assert list(store.texts("series")) == ["a.csv", "b.csv", "c.csv"]
    assert [one["x"].tolist() for one in store] == [[3], [1, 2], []]
    assert store.key == "series"


def test_rows_of_lists_are_series(tmp_path: Path) -> None:
    table = pa.table({"id": ["b", "a"], "x": [[1.0, 2.0], [3.0]], "n": [7, 8]})
    plain = pack(table, tmp_path / "plain")
    assert [one["x"].tolist() for one in plain] == [[1.0, 2.0], [3.0]]
    keyed = pack(table, tmp_path / "keyed", series="id")
    assert [(one["id"], one["x"].tolist(), one["n"]) for one in keyed] == [("a", [3.0], 8), ("b", [1.0, 2.0], 7)]


@pytest.mark.parametrize("limits", [{}, {"run_bytes": 1, "chunk_bytes": 1}, {"run_bytes": 200, "chunk_bytes": 100}])
def test_rows_of_lists_in_many_runs(tmp_path: Path, limits: dict[str, int]) -> None:
    rng = np.random.default_rng(3)
    keys = [f"key {i:03}" for i in rng.permutation(40).tolist()]
    lists = [rng.normal(size=size).tolist() for size in rng.integers(0, 40, 40).tolist()]
    table = pa.table({"k": keys, "x": pa.array(lists, pa.list_(pa.float64())), "note": [key[::-1] for key in keys]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=17)
    with shrunk(**limits):
        store = pack(tmp_path / "a.parquet", tmp_path / "out", series="k")
    for key, one in zip(sorted(keys), store, strict=True):
        assert (one["k"], one["x"].tolist(), one["note"]) == (key, lists[keys.index(key)], key[::-1])


@pytest.mark.parametrize("limits", [{}, {"run_bytes": 1, "chunk_bytes": 1}])
def test_a_key_that_comes_twice_is_refused_where_rows_are_series(tmp_path: Path, limits: dict[str, int]) -> None:
    table = pa.table({"k": ["b", "a", "c", "b"], "x": [[1.0], [2.0], [3.0], [4.0]]})
    with (
        shrunk(**limits),
        pytest.raises(
            BadValueError,
            match=r"k 'b' occurs twice \(in row 1 of .*, and in row 4 of .*\), but each row is a whole series. Make the key",
        ),
    ):
        pack(table, tmp_path / "out", series="k")
