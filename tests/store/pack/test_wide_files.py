"""Wide tables of several files: each gives its own columns as series, whatever the others have."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.shrink import shrunk

import stoker
from stoker.errors import BadValueError
from stoker.store.pack.api import pack
from stoker.store.store import Store

SMALL = {"run_bytes": 1, "chunk_bytes": 1, "line_bytes": 40}


def write(folder: Path, **tables: str) -> str:
    """CSV files, and the pattern that finds them; `_` in a name is a folder."""
    for name, text in tables.items():
        path = folder / "csv" / (name.replace("_", "/") + ".csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "csv" / "**" / "*.csv")


def series(store: Store) -> dict[str, list[Any]]:
    return {name: one["value"].tolist() for name, one in zip(store.texts("series"), store, strict=True)}


def notes(store: Store) -> list[str]:
    assert store.manifest is not None
    return store.manifest.notes


def test_each_file_gives_its_own_columns(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        ETTh1="date,HUFL,OT\n2016-07-01 00:00:00,5.5,30\n2016-07-01 01:00:00,6.5,27\n",
        more_weather="date,p,T,sky\n2020-01-01 00:10:00,1008.5,0.5,clear\n",
    )
    store = pack(source, tmp_path / "out", wide=True, time="date")
    assert series(store) == {
        "ETTh1.csv:HUFL": [5.5, 6.5],
        "ETTh1.csv:OT": [30, 27],
        "more/weather.csv:p": [1008.5],
        "more/weather.csv:T": [0.5],
    }
    assert notes(store) == ["column 'sky' is not numeric and was left out by --wide"]
    assert series(pack(source, tmp_path / "untimed", wide=True)) == series(store)


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
            assert (
                pack(
                    tmp_path / "in",
                    tmp_path / "parts",
                    replace=True,
                    wide=True,
                    missing=missing,
                    resources=stoker.Resources(threads=threads),
                ).digest
                == whole.digest
            )


def test_late_floats_and_words_are_settled_for_their_file_alone(tmp_path: Path) -> None:
    rows = "".join(f"{i}\n" for i in range(60))
    source = write(tmp_path, a="x\n" + rows, b="y,x\n" + rows.replace("\n", ",7\n") + "2.5,7\n")
    with shrunk(**SMALL):
        assert series(pack(source, tmp_path / "out", wide=True))["b.csv:y"] == [*range(60), 2.5]
    source = write(tmp_path, b="y,x\n" + rows.replace("\n", ",7\n") + "oops,7\n")
    with (
        shrunk(**SMALL),
        pytest.raises(BadValueError, match=r"column 'y' of .*b.csv holds 'oops' in row 61") as error,
    ):
        pack(source, tmp_path / "out", replace=True, wide=True)
    assert (error.value.row, error.value.column) == (61, "y")
