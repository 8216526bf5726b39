"""encode_table: a table with one row per series becomes columns as a store holds them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stoker.store import encode_table
from stoker.store.pack.series_columns import SeriesColumn

USERS = pa.table(
    {
        "country": ["FR", "DE", None],
        "label": [2, 0, 1],
        "born": pa.array(["2001-01-01", "1999-05-05", None]).cast(pa.date32()),
        "gap": [1, None, 3],
        "vector": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]],
        "zip": ["1", "2", "3"],
    }
)


def encoded(table: pa.Table, dtypes: dict[str, str] | None = None) -> dict[str, SeriesColumn]:
    return {one.field.name: one for one in encode_table(table, dtypes or {}, "users")}


def test_each_kind_of_column() -> None:
    found = encoded(USERS, {"zip": "text", "vector": "float32"})
    assert (found["country"].texts, found["country"].values.tolist(), found["country"].missing) == (["DE", "FR"], [1, 0, -1], 1)
    assert found["label"].values.dtype == np.int64
    assert (found["born"].field.kind, found["born"].values[2]) == ("timestamp", np.iinfo(np.int64).min)
    np.testing.assert_array_equal(found["gap"].values, [1.0, np.nan, 3.0])
    assert (found["vector"].width, found["vector"].values.dtype, found["zip"].field.kind) == (2, np.float32, "text")


def test_rows_are_taken_and_row_minus_one_is_missing() -> None:
    rows = np.array([2, -1, 0])
    taken = {name: column.take(rows) for name, column in encoded(USERS, {"zip": "text"}).items()}
    assert taken["country"].tolist() == [-1, -1, 1]
    np.testing.assert_array_equal(taken["gap"], [3.0, np.nan, 1.0])
    np.testing.assert_array_equal(taken["vector"], [[4, 5], [np.nan, np.nan], [0, 1]])
    assert taken["zip"].to_pylist() == ["3", None, "1"]
