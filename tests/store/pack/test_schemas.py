"""Files that disagree are found before anything is written: all differences in one message, with an advice that works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker import pack
from stoker.errors import BadValueError, SchemaError

FIRST = {"k": pa.array(["a"]), "t": pa.array([1], pa.timestamp("us", "UTC")), "x": pa.array([1.5]), "n": pa.array([1])}


def drifted(**changes: Any) -> dict[str, pa.Array]:
    """The first table with some columns changed; None takes one away."""
    changed = {**FIRST, **changes}
    return {name: values for name, values in changed.items() if values is not None}


DRIFTS = {
    "float for int": (drifted(n=pa.array([1.0])), "column 'n' of .*b.parquet is double, not int64"),
    "narrower float": (drifted(x=pa.array([1], pa.float32())), "column 'x' of .*b.parquet is float, not double"),
    "text for number": (drifted(x=pa.array(["1.5"])), "column 'x' of .*b.parquet is string, not double"),
    "number for text": (drifted(k=pa.array([7])), "column 'k' of .*b.parquet is int64, not string"),
    "time zone": (
        drifted(t=pa.array([1], pa.timestamp("us", "Europe/Berlin"))),
        r"column 't' of .*b.parquet is timestamp\[us, tz=Europe/Berlin\], not timestamp\[us, tz=UTC\]",
    ),
    "date for time": (drifted(t=pa.array([1], pa.date32())), r"column 't' of .*b.parquet is date32\[day\], not timestamp"),
    "list for number": (drifted(x=pa.array([[1.5]])), "column 'x' of .*b.parquet is large_list<item: double>, not double"),
    "missing column": (drifted(x=None), "b.parquet has no column 'x'"),
    "extra column": (drifted(y=pa.array([1])), "b.parquet has an extra column 'y'"),
    "other name": (drifted(x=None, X=pa.array([1.5])), "b.parquet has no column 'x'; .*b.parquet has an extra column 'X'"),
    "order": (
        {name: FIRST[name] for name in ("t", "k", "x", "n")},
        r"b.parquet has its columns in another order \(t, k, x, n\)",
    ),
}


@pytest.mark.parametrize("kind", DRIFTS)
def test_drift_is_found_before_anything_is_written(tmp_path: Path, kind: str) -> None:
    other, message = DRIFTS[kind]
    pq.write_table(pa.table(FIRST), tmp_path / "a.parquet")
    pq.write_table(pa.table(other), tmp_path / "b.parquet")
    with pytest.raises(SchemaError, match=message) as caught:
        pack(str(tmp_path / "*.parquet"), tmp_path / "out", series="k")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


def test_all_differences_are_in_one_message(tmp_path: Path) -> None:
    pq.write_table(pa.table(FIRST), tmp_path / "a.parquet")
    pq.write_table(pa.table(drifted(x=pa.array(["1"]), n=None)), tmp_path / "b.parquet")
    pq.write_table(pa.table(FIRST), tmp_path / "c.parquet")
    pq.write_table(pa.table(drifted(n=pa.array([0.5]), z=pa.array([1]))), tmp_path / "d.parquet")
    with pytest.raises(SchemaError) as caught:
        pack(str(tmp_path / "*.parquet"), tmp_path / "out")
    folder = tmp_path
    assert str(caught.value) == (
        f"4 differences from {folder}/a.parquet: {folder}/b.parquet has no column 'n'; "
        f"column 'x' of {folder}/b.parquet is string, not double; {folder}/d.parquet has an extra column 'z'; "
        f"column 'n' of {folder}/d.parquet is double, not int64. Fix the files, or pass columns='k,t', which all of them have."
    )
    assert pack(str(tmp_path / "*.parquet"), tmp_path / "out", columns="k,t").num_steps == 4 * len(FIRST["k"])


def test_a_named_type_settles_what_would_be_drift(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [0.5]}), tmp_path / "b.parquet")
    with pytest.raises(SchemaError):
        pack(str(tmp_path / "*.parquet"), tmp_path / "out")
    store = pack(str(tmp_path / "*.parquet"), tmp_path / "out", dtype="n=float64")
    assert store.column("n").tolist() == [1.0, 2.0, 0.5]


def test_the_same_type_stored_in_another_way_is_not_a_drift(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": pa.array(["a", "b"]), "x": pa.array([[1.0], [2.0]])}), tmp_path / "a.parquet")
    other = {
        "k": pa.array(["c"], pa.large_string()).dictionary_encode(),
        "x": pa.array([[3.0, 4.0]], pa.list_(pa.float64(), 2)),
    }
    pq.write_table(pa.table(other), tmp_path / "b.parquet")
    store = pack(str(tmp_path / "*.parquet"), tmp_path / "out")
    assert store.lengths.tolist() == [1, 1, 2]
    assert store.column("x").tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_column_that_is_missing_in_one_file_takes_the_type_of_the_others(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.nulls(2)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [0.5]}), tmp_path / "b.parquet")
    store = pack(str(tmp_path / "*.parquet"), tmp_path / "out")
    assert store.schema["x"].missing == 2
    assert store.column("x").tolist()[2:] == [0.5]


DIALECTS = {
    "other columns": ("a,b,c\n1,2,3\n", "a,b,d\n1,2,3\n"),
    "another order": ("a,b,c\n1,2,3\n", "c,a,b\n1,2,3\n"),
    "words in one file": ("a,b\n1,2\n", "a,b\n1,off\n"),
    "words in the first file": ("a,b\n1,off\n", "a,b\n1,2\n"),
    "a time in one file": ("a,b\n2024-01-01,1\n", "a,b\nyesterday,1\n"),
    "a column less": ("a,b,c\n1,2,3\n", "a,b\n1,2\n"),
}


def advised(message: str) -> dict[str, Any]:
    """The arguments that a message advises, as a user would copy them."""
    if columns := re.search(r"columns='([^']+)'", message):
        return {"columns": columns[1]}
    null = re.search(r"Csv\(null='([^']+)'\)", message)
    assert null is not None, message
    return {"csv": stoker.Csv(null=null[1])}


@pytest.mark.parametrize("kind", DIALECTS)
def test_the_advice_on_files_that_differ_works(tmp_path: Path, kind: str) -> None:
    for name, text in zip("xy", DIALECTS[kind], strict=True):
        (tmp_path / f"{name}.csv").write_text(text)
    source = str(tmp_path / "*.csv")
    with pytest.raises(SchemaError) as error:
        pack(source, tmp_path / "out")
    assert len(pack(source, tmp_path / "out", **advised(str(error.value)))) == 2


def test_a_decimal_comma_in_one_file_is_recognised_and_its_advice_works(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1.5,2\n")
    (tmp_path / "y.csv").write_text("a;b\n1,5;2\n")
    with pytest.raises(BadValueError, match=r"y.csv holds '1,5' in row 1.*Csv\(decimal=','\).*separately"):
        pack(str(tmp_path / "*.csv"), tmp_path / "out")
    pack(tmp_path / "x.csv", tmp_path / "out")
    store = stoker.append(tmp_path / "out", tmp_path / "y.csv", csv=stoker.Csv(decimal=","))
    assert store.column("a").tolist() == [1.5, 1.5]


def test_files_without_a_common_column_are_packed_separately(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n")
    (tmp_path / "y.csv").write_text("b\n1\n")
    with pytest.raises(SchemaError, match="share no columns to pack: pack them separately") as error:
        pack(str(tmp_path / "*.csv"), tmp_path / "out")
    assert "columns=" not in str(error.value)


def test_columns_and_words_that_differ_are_in_one_error_whose_advice_works_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,c\n1,2,3\n" + "4,5,6\n" * 9)
    (tmp_path / "y.csv").write_text("a,b,d\n1,2,3\n-,2,3\n" + "4,5,6\n" * 9)
    (tmp_path / "z.csv").write_text("a,b,c\n1,off,3\n" + "4,5,6\n" * 9)
    with pytest.raises(SchemaError) as error:
        pack(str(tmp_path / "*.csv"), tmp_path / "out")
    text = str(error.value)
    assert "y.csv has no column 'c'" in text
    assert "holds '-' in row 2 (line 3), but numbers elsewhere" in text
    assert "holds 'off' in row 1 (line 2), but numbers elsewhere" in text
    assert text.endswith("pass columns='a,b', which all of them have, and Csv(null=['-', 'off']) if they mean missing.")
    options = {"columns": "a,b", "csv": stoker.Csv(null=["-", "off"])}
    assert len(pack(str(tmp_path / "*.csv"), tmp_path / "out", **options)) == 3


MESSY = {
    "a.csv": "station,time,temp\nA,2024-01-01 00:00,1.5\nA,2024-01-01 01:00,2.5\n",
    "b.csv": "station;time;temp;wind\nB;01.01.2024 00:00;1,5;-\nB;13.01.2024 00:00;2,5;3\n",
}


def test_times_in_another_notation_are_never_advised_to_be_missing(tmp_path: Path) -> None:
    for name, text in MESSY.items():
        (tmp_path / name).write_text(text)
    source = str(tmp_path / "*.csv")
    with pytest.raises(
        SchemaError, match="All have the columns station, time, temp, but write their values in different ways"
    ) as error:
        pack(source, tmp_path / "out", series="station", time="time")
    assert "share no columns" not in str(error.value)
    with pytest.raises(SchemaError, match=r"Csv\(time_format='...'\) if all times are like '01.01.2024 00:00'") as bad:
        pack(source, tmp_path / "out", series="station", time="time", columns="station,time,temp")
    assert "null=" not in str(bad.value)
