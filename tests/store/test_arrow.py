"""Stores as Arrow tables, values shared between NumPy and Arrow, and decimals as floats."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.harness import COLUMNS, TinyStore, edit_manifest, tiny_store, write_shard

from stoker import pack
from stoker.store import decimals_as_floats, from_numpy, from_texts, to_numpy
from stoker.store.arrow import fill_null
from stoker_recipes.tabular import analyze, split_digits


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
    edit_manifest(built.path, lambda tree: tree["columns"][COLUMNS.index(name)].update(values=entry))
    store = built.open()
    table = store.to_arrow()
    table.validate(full=True)
    assert store[0][name].shape == (3, 2)
    assert table.schema.field(name).type.value_type.list_size == 2


# NumPy and Arrow share values, bit for bit what pyarrow's own conversions give, and without importing pandas


DTYPES = ["?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"]


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_values_are_those_of_pyarrow(dtype: str, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays(dtype, st.integers(0, 70)))
    shared = from_numpy(values)
    shared.validate(full=True)
    assert shared.type == pa.array(values).type
    assert to_numpy(shared).tobytes() == values.tobytes()
    start = data.draw(st.integers(0, len(values)))
    assert to_numpy(shared[start:]).tobytes() == values[start:].tobytes()
    assert to_numpy(pa.array(values)[start:]).tobytes() == values[start:].tobytes()


@given(st.lists(st.text()))
def test_texts_are_those_of_pyarrow(texts: list[str]) -> None:
    shared = from_texts(texts)
    shared.validate(full=True)
    assert shared.equals(pa.array(texts, pa.large_string()))


PACK = """
import sys
import stoker
{how}
print("pandas" in sys.modules)
"""
HOWS = {
    "pack": "stoker.pack(stoker.Files('{path}', name_column='file'), '{path}.stoker', series='key', time='order')",
    "text keys": "stoker.pack('{path}', '{path}.stoker', series='name', time='order', sort=True)",
    "append": "stoker.pack('{path}', '{path}.stoker', series='name'); store = stoker.append('{path}.stoker', '{path}'); store.column('x')",
}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_pack_does_not_import_pandas(tmp_path: Any, run_python: Any, suffix: str, how: str) -> None:
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    columns = {"x": [1.0, None, 2.0], "on": [True, False, True], "kind": ["a", None, "b"], "count": [None, 2, 3]}
    table = pa.table({"key": [1, 1, 2], "name": ["b", "a", "b"], "order": [1, 2, 3], **columns})
    path = tmp_path / f"table.{suffix}"
    (pa_csv.write_csv if suffix == "csv" else pq.write_table)(table, path)
    assert run_python(PACK.format(how=HOWS[how].format(path=path))).strip() == "False"


@given(st.lists(st.none() | st.integers(-(2**53), 2**53)), st.sampled_from([pa.int64(), pa.float64(), pa.timestamp("us")]))
def test_nulls_are_filled_as_by_pyarrow(values: list[int | None], kind: pa.DataType) -> None:
    array = pa.array(values, pa.int64()).cast(kind)
    assert fill_null(array, -1).equals(array.fill_null(-1))


# Decimals become the float64 that Python reads of their text, whatever their width, scale and gaps


TYPES = [
    *(pa.decimal32(9, scale) for scale in (0, 2, 9)),
    *(pa.decimal64(18, scale) for scale in (0, 2, 6, 18)),
    *(pa.decimal128(38, scale) for scale in (0, 2, 10, 22, 23, 38)),
    *(pa.decimal256(76, scale) for scale in (0, 2, 30)),
]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(data=st.data())
def test_each_is_the_nearest_float(kind: pa.DataType, data: st.DataObject) -> None:
    units = (
        st.integers(1 - 10**kind.precision, 10**kind.precision - 1) | st.integers(-(2**53) - 2, 2**53 + 2) | st.integers(-100, 100)
    )
    values = [
        None if unit is None or abs(unit) >= 10**kind.precision else Decimal(f"{unit}e{-kind.scale}")
        for unit in data.draw(st.lists(st.none() | units, max_size=8))
    ]
    found = decimals_as_floats(pa.array([None, *values], kind)[1:])
    assert found.type == pa.float64()
    assert found.to_pylist() == [None if value is None else float(value) for value in values]


@pytest.mark.promise("P11", control=True)
def test_negative_control_the_cast_of_arrow_rounds_twice() -> None:
    cents = pa.array([Decimal(i).scaleb(-2) for i in range(10_000)], pa.decimal128(12, 2))
    right = np.arange(10_000) / 100
    assert np.array_equal(np.array(decimals_as_floats(cents).to_pylist()), right)
    assert (np.array(cents.cast(pa.float64()).to_pylist()) != right).sum() > 500


@pytest.mark.parametrize("kind", [pa.decimal128(12, 2), pa.decimal128(38, 2), pa.decimal64(12, 2)], ids=str)
def test_money_keeps_its_two_decimals_on_every_way(kind: pa.DataType, tmp_path: Any) -> None:
    money = pa.array([Decimal("19.99"), None, Decimal("-0.07"), Decimal("1234567890.35")], kind)
    table = pa.table({"price": pa.chunked_array([money[:2], money[2:]])})
    expected = [19.99, None, -0.07, 1234567890.35]
    stored = pack(table, tmp_path / "store").column("price").tolist()
    assert [None if value != value else value for value in stored] == expected
    column: Any = analyze(table)["price"]
    assert (column.min, column.max, column.num_null, list(column.max_digits)[-1]) == (-0.07, 1234567890.35, 1, "E-8")
    digits = split_digits(table["price"], min_decimal=None, max_decimal=None)
    assert digits.columns[-1] == "E-2"
    assert np.array_equal(digits.matrix, split_digits(expected, min_decimal=None, max_decimal=None).matrix)
