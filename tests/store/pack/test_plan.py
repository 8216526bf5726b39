"""The plan: how rows are grouped, and what cannot be planned."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import stoker
from stoker.errors import BadValueError, OptionError, SourceInvalidError
from stoker.store.formats.discover import table_source
from stoker.store.pack.options import PackOptions
from stoker.store.pack.plan import PackPlan, make_plan

<<<<<<< HEAD
=======
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
    parts = str(caught.value).split("; ")
    assert [("b.parquet" in part, "d.parquet" in part) for part in parts] == [(True, False)] * 2 + [(False, True)] * 2
    assert "columns='k,t'" in parts[-1]
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

>>>>>>> main

def plan(table: dict[str, Any], **options: Any) -> PackPlan:
    time = options.pop("time", None)
    return make_plan([table_source(table)], PackOptions(**options, times=None if time is None else stoker.Time(time)))


def test_how_rows_are_grouped() -> None:
    assert plan({"x": [1]}).grouping == "file"
    assert plan({"k": [1], "x": [1]}, series="k").grouping == "key"
    assert plan({"x": [[1.0]]}).grouping == "row"
    assert plan({"k": ["a"], "x": [[1.0]]}, series="k").grouping == "key"
    assert plan({"x": [1]}, wide=True).grouping == "wide"


@pytest.mark.parametrize(
    ("columns", "options", "error", "message"),
    [
        ({"x": [1]}, {"series": "k"}, OptionError, "series= names 'k', but <dict> has the columns x"),
        ({"x": [1]}, {"time": "t"}, OptionError, "time= names 't'"),
        ({"x": [1]}, {"columns": ("y",)}, OptionError, "columns= names 'y'"),
        ({"x": [1]}, {"dtypes": {"y": "int8"}}, OptionError, "dtype= names 'y'"),
        ({"k": [1]}, {"series": "k"}, OptionError, "has no column left to pack beside k"),
        (
            {"k": [1.5], "x": [1]},
            {"series": "k"},
            BadValueError,
            "series='k' is double in <dict>; expected a string, an integer or",
        ),
        ({"k": [1], "x": [1]}, {"series": "k", "time": "k"}, OptionError, "time= names 'k'"),
        ({"t": ["noon"], "x": [1]}, {"time": "t"}, BadValueError, "the time column 't' of <dict> is a string that is not ISO 8601"),
        ({"t": [1], "x": [[1.0]]}, {"time": "t"}, OptionError, "time= names 't', which has one value per series"),
        (
            {"w": ["a"], "x": [1]},
            {"dtypes": {"w": "int8"}},
            BadValueError,
            "column 'w' of <dict> is a string, so it cannot become int8",
        ),
        ({"x": [[1.0]]}, {"wide": True}, OptionError, "wide=True needs tables with one number per cell"),
        ({"w": ["a"]}, {"wide": True}, OptionError, "wide=True found no numeric column in <dict>, only w"),
        (
            {"x": pa.array([{"a": 1}])},
            {},
            SourceInvalidError,
            "column 'x' of <dict> is struct<a: int64>, which a store cannot hold",
        ),
        ({"x": pa.array([b"1"])}, {}, SourceInvalidError, "column 'x' of <dict> is binary"),
        ({"x": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}, {}, SourceInvalidError, "which a store cannot hold"),
        ({"caf\u00e9": [1], "cafe\u0301": [2]}, {}, SourceInvalidError, "has two columns named"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    columns: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan(columns, **options)
