"""The laws of statistics: neither chunks nor the order of rows matter, and beyond the limits errors stay within their bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.harness import num_examples
from tests.recipes.tabular.statistics.twin import rank_distance

from stoker_recipes.tabular import Statistics, analyze
from stoker_recipes.tabular.statistics import quantiles
from stoker_recipes.tabular.statistics.dates import DateColumn
from stoker_recipes.tabular.statistics.gather import AnyColumn, CategoryColumn
from stoker_recipes.tabular.statistics.numbers import NumberColumn
from stoker_recipes.tabular.statistics.quantiles import closest_positions

pytestmark = pytest.mark.promise("P11")

MONEY = st.integers(-(10**7), 10**7).map(lambda cents: cents / 100)
FLOATS = MONEY | st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1e-25, 1e19, 0.1, math.inf])
ROWS = st.fixed_dictionaries(
    {
        "float": st.none() | FLOATS,
        "int": st.none() | st.integers(-50, 50) | st.integers(-(2**63), 2**63 - 1),
        "uint": st.none() | st.integers(0, 2**64 - 1),
        "text": st.none() | st.sampled_from("abcdef") | st.text(max_size=3),
        "flag": st.none() | st.booleans(),
        "moment": st.none() | st.integers(-(10**15), 10**15) | st.integers(0, 10**6),
        "list": st.none() | st.lists(FLOATS, max_size=3),
        "nothing": st.none(),
    }
)
SCHEMA = pa.schema(
    {
        "float": pa.float64(),
        "int": pa.int64(),
        "uint": pa.uint64(),
        "text": pa.string(),
        "flag": pa.bool_(),
        "moment": pa.timestamp("us"),
        "list": pa.list_(pa.float64()),
        "nothing": pa.null(),
    }
)
TABLES = st.lists(ROWS, max_size=60).map(lambda rows: pa.Table.from_pylist(rows, schema=SCHEMA))


FEW = settings(max_examples=num_examples(40))


def cut(table: pa.Table, data: st.DataObject) -> list[pa.Table]:
    """The table in parts, some of which may be empty."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(table)), max_size=4)))
    return [table.slice(start, stop - start) for start, stop in zip([0, *cuts], [*cuts, len(table)], strict=True)]


@contextmanager
def pieces(size: int) -> Iterator[None]:
    """Sort values as soon as there are this many, so that few values make several runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "ENOUGH", size)
        yield


@FEW
@given(TABLES, st.data(), st.integers(1, 20))
def test_a_table_in_chunks_is_the_whole(table: pa.Table, data: st.DataObject, size: int) -> None:
    whole = analyze(table, threads=1)
    with pieces(size):
        chunked = analyze(pa.concat_tables(cut(table, data)), threads=1)
    assert chunked == whole
    assert chunked.to_json() == whole.to_json()  # in which -0.0 is not 0.0


@FEW
@given(TABLES, st.randoms())
def test_the_order_of_rows_does_not_matter(table: pa.Table, random: Any) -> None:
    order = list(range(len(table)))
    random.shuffle(order)

    def without_places(statistics: Statistics) -> list[AnyColumn]:
        return [
            msgspec.structs.replace(column, first_infinite=None) if isinstance(column, NumberColumn) else column
            for column in statistics.columns
        ]

    assert without_places(analyze(table, threads=1)) == without_places(analyze(table.take(pa.array(order, pa.int64())), threads=1))


@FEW
@given(TABLES, st.data(), st.integers(1, 20))
def test_beyond_the_limits_all_but_quantiles_and_counts_is_exact(table: pa.Table, data: st.DataObject, size: int) -> None:
    whole = analyze(table, exact=16, categories=3, threads=1)
    with pieces(size):
        chunked = analyze(pa.concat_tables(cut(table, data)), exact=16, categories=3, threads=1)
    for column, other in zip(chunked.columns, whole.columns, strict=True):
        if isinstance(column, CategoryColumn) and isinstance(other, CategoryColumn):
            true = Counter(str(value) for value in table.column(column.name).to_pylist() if value is not None)
            assert (column.count_error == 0) == (other.count_error == 0) == (len(true) <= 3)
            for counted in (column, other):
                assert counted.count_error * (3 + 1) <= true.total()
                assert all(0 <= true[text] - counted.cnt_values.get(text, 0) <= counted.count_error for text in true)
        elif isinstance(column, NumberColumn | DateColumn) and isinstance(other, NumberColumn | DateColumn):
            assert msgspec.structs.replace(column, quantiles=None) == msgspec.structs.replace(other, quantiles=None)
            assert column == other or column.rank_error


@st.composite
def many_numbers(draw: st.DrawFn) -> Any:
    """Up to some thousand numbers, in orders that are hard for a sketch too."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.integers(1, 6000))
    values = draw(st.sampled_from([rng.normal, rng.random, lambda size: rng.integers(0, 400, size), rng.standard_cauchy]))(
        size=size
    )
    order = draw(st.sampled_from(["as it comes", "up", "down", "blocks"]))
    if order == "as it comes":
        return np.asarray(values, dtype=np.float64)
    ordered = np.sort(values).astype(np.float64)
    return {"up": ordered, "down": ordered[::-1], "blocks": np.roll(ordered, size // 3)}[order].copy()


@FEW
@given(many_numbers(), st.integers(1, 2000))
def test_beyond_the_limit_quantiles_keep_the_stated_error(values: Any, size: int) -> None:
    with pieces(size):
        column = analyze({"x": values}, exact=512, threads=1)["x"]
    assert isinstance(column, NumberColumn)
    assert (column.rank_error == 0) == (len(np.unique(values)) <= 512 or len(values) < 512)
    assert column.rank_error <= len(values) // 10
    assert worst_rank(values, column) <= column.rank_error


def worst_rank(values: Any, column: NumberColumn) -> int:
    """How far any quantile is from its place."""
    positions = closest_positions(len(values), np.linspace(0, 1, 1001)).tolist()
    ordered = np.sort(values)
    return max(map(lambda found, position: rank_distance(ordered, float(found), position), column.quantiles or [], positions))


def test_negative_control_a_value_more_is_found() -> None:
    assert analyze({"x": [1.0, 2.0]}) != analyze({"x": [1.0, 2.0, 2.0]})


def test_negative_control_quantiles_that_are_one_off_are_found(rng: np.random.Generator) -> None:
    values = rng.normal(size=6000)
    column = analyze({"x": values}, exact=512)["x"]
    assert isinstance(column, NumberColumn)
    assert column.quantiles is not None
    moved = msgspec.structs.replace(column, quantiles=[*column.quantiles[100:], *column.quantiles[-100:]])
    assert worst_rank(values, moved) > column.rank_error
