"""Columns of every type come back as they were."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from stoker.errors import BadValueError
from stoker_recipes.tabular.values import read_values, to_column, to_words

NUMBERS = [
    pa.array([1, None, 255], pa.uint8()),
    pa.array([-(2**62) - 1, 2**62 + 1, None]),
    pa.array([0.1, None, -5e300]),
    pa.array([1.5, None], pa.float32()),
    pa.array([Decimal("19.99"), None, Decimal("-0.01"), Decimal("12345.60")], pa.decimal128(10, 2)),
    pa.array([Decimal("19.99"), Decimal("-0.01"), None], pa.decimal256(40, 2)),
    pa.array([Decimal("19.99"), Decimal("1.00"), None], pa.decimal128(10, 2))[1:],
    pa.array([dt.date(1969, 12, 31), None]),
    pa.array([dt.datetime(2020, 3, 29, 1, 30, tzinfo=dt.UTC), None], pa.timestamp("us", "Europe/Vienna")),
    pa.array([dt.datetime(1950, 1, 1)], pa.timestamp("ns")),
    pa.array([dt.timedelta(seconds=1.5), None]),
    pa.array([dt.time(23, 59, 59), None], pa.time32("s")),
]


@pytest.mark.promise("P30")
@pytest.mark.parametrize("column", NUMBERS, ids=lambda column: str(column.type))
def test_numbers_and_times_come_back(column: pa.Array) -> None:
    values = read_values("x", column)
    assert to_column(values.data, values.valid, column.type).equals(column)


WORDS = [
    pa.array(["a", None, "", "ä€"]),
    pa.array([True, None, False]),
    pa.array(["b", "a", None]).dictionary_encode(),
    pa.array([None, None], pa.null()),
    pa.array([None, 3, 7]),
    pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
    pa.array(["a"], pa.large_string()),
    pa.array([dt.time(1, 2, 3), None], pa.time32("s")),
    pa.array([dt.timedelta(seconds=1.5), None]),
]


@pytest.mark.promise("P30")
@pytest.mark.parametrize("column", WORDS, ids=lambda column: str(column.type))
def test_categories_come_back(column: pa.Array) -> None:
    values = read_values("x", column, family="text")
    words = values.words.to_pylist()
    listed = [words[code] if there else None for code, there in zip(values.data, values.valid, strict=True)]
    assert to_words(listed, column.type).to_pylist() == column.to_pylist()
    assert to_words(listed, column.type).type == column.type


def test_nan_is_missing() -> None:
    assert read_values("x", pa.array([1.0, float("nan"), None])).valid.tolist() == [True, False, False]


def test_infinity_is_refused_with_its_row() -> None:
    with pytest.raises(BadValueError, match="column 'x', row 2: found inf; expected a finite number"):
        read_values("x", pa.array([1.0, None, float("inf")]))


def test_lists_are_refused() -> None:
    with pytest.raises(BadValueError, match="column 'x' is of the type list"):
        read_values("x", pa.array([[1], [2]]))
