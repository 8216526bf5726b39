"""Wide tables: each numeric column of each file is a series of its own, never interleaved with another."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.shrink import shrunk

import stoker
from stoker import Store, pack
from stoker.errors import BadValueError, SchemaError, TimeOrderError

SMALL = {"run_bytes": 1, "chunk_bytes": 1, "line_bytes": 40}


@pytest.mark.parametrize("limits", [{}, SMALL])
@pytest.mark.parametrize("at", [1, 29])
def test_the_time_of_a_wide_table_must_rise(tmp_path: Path, limits: dict[str, int], at: int) -> None:
    times = list(range(30))
    times[at] = times[at - 1]
    for name, column in (("a", list(range(100, 130))), ("b", times)):
        (tmp_path / f"{name}.csv").write_text("t,x\n" + "".join(f"{t},1.5\n" for t in column))
    with (
        shrunk(**limits),
        pytest.raises(TimeOrderError, match=rf"the time 't' does not increase: .* in row {at + 1} of .*b.csv equals"),
    ):
        pack(str(tmp_path / "*.csv"), tmp_path / "out", wide=True, time="t")


def test_columns_of_several_types_share_one_that_holds_them(tmp_path: Path) -> None:
    store = pack(
        {"n": np.array([1, 2], "i2"), "u": np.array([3, 4], "u1"), "x": np.array([5, 6], "f4")}, tmp_path / "out", wide=True
    )
    assert store.schema["value"].label == "float32"
    assert store.column("value").tolist() == [1, 2, 3, 4, 5, 6]


def test_an_integer_that_the_shared_type_cannot_hold_is_refused_with_a_way_out(tmp_path: Path) -> None:
    table = {"n": np.array([1, 2**53 + 1]), "x": np.array([0.5, 1.5])}
    with pytest.raises(BadValueError, match=rf"column 'n' holds {2**53 + 1} in row 2"):
        pack(table, tmp_path / "out", wide=True)
    assert pack(table, tmp_path / "n", wide=True, columns="n").column("value").tolist() == [1, 2**53 + 1]
    assert pack(table, tmp_path / "x", wide=True, columns="x").column("value").tolist() == [0.5, 1.5]


# Names, time and several columns per series


@pytest.mark.promise("P25")
@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "dict"])
def test_a_series_has_the_name_of_its_column(tmp_path: Path, form: str) -> None:
    table: Any = {"MT_010": [1.5, 2.5], "MT_003": [3.5, 4.5]}
    source: Any = tmp_path / f"a.{form}"
    if form == "csv":
        source.write_text("MT_010,MT_003\n1.5,3.5\n2.5,4.5\n")
    elif form == "parquet":
        pq.write_table(pa.table(table), source)
    else:
        source = pd.DataFrame(table) if form == "frame" else table
    store = pack(source, tmp_path / "out", wide=True)
    assert list(store.texts("series")) == ["MT_010", "MT_003"]
    assert store[store.find("MT_003")]["value"].tolist() == [3.5, 4.5]
    if form in ("csv", "parquet"):
        assert store.find(f"a.{form}:MT_003") == 1, "its name in stores of earlier versions"
    with pytest.raises(KeyError, match="has no series with series 'MT_004'"):
        store.find("MT_004")


def test_a_series_of_several_files_is_found_by_its_column(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(f"x,only_{name}\n1,2\n")
    store = pack(str(tmp_path / "*.csv"), tmp_path / "out", wide=True)
    assert list(store.texts("series")) == ["a.csv:x", "a.csv:only_a", "b.csv:x", "b.csv:only_b"]
    assert store.find("only_b") == 3
    assert store.find("b.csv:x") == 2
    with pytest.raises(KeyError, match=r"has 2 series named 'x': 'a.csv:x', 'b.csv:x'. Give one of these names"):
        store.find("x")


@pytest.mark.parametrize("limits", [{}, SMALL])
def test_sorting_and_duplicates_of_a_wide_table(tmp_path: Path, limits: dict[str, int]) -> None:
    rng = np.random.default_rng(8)
    frame = pd.DataFrame({"t": rng.integers(0, 25, 60), "a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    expected = frame.sort_values("t", kind="stable").drop_duplicates("t", keep="last")
    with shrunk(**limits):
        store = pack(tmp_path / "a.csv", tmp_path / "out", wide=True, time=stoker.Time("t", duplicates="last"), sort=True)
    for name in "ab":
        one = store[store.find(name)]
        assert one["t"].tolist() == expected["t"].tolist()
        assert one["value"].tolist() == expected[name].tolist()


def test_the_time_must_have_one_type_in_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,x\n2020-01-01,1\n")
    (tmp_path / "b.csv").write_text("t,y\n2020-01-01 10:00:00,1\n")
    store = pack(str(tmp_path / "*.csv"), tmp_path / "out", wide=True, time="t")
    assert store.column("t").tolist() == [1577836800, 1577872800]
    (tmp_path / "b.csv").write_text("t,y\n5,1\n")
    with pytest.raises(SchemaError, match=r"'t' of .*b.csv is int64, but date32\[day\] in .*a.csv"):
        pack(str(tmp_path / "*.csv"), tmp_path / "other", wide=True, time="t")


# Wide tables of several files: each gives its own columns as series, whatever the others have


def write(folder: Path, **tables: str) -> str:
    """CSV files, and the pattern that finds them; `_` in a name is a folder."""
    for name, text in tables.items():
        path = folder / "csv" / (name.replace("_", "/") + ".csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "csv" / "**" / "*.csv")


def series(store: Store) -> dict[str, list[Any]]:
    return {name: one["value"].tolist() for name, one in zip(store.texts("series"), store, strict=True)}


def slow_pack(tables: dict[str, dict[str, list[float]]], missing: str) -> dict[str, list[float]]:
    """One column after the other, a value at a time."""
    expected = {}
    for file, columns in tables.items():
        for name, values in columns.items():
            kept: list[float] = []
            for value in values:
                if np.isnan(value) and missing == "drop":
                    continue
                kept.append(kept[-1] if np.isnan(value) and missing == "ffill" and kept else value)
            expected[f"{file}:{name}"] = kept
    return expected


@pytest.mark.parametrize("missing", ["keep", "ffill", "drop"])
@pytest.mark.parametrize("form", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_files_of_different_columns_are_packed_like_their_twin(tmp_path: Path, form: str, missing: str) -> None:
    rng = np.random.default_rng(3)
    tables: dict[str, dict[str, list[float]]] = {}
    (tmp_path / "in").mkdir()
    for i, (width, rows) in enumerate([(3, 40), (1, 7), (5, 0), (2, 90), (4, 13)]):
        names = rng.permutation(list("abcdefgh"))[:width].tolist()
        columns = {name: np.where(rng.random(rows) < 0.3, np.nan, rng.normal(size=rows)).tolist() for name in names}
        tables[f"{i}.{form}"] = columns
        arrays = {name: pa.array(values, pa.float64(), from_pandas=True) for name, values in columns.items()}
        if form == "parquet":
            pq.write_table(pa.table(arrays), tmp_path / "in" / f"{i}.parquet", row_group_size=6)
        else:
            # A second column, so that a row with nothing in it is no blank line.
            rows_of = zip(*columns.values(), ["" for _ in range(rows)], strict=True)
            lines = [",".join("" if value != value else str(value) for value in row) for row in rows_of]
            (tmp_path / "in" / f"{i}.csv").write_text("\n".join([",".join([*names, "empty"]), *lines]) + "\n")
            tables[f"{i}.{form}"]["empty"] = [np.nan] * rows
    expected = slow_pack(tables, missing)
    whole = pack(tmp_path / "in", tmp_path / "whole", wide=True, missing=missing)
    assert list(whole.texts("series")) == list(expected)
    for one, values in zip(whole, expected.values(), strict=True):
        assert one["value"].tobytes() == np.array(values, dtype=np.float64).tobytes()
    smallest = {"run_bytes": 500, "chunk_bytes": 200, "line_bytes": 100}
    for limits, threads in itertools.product([SMALL, smallest], [1, 3]) if missing == "ffill" else [(smallest, 3)]:
        with shrunk(**limits):
            resources = stoker.Resources(threads=threads)
            parts = pack(tmp_path / "in", tmp_path / "parts", replace=True, wide=True, missing=missing, resources=resources)
            assert parts.digest == whole.digest


def test_late_floats_and_words_are_settled_for_their_file_alone(tmp_path: Path) -> None:
    rows = "".join(f"{i}\n" for i in range(60))
    source = write(tmp_path, a="x\n" + rows, b="y,x\n" + rows.replace("\n", ",7\n") + "2.5,7\n")
    with shrunk(**SMALL):
        assert series(pack(source, tmp_path / "out", wide=True))["b.csv:y"] == [*range(60), 2.5]
    source = write(tmp_path, b="y,x\n" + rows.replace("\n", ",7\n") + "oops,7\n")
    with shrunk(**SMALL), pytest.raises(BadValueError, match=r"column 'y' of .*b.csv holds 'oops' in row 61") as error:
        pack(source, tmp_path / "out", replace=True, wide=True)
    assert (error.value.row, error.value.column) == (61, "y")
