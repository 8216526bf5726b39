"""Parquet: every type that a store can hold, in any row groups, and damage that is found."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Store, pack
from stoker.errors import SourceError
from stoker.store import Chunk, RowLocation
from stoker.store.formats.parquet import ParquetSource
from stoker.store.shards import MISSING_TIME


def source(folder: Path, table: pa.Table, **options: Any) -> ParquetSource:
    pq.write_table(table, folder / "a.parquet", **options)
    return ParquetSource(folder / "a.parquet", "a.parquet")


def packed(folder: Path, table: dict[str, Any], **options: Any) -> Store:
    pq.write_table(pa.table(table), folder / "a.parquet")
    return pack(folder / "a.parquet", folder / "out", replace=True, **options)


def chunks_of(
    source: ParquetSource, schema: pa.Schema | None = None, start: RowLocation | None = None, size: int = 64
) -> list[Chunk]:
    return [task() for task in source.read(schema, start=start or RowLocation(), chunk_bytes=size)]


def rows_of(chunks: list[Chunk]) -> list[dict[str, Any]]:
    return [row for chunk in chunks for row in chunk.table.to_pylist()]


@pytest.fixture
def table() -> pa.Table:
    return pa.table(
        {
            "k": [f"key {i // 7}" for i in range(100)],
            "x": pa.array([None if i % 5 == 0 else i / 3 for i in range(100)]),
            "l": pa.array([list(range(i % 4)) if i % 6 else None for i in range(100)]),
        }
    )


MOMENT = dt.datetime(2020, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("values", "label", "numbers"),
    [
        (pa.array([1, -1], pa.int8()), "int8", [1, -1]),
        (pa.array([1, 2**64 - 1], pa.uint64()), "uint64", [1, 2**64 - 1]),
        (pa.array([1.5, -0.0], pa.float16()), "float16", [1.5, -0.0]),
        (pa.array([1.5, None], pa.float32()), "float32", [1.5, np.nan]),
        (pa.array([True, False]), "bool", [True, False]),
        (pa.array([True, None]), "float64", [1.0, np.nan]),
        (pa.array([7, None], pa.uint16()), "float64", [7.0, np.nan]),
        (pa.array([decimal.Decimal("1.25"), None]), "float64", [1.25, np.nan]),
        (pa.array([MOMENT, None], pa.timestamp("ms")), "timestamp[ms]", [1577934245000, MISSING_TIME]),
        (pa.array([MOMENT, None], pa.timestamp("us", "UTC")), "timestamp[us, UTC]", [1577934245000000, MISSING_TIME]),
        (
            pa.array([MOMENT, None], pa.timestamp("ns", "Asia/Tokyo")),
            "timestamp[ns, Asia/Tokyo]",
            [1577934245 * 10**9, MISSING_TIME],
        ),
        (pa.array([MOMENT.date(), None], pa.date32()), "timestamp[s]", [1577923200, MISSING_TIME]),
        (pa.array([dt.time(1), None], pa.time64("us")), "duration[us]", [3_600_000_000, MISSING_TIME]),
        (pa.array([dt.timedelta(seconds=1), None], pa.duration("ms")), "duration[ms]", [1000, MISSING_TIME]),
        (pa.array(["b", None]), "category", [0, -1]),
        (pa.array(["b", None]).dictionary_encode(), "category", [0, -1]),
        (pa.array(["b", None], pa.large_string()), "category", [0, -1]),
        (pa.array(["b", None], pa.string_view()), "category", [0, -1]),
        (pa.nulls(2), "float64", [np.nan, np.nan]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_every_type_becomes_one_of_a_store(tmp_path: Path, values: pa.Array, label: str, numbers: list[Any]) -> None:
    store = packed(tmp_path, {"v": values})
    assert store.schema["v"].label == label
    assert store.schema["v"].missing == values.null_count
    wanted = np.array(numbers, dtype=store.schema["v"].dtype)
    assert store.column("v").tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2), pa.list_(pa.field("x", pa.float32()))]
)
def test_lists_are_series(tmp_path: Path, kind: pa.DataType) -> None:
    rows = [[1.0, 2.0], [3.0, None], None, [5.0, 6.0]]
    columns = {"x": pa.array(rows, kind), "name": ["a", "b", "c", None], "label": pa.array([1, 2, 3, 4], pa.int8())}
    store = packed(tmp_path, columns)
    assert store.lengths.tolist() == [2, 2, 0, 2]
    assert store.column("x").tobytes() == np.array([1, 2, 3, np.nan, 5, 6], dtype="<f4").tobytes()
    assert list(store.texts("name")) == ["a", "b", "c", ""]
    assert store.column("label").tolist() == [1, 2, 3, 4]
    assert (store.schema["x"].missing, store.schema["name"].missing) == (1, 1)


def rows_or_error(made: ParquetSource) -> tuple[list[dict[str, Any]], SourceError | None]:
    try:
        made.schema()
        return rows_of(chunks_of(made, size=1 << 20)), None
    except SourceError as error:
        return [], error


def test_every_changed_byte_is_found_or_harmless(tmp_path: Path) -> None:
    """With page checksums a flipped byte is an error, or it lies where it changes no value."""
    table = pa.table({"k": [f"key{i % 5}" for i in range(200)], "x": np.arange(200) / 3})
    pq.write_table(table, tmp_path / "a.parquet", write_page_checksum=True, compression="none", use_dictionary=["k"])
    whole = (tmp_path / "a.parquet").read_bytes()
    expected = table.to_pylist()
    found = 0
    for at in range(4, len(whole), 23):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        (tmp_path / "a.parquet").write_bytes(damaged)
        rows, error = rows_or_error(ParquetSource(tmp_path / "a.parquet", "a.parquet"))
        if error is not None:
            assert "a.parquet" in str(error)
            assert "\n" not in str(error)
            found += 1
        else:
            assert [list(row.values()) for row in rows] == [list(row.values()) for row in expected], f"byte {at}"
    assert found > 50


def test_without_the_checksums_damage_would_pass(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(200) / 3}), tmp_path / "a.parquet", compression="none", use_dictionary=False)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[800] ^= 0x55
    (tmp_path / "a.parquet").write_bytes(data)
    made = ParquetSource(tmp_path / "a.parquet", "a.parquet")
    assert rows_of(chunks_of(made)) != [{"x": i / 3} for i in range(200)]
