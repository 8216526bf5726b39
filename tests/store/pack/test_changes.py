"""rename=, where= and derive=: equal to the same done with plain Python, row by row and series by series."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.pack.test_packer_resume import LIMITS, Reports, Stopped, contents, scattered
from tests.store.shrink import shrunk
from tests.store.twin import slow_pack

from stoker.errors import BadValueError, OptionError, SourceEmptyError, SourceError, TimeOrderError
from stoker.store.pack import changes
from stoker.store.pack.api import pack
from stoker.store.store import Store
from stoker.store.versions import open_store

Row = Mapping[str, Any]
NAN = math.nan

# Conditions and derived columns: as a user writes them, and as Python computes them from one row, or from a series and a step.
WHERE: dict[str, Callable[[Row], bool]] = {
    "x > 0": lambda row: row["x"] > 0,
    "w == 'a' or n >= 3": lambda row: row["w"] == "a" or row["n"] >= 3,
    "w in ('a', 'b') and not isnull(x)": lambda row: row["w"] in ("a", "b") and not math.isnan(row["x"]),
    "double != n": lambda row: 2 * row["n"] != row["n"],
    "n >= 0": lambda row: True,
}
EARLY: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "double": ("2 * n", lambda row: 2 * row["n"]),
    "quad": ("double + double", lambda row: 4 * row["n"]),
    "half": ("x / 2", lambda row: row["x"] / 2),
    "known": ("not isnull(x)", lambda row: not math.isnan(row["x"])),
}
LATE: dict[str, tuple[Any, Callable[[list[Row], int], float]]] = {
    "before": ("lag(n, 2)", lambda rows, i: rows[i - 2]["n"] if i >= 2 else NAN),
    "change": ("diff(x)", lambda rows, i: rows[i]["x"] - rows[i - 1]["x"] if i else NAN),
    "older": ("lag(before, 3) + n", lambda rows, i: rows[i - 5]["n"] + rows[i]["n"] if i >= 5 else NAN),
    "total": (lambda columns: np.cumsum(columns["n"]), lambda rows, i: sum(row["n"] for row in rows[: i + 1])),
    "past": (
        lambda columns: np.concatenate([[-1], columns["total"][:-1]]),
        lambda rows, i: sum(row["n"] for row in rows[:i]) if i else -1,
    ),
}


def rows_of(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    return [
        {"k": int(k), "n": int(n), "x": NAN if missing < 0.2 else float(x), "w": "abc"[w]}
        for k, n, x, w, missing in zip(
            rng.integers(0, 4, count), rng.integers(0, 9, count), rng.normal(size=count), rng.integers(0, 3, count), rng.random(count),
            strict=True,
        )
    ]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        lines = [f"{row['k']},{row['n']},{'' if math.isnan(row['x']) else row['x']},{row['w']}" for row in rows]
        path.write_text("\n".join(["key,n,x,w", *lines]) + "\n")
    else:
        columns = {name: [row[name] for row in rows] for name in "knxw"}
        pq.write_table(pa.table({"key": columns.pop("k"), **columns}), path, row_group_size=7)
    return path


def series_of(store: Store, names: list[str]) -> list[tuple[Any, dict[str, list[Any]]]]:
    return [(int(one["k"]), {name: np.asarray(one[name], dtype=np.float64).tolist() for name in names}) for one in store]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 60),
    where=st.sampled_from(list(WHERE)),
    suffix=st.sampled_from([".csv", ".parquet"]),
)
def test_rows_and_columns_are_those_of_the_slow_twin(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, where: str, suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("changes")
    rows = rows_of(np.random.default_rng(seed), count)
    kept = [row for row in rows if WHERE[where](row)]
    derive = {name: text for name, (text, _) in {**EARLY, **LATE}.items()}
    path = write(folder / f"a{suffix}", rows)
    with shrunk(chunk_bytes=90, line_bytes=40), pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "_BLOCK_ROWS", 3)
        patch.setattr(changes, "_PART", 2)
        options: dict[str, Any] = {"series": "k", "rename": {"key": "k"}, "where": where, "derive": derive}
        if not kept:
            with pytest.raises(SourceEmptyError, match="no row with"):
                pack(path, folder / "out", **options)
            return
        store = pack(path, folder / "out", **options)
    expected = []
    for key, group in slow_pack(kept, series="k"):
        columns = {name: [float(slow(row)) for row in group] for name, (_, slow) in EARLY.items()}
        columns |= {name: [float(slow(list(group), i)) for i in range(len(group))] for name, (_, slow) in LATE.items()}
        columns["n"] = [float(row["n"]) for row in group]
        expected.append((key, columns))
    found = series_of(store, [*EARLY, *LATE, "n"])
    assert [key for key, _ in found] == [key for key, _ in expected]
    for (_, mine), (_, slow) in zip(found, expected, strict=True):
        for name, values in slow.items():
            np.testing.assert_array_equal(mine[name], values, err_msg=name)
    assert store.schema["known"].dtype == np.bool_
    assert store.schema["quad"].dtype == np.int64


CHANGED: dict[str, Any] = {
    "series": "k",
    "where": "x > -1 or isnull(x)",
    "columns": "w",
    "derive": {"up": "x > 0", "before": "lag(t, 3)", "last": "diff(before)"},
}


@pytest.mark.parametrize("more", [{}, {"time": "t", "sort": True, "missing": "ffill"}, {"segment": 4}])
def test_a_stopped_pack_with_changes_ends_in_the_same_bytes(tmp_path: Path, more: dict[str, Any]) -> None:
    (tmp_path / "in").mkdir()
    scattered(tmp_path / "in")
    with shrunk(**LIMITS):
        whole = Reports()
        expected = contents(pack(tmp_path / "in", tmp_path / "whole", progress=whole, **CHANGED, **more))
        for stop in (len(whole.seen) // 2, len(whole.seen) - 1):
            with pytest.raises(Stopped):
                pack(tmp_path / "in", tmp_path / f"{stop}", progress=Reports(stop), **CHANGED, **more)
            again = Reports()
            assert contents(pack(tmp_path / "in", tmp_path / f"{stop}", progress=again, **CHANGED, **more)) == expected
        assert len(again.seen) < len(whole.seen) // 2, "what was read before is not read again"


def test_a_pack_with_a_function_resumes_in_another_process(tmp_path: Path) -> None:
    """A function has no name that another process knows, but it is applied to the finished run alone."""
    (tmp_path / "in").mkdir()
    scattered(tmp_path / "in")
    with shrunk(**LIMITS):
        whole = Reports()
        pack(tmp_path / "in", tmp_path / "whole", series="k", derive={"y": lambda c: c["t"]}, progress=whole)
        with pytest.raises(Stopped):
            pack(
                tmp_path / "in", tmp_path / "out", series="k", derive={"y": lambda c: c["t"]}, progress=Reports(len(whole.seen) - 1)
            )
        again = Reports()
        store = pack(tmp_path / "in", tmp_path / "out", series="k", derive={"y": lambda c: c["t"] + 1}, progress=again)
    assert {phase for phase, _, _ in again.seen} == {"sealing"}
    np.testing.assert_array_equal(store.column("y"), store.column("t") + 1)


def test_columns_that_only_expressions_use_are_not_stored(tmp_path: Path) -> None:
    table = {"k": [1, 1, 2], "a": [1.0, 4.0, 9.0], "b": [1, 2, 3], "c": ["x", "y", "x"], "d": [0, 0, 0]}
    store = pack(
        table, tmp_path / "out", series="k", columns=["d", "late"], where="c != 'z'", derive={"late": "lag(a)", "early": "b + 1"}
    )
    assert list(store.schema) == ["k", "d", "early", "late"]
    np.testing.assert_array_equal(store.column("late"), [NAN, 1.0, NAN])
    assert store.column("early").tolist() == [2, 3, 4]


def test_rename_comes_first_and_may_swap(tmp_path: Path) -> None:
    store = pack({"a": [1, 2], "b": [3, 4]}, tmp_path / "out", rename={"a": "b", "b": "a"}, dtype="a=float32", where="a == 3")
    assert (store.column("a").tolist(), store.column("b").tolist()) == ([3.0], [1])
    assert store.schema["a"].dtype == np.float32


def test_derived_columns_of_lists_and_rows_that_are_series(tmp_path: Path) -> None:
    table = {"k": ["b", "a", "c"], "x": [[1.0, 2.0], [3.0], [4.0, 8.0, 9.0]], "label": [1, 2, 3]}
    derive = {"y": "2 * x", "change": "diff(x)", "next": "label + 1"}
    store = pack(table, tmp_path / "out", series="k", where="label != 2", derive=derive)
    assert [one["k"] for one in store] == ["b", "c"]
    assert [one["y"].tolist() for one in store] == [[2.0, 4.0], [8.0, 16.0, 18.0]]
    assert store.column("next").tolist() == [2, 4]
    assert store.schema["next"].level == "series"
    np.testing.assert_array_equal(store.column("change"), [NAN, 1, NAN, 4, 1])
    with pytest.raises(OptionError, match=r"where= uses 'x', which holds lists"):
        pack(table, tmp_path / "other", series="k", where="x > 1")


def test_wide_tables_filter_rows_and_derive_series(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,site,p,q\n1,A,1,10\n2,B,2,20\n3,A,4,40\n")
    store = pack(
        tmp_path / "a.csv",
        tmp_path / "out",
        wide=True,
        columns=["p", "q"],
        where="site == 'A'",
        derive={"r": "p + q", "d": "diff(value)"},
    )
    assert [one["value"].tolist() for one in store] == [[1, 4], [10, 40], [11, 44]]
    np.testing.assert_array_equal(store.column("d"), [NAN, 3, NAN, 30, NAN, 33])
    (tmp_path / "b.csv").write_text("u\n1\n")
    named = pack([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "named", wide=True, rename={"u": "v"})
    assert list(named.texts("series"))[-1].endswith("v"), "a file need not have every column that is renamed"
    with pytest.raises(OptionError, match="rename= names 'w', but"):
        pack([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "no", wide=True, rename={"w": "v"})


def test_the_calendar_and_strings(tmp_path: Path) -> None:
    times = np.array(["2024-01-01T05", "2024-02-04T06"], dtype="datetime64[ns]")
    derive = {"h": "hour(t)", "sunday": "weekday(t) == 6", "part": "where(hour(t) < 6, 'night', 'day')"}
    store = pack({"t": times, "x": [1, 2]}, tmp_path / "out", where="t < '2025-01-01'", derive=derive)
    assert store.column("h").tolist() == [5, 6]
    assert store.column("sunday").tolist() == [False, True]
    assert [store.texts("part")[code] for code in store.column("part")] == ["night", "day"]


def test_integers_with_gaps_become_floats_in_derived_columns_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,w\n" + "1,\n" * 20 + ",q\n2.5,r\n")
    with shrunk():
        store = pack(tmp_path / "a.csv", tmp_path / "out", derive={"m": "n * 2"}, where="w != 'r'")
    assert store.schema["m"].dtype == np.float64
    np.testing.assert_array_equal(store.column("m"), [2.0] * 20 + [NAN])


def test_rows_in_messages_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,t,x\n" + "".join(f"1,{t},{x}\n" for t, x in [(1, 1), (2, 0), (3, 1), (2, 1)]))
    with pytest.raises(TimeOrderError, match=r"2 in row 4 of .* is before 3 in row 3"):
        pack(tmp_path / "a.csv", tmp_path / "out", series="k", time="t", where="x == 1")
    (tmp_path / "b.csv").write_text("k,x,y\n1,0,1\n1,1,300\n")
    with pytest.raises(BadValueError, match="row 2 of"):
        pack(tmp_path / "b.csv", tmp_path / "out", series="k", where="x == 1", dtype={"y": "int8"})


def test_negative_control_rows_of_the_chunk_would_name_another_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes.Chunk, "row", lambda chunk, i: chunk.begin.row + i)
    (tmp_path / "a.csv").write_text("k,t,x\n" + "".join(f"1,{t},{x}\n" for t, x in [(1, 1), (2, 0), (3, 1), (2, 1)]))
    with pytest.raises(TimeOrderError, match=r"2 in row 3 of .* is before 3 in row 2"):
        pack(tmp_path / "a.csv", tmp_path / "out", series="k", time="t", where="x == 1")


def test_negative_control_without_the_context_lags_end_at_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_BLOCK_ROWS", 3)
    monkeypatch.setattr(changes, "_context", lambda late: 0)
    store = pack({"x": np.arange(9.0)}, tmp_path / "out", derive={"y": "lag(x)"})
    assert np.isnan(store.column("y")).sum() == 3, "one at the start of each block"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown where": ({"where": "foo > 1"}, r"where= uses 'foo', but .* has the columns k, x, n"),
    "late where": ({"where": "y > 1", "derive": {"y": "lag(x)"}}, r"where= uses 'y', which is computed from sorted steps"),
    "lag where": ({"where": "lag(x) > 1"}, r"where is 'lag\(x\) > 1': lag and diff need the sorted steps"),
    "no condition": ({"where": "x + 1"}, r"gives float64; expected a condition"),
    "unknown derive": ({"derive": {"y": "foo + 1"}}, r"derive=\{'y': …\} is 'foo \+ 1' and uses 'foo', but"),
    "later derive": ({"derive": {"y": "z + 1", "z": "lag(x)"}}, r"uses 'z', but"),
    "key": ({"derive": {"y": "lag(x) + k"}}, r"uses 'k', which holds one value per series"),
    "same name": ({"derive": {"n": "x"}}, r"derive= makes 'n', but .* has such a column"),
    "strings of lags": ({"derive": {"y": "where(diff(x) > 0, 'up', 'down')"}}, r"gives strings, which lag, diff and lists"),
    "unknown rename": ({"rename": {"foo": "bar"}}, r"rename= names 'foo', but .* has the columns k, x, n"),
    "rename onto": ({"rename": {"x": "n"}}, r"rename= makes a second column 'n'"),
    "rename both": ({"rename": {"x": "y", "n": "y"}}, r"gives two columns one name"),
    "function fails": ({"derive": {"y": lambda c: c["foo"]}}, r"the function raised KeyError: 'foo'"),
    "function shape": ({"derive": {"y": lambda c: 1.0}}, r"returned float64 of shape \(\) for a series of 2 steps"),
    "function large": ({"derive": {"y": lambda c: c["n"] + 2**60}}, r"returned an integer that float64 cannot hold"),
    "unsafe": ({"derive": {"y": "__import__('os')"}}, r"is not in the safe set"),
    "pairs": ({"derive": "y"}, r"derive='y' is invalid; write it like name=value"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    options, text = REFUSED[case]
    with pytest.raises((OptionError, SourceError), match=text):
        pack({"k": [1, 1, 2], "x": [1.0, 2.0, 3.0], "n": [1, 2, 3]}, tmp_path / "out", series="k", **options)
    assert not (tmp_path / "out").exists()


def test_a_wide_column_that_only_where_uses_and_that_changes_its_type_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("p,site\n" + "1,7\n" * 30 + "1,seven\n")
    with shrunk(), pytest.raises(BadValueError, match=r"which where= or derive= uses.*dtype=\{'site': 'float64'\} or 'text'"):
        pack(tmp_path / "a.csv", tmp_path / "out", wide=True, columns="p", where="site == 7")
    with shrunk():
        store = pack(tmp_path / "a.csv", tmp_path / "out", wide=True, columns="p", where="site == 'seven'", dtype="site=text")
    assert open_store(tmp_path / "out").digest == store.digest
    assert store.num_steps == 1
