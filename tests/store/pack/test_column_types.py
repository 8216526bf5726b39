"""Types that were asked for: through a whole pack, nothing is cut, rounded or wrapped without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stoker import pack
from stoker.errors import BadValueError


@pytest.mark.parametrize(
    ("dtype", "labels"),
    [
        ("float32", ["int64", "float32", "float32", "category"]),
        ("x=float16", ["int64", "int32", "float16", "category"]),
        ("float32,n=int8", ["int64", "int8", "float32", "category"]),
        ({"n": "uint8", "x": np.float32}, ["int64", "uint8", "float32", "category"]),
        (np.float32, ["int64", "float32", "float32", "category"]),
        ("t=int32", ["int32", "int32", "float64", "category"]),
    ],
)
def test_which_columns_a_type_is_for(tmp_path: Path, dtype: Any, labels: list[str]) -> None:
    table = pa.table({"t": [1, 2], "n": pa.array([1, 2], pa.int32()), "x": [0.5, 1.5], "w": ["a", "b"]})
    store = pack(table, tmp_path / "out", time="t", dtype=dtype)
    assert [column.label for column in store.schema.values()] == labels


def test_the_row_is_counted_over_all_chunks_and_dropped_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,n\n" + "1,1\n,1\n" * 300 + "1,300\n")
    with pytest.raises(BadValueError, match=r"holds 300 in row 601 of .*a.csv, which uint8"):
        pack(tmp_path / "a.csv", tmp_path / "out", dtype="n=uint8", missing="drop")
