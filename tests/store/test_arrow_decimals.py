"""Decimals become the float64 that Python reads of their text, whatever their width, scale and gaps."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.store.arrow import decimals_as_floats
from stoker.store.pack.api import pack
from stoker_recipes.tabular import analyze, split_digits

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
