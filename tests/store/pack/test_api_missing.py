"""Missing values and those that are not finite: kept bit for bit, counted, placed, and treated as the policy says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.shrink import shrunk

from stoker.errors import BadValueError
from stoker.store.pack.api import pack

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


def test_ffill(tmp_path: Path) -> None:
    for limits in ({}, {"chunk_bytes": 1, "run_bytes": 1}):
        with shrunk(**limits):
            store = pack(pa.table(TABLE), tmp_path / "out", replace=True, series="k", missing="ffill")
        assert series_of(store, "x") == [[None, 2.0, 2.0], [1.0, 1.0]]
        assert series_of(store, "n") == [[1.0, 3.0, 5.0], [None, 4.0]]
        assert series_of(store, "w") == [["u", "u", "u"], ["v", "v"]]
        assert (store.schema["x"].nonfinite.nan, store.schema["x"].nonfinite.first) == (1, [0, 0])


def test_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n,c\n")
    for source, row in ((tmp_path / "a.csv", 3), ({"x": [1.0, math.nan]}, 2)):
        with pytest.raises(BadValueError, match=rf"column 'x' is missing in row {row} of"):
            pack(source, tmp_path / "out", missing="error")
    assert pack({"x": [1.0, 2.0]}, tmp_path / "out", missing="error").num_steps == 2


def test_integers_with_gaps_are_not_taken_for_integers(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, None, 3])})
    assert pack(table, tmp_path / "out").schema["n"].label == "float64"
    with pytest.raises(
        BadValueError, match=r"column 'n' is missing in row 2 of <Table>, which int64 cannot store. Choose a float type"
    ):
        pack(table, tmp_path / "out", replace=True, dtype="n=int64")
    (tmp_path / "a.csv").write_text("n\n1\nNA\n3\n")
    with pytest.raises(BadValueError, match=r"in row 2 of .*a.csv"):
        pack(tmp_path / "a.csv", tmp_path / "out", replace=True, dtype="n=int64")
    assert pack(table, tmp_path / "out", replace=True, dtype="n=int64", missing="drop").column("n").tolist() == [1, 3]


def test_gaps_within_lists(tmp_path: Path) -> None:
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
