"""The same table gives the same statistics, wherever it lies and however many threads there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from msgspec import UNSET

import stoker
from stoker.errors import BadValueError, OptionError, SourceInvalidError
from stoker_recipes.tabular import analyze
from stoker_recipes.tabular.statistics.gather import EmptyColumn
from stoker_recipes.tabular.statistics.numbers import NumberColumn
from stoker_recipes.tabular.statistics.quantiles import KeyRun


@pytest.fixture
def table(rng: np.random.Generator) -> pa.Table:
    size = 5000
    return pa.table(
        {
            "price": pa.array(np.round(rng.gamma(2, 150, size), 2), mask=rng.random(size) < 0.1),
            "number": rng.integers(0, 50, size),
            "gaps": pa.array(rng.integers(0, 50, size), mask=rng.random(size) < 0.1),
            "word": rng.choice(["a", "b", "c"], size),
            "moment": pa.array(rng.integers(0, 10**9, size)).cast(pa.timestamp("ns")),
            "flag": rng.random(size) < 0.5,
        }
    )


def test_tables_in_memory(table: pa.Table) -> None:
    expected = analyze(table)
    assert analyze(pl.from_arrow(table)) == expected
    assert analyze(table.to_pandas(types_mapper=pd.ArrowDtype)) == expected
    assert analyze({name: table.column(name) for name in table.column_names}) == expected
    assert analyze(table.to_batches(max_chunksize=77)[0]).num_rows == 77
    assert analyze(pa.Table.from_batches(table.to_batches(max_chunksize=77))) == expected
    frame = table.select(["price", "number", "flag"]).to_pandas()
    assert analyze(frame).columns == [expected["price"], expected["number"], expected["flag"]]
    arrays = np.rec.fromarrays([frame["price"], frame["number"]], names=["price", "number"])
    assert analyze(np.asarray(arrays)).columns == [expected["price"], expected["number"]]
    [column] = analyze(frame["number"].to_numpy()).columns
    assert (column.name, column.num_values) == ("value", 5000)


def test_files(table: pa.Table, tmp_path: Path) -> None:
    expected = analyze(table)
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=999)
    pyarrow.feather.write_feather(table, tmp_path / "table.arrow")
    pyarrow.csv.write_csv(table, tmp_path / "table.csv")
    for name in ("table.parquet", "table.arrow", "table.csv"):
        assert analyze(tmp_path / name) == expected, name


def test_several_files_are_one_table(table: pa.Table, tmp_path: Path) -> None:
    for number, start in enumerate(range(0, 5000, 1700)):
        pq.write_table(table.slice(start, 1700), tmp_path / f"part{number}.parquet")
    expected = analyze(table)
    assert analyze(str(tmp_path / "*.parquet")) == expected
    assert analyze(sorted(tmp_path.glob("*.parquet"))) == expected
    assert analyze(tmp_path) == expected


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_matter(table: pa.Table, threads: int, tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=500)
    assert analyze(table, threads=threads) == analyze(table, threads=3)
    assert analyze(tmp_path / "table.parquet", threads=threads) == analyze(table)


def test_columns_are_selected(table: pa.Table, tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "table.parquet")
    for source in (table, tmp_path / "table.parquet"):
        assert analyze(source, columns=["word", "price"]).columns == [analyze(table)["word"], analyze(table)["price"]]
        assert analyze(source, columns="word,price").names == ["word", "price"]
        with pytest.raises(OptionError, match="'wrod', but"):
            analyze(source, columns=["wrod"])


def test_lists_are_analysed_by_what_they_hold(rng: np.random.Generator) -> None:
    values = rng.normal(size=100)
    store = stoker.Store.from_arrays(lengths=[60, 0, 40], x=values)
    found, flat = analyze(store)["x"], analyze({"x": values})["x"]
    assert isinstance(found, NumberColumn)
    assert isinstance(flat, NumberColumn)
    assert found.cnt_lengths == {"0": 1, "40": 1, "60": 1}
    assert found.analysis() == flat.analysis()
    lists = analyze({"x": pa.array([[1.0], None, [], [2.0, None]])})
    assert (lists["x"].num_values, lists["x"].num_null, lists["x"].cnt_lengths) == (3, 1, {"0": 1, "1": 1, "2": 1})
    assert lists.num_rows == 4


def test_a_column_without_any_value() -> None:
    found = analyze({"x": pa.nulls(3), "y": pa.array([None, None, None], pa.float64())})
    assert isinstance(found["x"], EmptyColumn)
    assert found["x"].analysis() == {"has_nan": True, "cnt_values": {}}
    assert isinstance(found["y"], NumberColumn)
    assert (found["y"].min, found["y"].quantiles, found["y"].cnt_values) == (None, None, {})


@pytest.mark.promise("P11")
@pytest.mark.parametrize(
    ("source", "options", "error", "told"),
    [
        ({"a": [1]}, {"threads": 0}, OptionError, "threads is 0, but at least 1 is needed"),
        (pa.table([[1], [2]], names=["a", "a"]), {}, SourceInvalidError, "<Table> has 2 columns named 'a'"),
        ({"a": [1]}, {"categories": 0}, OptionError, "categories is 0"),
        ({"a": [1]}, {"kinds": {"b": "category"}}, OptionError, "kinds names 'b', but <dict> has the columns a"),
        (
            {"a": [1, 2**70]},
            {},
            BadValueError,
            r"column 'a' holds 1180591620717411303424 \(int\) in row 2, which does not fit into 64 bits",
        ),
        (5, {}, OptionError, "int is not data. Pass a path"),
    ],
)
def test_bad_input_is_named(source: Any, options: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        analyze(source, **options)


def test_columns_of_a_mapping_keep_what_numpy_would_lose() -> None:
    large = 2**53 + 1
    mapping = {
        "nullable": pd.array([large, None], dtype="Int64"),
        "arrow": pd.Series([large, None], dtype="int64[pyarrow]"),
        "polars": pl.Series([large, None]),
        "category": pd.Categorical(["a", None]),
        "zone": pd.Series(pd.to_datetime(["2020-01-01", None])).dt.tz_localize("Europe/Vienna"),
    }
    found: Any = analyze(mapping)
    assert [found[name].max for name in ("nullable", "arrow", "polars")] == [large] * 3
    assert found["category"].cnt_values == {"a": 1}
    assert found["zone"].max == "2019-12-31 23:00:00"
    assert [column.num_null for column in found.columns] == [1] * 5


@pytest.mark.promise("P4")
def test_what_is_kept_does_not_grow_with_the_rows(rng: np.random.Generator) -> None:
    column = analyze({"x": rng.normal(size=400_000)}, exact=4096)["x"]
    assert isinstance(column, NumberColumn)
    assert column.run is UNSET
    few = analyze({"x": rng.integers(0, 4096, 400_000)}, exact=4096)["x"]
    assert isinstance(few, NumberColumn)
    assert isinstance(few.run, KeyRun)
    assert few.run.keys.nbytes + few.run.counts.nbytes <= 4096 * 10
