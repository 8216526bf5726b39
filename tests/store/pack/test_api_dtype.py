"""Types that were asked for: through a whole pack, nothing is cut, rounded or wrapped without a word."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stoker.errors import BadValueError
from stoker.store.pack.api import pack
from stoker.store.pack.values import from_bfloat16

INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(INTEGERS, 2)))
def test_integers_are_never_cut(tmp_path: Path, source: str, target: str) -> None:
    held, wanted = np.iinfo(source), np.iinfo(target)
    fitting = [
        value
        for value in (held.min, wanted.min, 0, wanted.max, held.max)
        if max(held.min, wanted.min) <= value <= min(held.max, wanted.max)
    ]
    store = pack({"n": np.array(fitting, dtype=source)}, tmp_path / "out", dtype=target)
    assert str(store.schema["n"].dtype) == target
    assert store.column("n").tolist() == fitting
    for beyond in (wanted.min - 1, wanted.max + 1):
        if held.min <= beyond <= held.max:
            values = np.array([0, beyond], dtype=source)
            with pytest.raises(
                BadValueError, match=rf"column 'n' holds {beyond} in row 2 of <dict>, which {target} cannot hold exactly"
            ):
                pack({"n": values}, tmp_path / "out", replace=True, dtype=f"n={target}")


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**63, 2.0**64])
def test_floats_become_integers_only_where_they_are_whole(tmp_path: Path, target: str, value: float) -> None:
    if np.isfinite(value) and value == int(value) and np.iinfo(target).min <= value <= np.iinfo(target).max:
        assert pack({"x": np.array([value])}, tmp_path / "out", dtype=target).column("x").tolist() == [int(value)]
        return
    with pytest.raises(BadValueError, match=rf"row 2 of <dict>, which {target} cannot hold exactly"):
        pack({"x": np.array([1.0, value])}, tmp_path / "out", dtype=target)


@pytest.mark.parametrize("target", ["float16", "float32", "bfloat16"])
def test_floats_may_round_but_not_overflow(tmp_path: Path, target: str) -> None:
    store = pack({"x": np.array([0.1, -0.0, np.inf])}, tmp_path / "out", dtype=target)
    values = from_bfloat16(store.column("x")) if target == "bfloat16" else store.column("x")
    assert values[0] == {"float16": np.float16(0.1), "float32": np.float32(0.1), "bfloat16": np.float32(0.10009765625)}[target]
    assert np.signbit(values[1])
    assert np.isinf(values[2])
    with pytest.raises(BadValueError, match=r"holds 3.4e\+38 in row 1 of <dict>, which (float16|bfloat16) cannot|holds 1e\+39"):
        pack({"x": np.array([1e39 if target == "float32" else 3.4e38])}, tmp_path / "out", replace=True, dtype=target)


@pytest.mark.parametrize(("target", "limit"), [("float16", 2**11), ("bfloat16", 2**8), ("float32", 2**24), ("float64", 2**53)])
def test_integers_become_floats_only_where_that_is_exact(tmp_path: Path, target: str, limit: int) -> None:
    store = pack({"n": np.array([limit, -limit])}, tmp_path / "out", dtype=target)
    assert store.num_steps == 2
    with pytest.raises(BadValueError, match=rf"column 'n' holds {limit + 1} in row 1 of <dict>, which \w+ cannot hold exactly"):
        pack({"n": np.array([limit + 1])}, tmp_path / "out", replace=True, dtype=target)


def test_text_and_category(tmp_path: Path) -> None:
    table = pa.table({"n": [10, 20, 10], "x": [0.5, 1.5, 0.5], "b": [True, False, True]})
    store = pack(table, tmp_path / "out", dtype="n=text,x=category,b=category")
    assert list(store.texts("n")) == ["10", "20"]
    assert list(store.texts("x")) == ["0.5", "1.5"]
    assert store.column("b").tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("dtype", "labels"),
    [
        ("float32", ["int64", "float32", "float32", "category"]),
        ("x=float16", ["int64", "int32", "float16", "category"]),
        ("float32,n=int8", ["int64", "int8", "float32", "category"]),
        ({"n": "uint8", "x": np.float32}, ["int64", "uint8", "float32", "category"]),
        (np.float32, ["int64", "float32", "float32", "category"]),
        ("t=int32", ["int32", "int32", "float64", "category"]),
    ],
)
def test_which_columns_a_type_is_for(tmp_path: Path, dtype: Any, labels: list[str]) -> None:
    table = pa.table({"t": [1, 2], "n": pa.array([1, 2], pa.int32()), "x": [0.5, 1.5], "w": ["a", "b"]})
    store = pack(table, tmp_path / "out", time="t", dtype=dtype)
    assert [column.label for column in store.schema.values()] == labels


def test_the_row_is_counted_over_all_chunks_and_dropped_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,n\n" + "1,1\n,1\n" * 300 + "1,300\n")
    with pytest.raises(BadValueError, match=r"holds 300 in row 601 of .*a.csv, which uint8"):
        pack(tmp_path / "a.csv", tmp_path / "out", dtype="n=uint8", missing="drop")
