"""Stores as Arrow tables: the same values, fitting types, numbers shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.harness import COLUMNS, TinyStore, tiny_store, write_shard
from tests.store.tampering import edit_manifest


@pytest.fixture
def built(tmp_path: Path) -> TinyStore:
    return tiny_store(tmp_path / "store")


def expected_in_arrow(built: TinyStore, name: str) -> list[Any]:
    """The values of each series as plain Python values; times stay whole numbers."""
    if name == "symbol":
        return built.texts[name]
    if name == "label":
        return list(built.values[name].tolist())
    values = built.values[name]
    if name == "brief":
        values = (values.astype("<u4") << 16).view("<f4")
    flat: list[Any] = values.tolist()
    if name == "seen":
        flat = [None if value == np.iinfo(np.int64).min else value for value in flat]
    if name == "mood":
        flat = [None if code < 0 else built.texts[name][code] for code in flat]
    ends = np.cumsum(built.lengths).tolist()
    return [flat[end - length : end] for end, length in zip(ends, built.lengths, strict=True)]


def as_plain(column: pa.ChunkedArray) -> list[Any]:
    whole = column.combine_chunks()
    if pa.types.is_large_list(whole.type) or pa.types.is_fixed_size_list(whole.type):
        inner = whole.values
        if pa.types.is_temporal(inner.type):
            whole = pa.LargeListArray.from_arrays(offsets_of(whole), inner.view(pa.int64()))
    plain: list[Any] = whole.to_pylist()
    return plain


def offsets_of(array: pa.Array) -> pa.Array:
    if pa.types.is_large_list(array.type):
        return array.offsets
    return pa.array(np.arange(len(array) + 1, dtype=np.int64) * array.type.list_size)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lengths": (4, 4, 4), "uniform": True},
        {"lengths": (4, 4, 4)},
        {"lengths": (0, 0)},
        {"lengths": (0, 0), "uniform": True},
        {"lengths": ()},
        {"lengths": (1,) * 20, "width": 1},
    ],
)
def test_the_arrow_table_holds_the_same_values(tmp_path: Path, options: dict[str, Any]) -> None:
    built = tiny_store(tmp_path / "store", **options)
    table = built.open().to_arrow()
    table.validate(full=True)
    assert table.num_rows == len(built.lengths)
    assert table.column_names == list(COLUMNS)
    for name in COLUMNS:
        assert as_plain(table[name]) == expected_in_arrow(built, name), name


def test_numbers_in_arrow_are_shared_and_not_copied(built: TinyStore) -> None:
    store = built.open()
    for name in ("price", "wide", "when", "span", "mood"):
        values = store.to_arrow()[name].chunk(0).values
        while pa.types.is_fixed_size_list(values.type):
            values = values.values
        codes = values.indices if pa.types.is_dictionary(values.type) else values
        assert codes.buffers()[1].address == store.column(name).ctypes.data


@pytest.mark.parametrize("name", ["when", "span", "mood"])
def test_every_kind_may_be_wide(built: TinyStore, name: str) -> None:
    rows = built.values[name][:8].reshape(-1, 1).repeat(2, axis=1)
    entry = msgspec.to_builtins(write_shard(built.path, np.ascontiguousarray(np.vstack([rows, rows[:1]]))))
    edit_manifest(built, lambda tree: tree["columns"][COLUMNS.index(name)].update(values=entry))
    store = built.open()
    table = store.to_arrow()
    table.validate(full=True)
    assert store[0][name].shape == (3, 2)
    assert table.schema.field(name).type.value_type.list_size == 2
