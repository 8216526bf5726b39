"""The same table gives the same statistics, wherever it lies and however many threads there are."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
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
from stoker_recipes.tabular import Statistics, analyze, parse_numbers
from stoker_recipes.tabular.statistics import analyze as texts_module
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


def test_every_kind_of_table_has_the_same_statistics(table: pa.Table) -> None:
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


def test_a_file_has_the_statistics_of_the_table(table: pa.Table, tmp_path: Path) -> None:
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
        ({"a": [1, 2**70]}, {}, BadValueError, r"column 'a' holds 1180591620717411303424 \(int\) in row 2, which does not fit"),
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


# The page on statistics says what is true: its examples run, and its comments are their results


PAGE = Path(__file__).parents[4] / "docs" / "encoding" / "statistics.md"


def test_the_examples_run_and_give_what_their_comments_say() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    told = 0
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        for code, comment in re.findall(r"^(stats\S.*?)\s+# (.+)$", block, re.MULTILINE):
            assert repr(eval(code, names)) == comment
            told += 1
    assert told == 6


# Bounded memory: files of any length are analysed in the memory that the limits say


SCRIPT = """
import pathlib, re, sys
from stoker_recipes.tabular import analyze
statistics = analyze(sys.argv[1:], exact=1 << 16, threads=2)
status = pathlib.Path("/proc/self/status").read_text()
print(statistics.num_rows, int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
"""
ROWS = 1_000_000


@pytest.mark.promise("P4")
@pytest.mark.slow
def test_files_of_any_length_are_analysed_in_the_same_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    moments = rng.integers(0, 2**50, ROWS).astype("M8[us]")
    texts = pa.array([f"text {i}" for i in range(100_000)]).take(pa.array(rng.integers(0, 100_000, ROWS)))
    table = pa.table({"x": rng.normal(size=ROWS), "when": moments, "text": texts})
    paths = [tmp_path / f"{i}.parquet" for i in range(24)]
    pq.write_table(table, paths[0])
    for path in paths[1:]:
        path.hardlink_to(paths[0])
    few, many = (peak_of(some) for some in (paths[:4], paths))
    assert many - few < 0.2 * 20 * table.nbytes  # what the allocators keep; twenty files more hold five times as much


def peak_of(paths: list[Path]) -> int:
    """The peak of a process that analyses these files."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    num_rows, peak = map(int, done.stdout.split())
    assert num_rows == len(paths) * ROWS
    return peak


# Statistics as an object and as JSON


def result_table(size: int = 40) -> pa.Table:
    rng = np.random.default_rng(7)
    return pa.table(
        {
            "x": pa.array(rng.integers(0, 30, size) / 4, mask=rng.random(size) < 0.2),
            "s": rng.choice(["a", "b"], size),
            "d": pa.array(rng.integers(0, 10**12, size)).cast(pa.timestamp("us")),
            "n": pa.nulls(size),
            "l": pa.array([[1.5]] * size),
        }
    )


SMALL = analyze(result_table())
SKETCHED = analyze({"x": np.random.default_rng(7).normal(size=500), "s": list("abcdefghij") * 50}, exact=64, categories=3)


@pytest.mark.parametrize("statistics", [SMALL, SKETCHED], ids=["exact", "sketched"])
def test_the_json_holds_all_but_the_values(statistics: Statistics, tmp_path: Path) -> None:
    statistics.save(tmp_path / "stats.json")
    content = json.loads((tmp_path / "stats.json").read_bytes())
    assert (content["format"], content["num_rows"]) == ("stoker-statistics", statistics.num_rows)
    for column, written in zip(statistics.columns, content["columns"], strict=True):
        fields = set(column.__struct_fields__) - {"run"}
        assert set(written) == fields | {"kind"}
        assert all(written[name] == getattr(column, name) for name in fields)


def test_statistics_travel_between_processes() -> None:
    for statistics in (SMALL, SKETCHED):
        assert pickle.loads(pickle.dumps(statistics)) == copy.deepcopy(statistics) == statistics
    assert analyze(result_table(41)) != SMALL  # negative control


# Texts that hold numbers or dates, as pandas reads them with the steps of mostlyai-engine (which originals/ has itself)


@pytest.mark.parametrize(
    ("texts", "kind", "numbers"),
    [
        (["x3", "1,000", "-0"], pa.int64(), [3, 1, 0]),
        (["7", str(2**64 - 1)], pa.uint64(), [7, 2**64 - 1]),
        (["7", None], pa.float64(), [7.0, None]),
        (["-4.50 EUR", ".5", "1e3", "n/a", "1e-330", "1.2.3"], pa.float64(), [-4.5, 0.5, 1000.0, None, 0.0, 1.2]),
    ],
)
def test_numbers_are_the_first_ones_of_their_strings(texts: list[Any], kind: pa.DataType, numbers: list[Any]) -> None:
    assert parse_numbers(pa.array(texts)).equals(pa.array(numbers, kind))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_a_column_is_that_of_its_numbers(kind: pa.DataType) -> None:
    texts = pa.chunked_array([pa.array(["12", "x"]).cast(kind), pa.array([None, "$7.5"]).cast(kind)])
    expected = analyze({"x": pa.array([12.0, None, None, 7.5]), "who": [1, 1, 2, 2]}, key="who")
    assert analyze({"x": texts, "who": [1, 1, 2, 2]}, kinds={"x": "number"}, key="who") == expected
    whole = analyze({"x": pa.array(["3", "4"]).cast(kind)}, kinds={"x": "number"})
    assert whole == analyze({"x": [3, 4]})


def test_types_of_texts_follow_from_all_files(tmp_path: Path) -> None:
    """The last file alone says that all are floats, and that days come before months."""
    for i, line in enumerate(["a,1,1/3/2020", "b,2,", "c,n/a 3.5,13/2/2020"]):
        (tmp_path / f"{i}.csv").write_text(f"name,x,when\nq,x9,no\n{line}\n")
    statistics = analyze(str(tmp_path / "*.csv"), kinds={"x": "number", "when": "date"})
    assert statistics["x"] == analyze({"x": [9.0, 1.0, 9.0, 2.0, 9.0, 3.5]})["x"]
    assert statistics["when"].max == "2020-03-01"  # type: ignore[union-attr]


def test_dates_of_a_table_in_memory() -> None:
    texts = ["1/3/2020", None, "13/2/2020", "no date"]
    found: Any = analyze({"x": texts}, kinds={"x": "date"})["x"]
    assert (found.min, found.max, found.num_null) == ("2020-02-13", "2020-03-01", 2)  # days first, as the second says
    later: Any = analyze({"x": pa.chunked_array([["1/3/2020"], ["13/2/2020"]])}, kinds={"x": "date"})["x"]
    assert later.max == "2020-03-01"


@pytest.mark.promise("P11", control=True)
@pytest.mark.parametrize(("values", "kind"), [(["12", "$7.5"], "number"), (["1/3/2020"], "date")])
def test_negative_control_columns_that_are_not_converted_are_refused(
    monkeypatch: pytest.MonkeyPatch, values: list[str], kind: Any
) -> None:
    assert analyze({"x": values}, kinds={"x": kind})["x"].num_values == len(values)
    monkeypatch.setattr(texts_module, "_read_texts", lambda sources, asked: sources)
    with pytest.raises((OptionError, SourceInvalidError)):
        analyze({"x": values}, kinds={"x": kind})
