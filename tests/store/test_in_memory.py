"""Stores in memory: every shape that is understood, and a refusal that names the column for every other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import Store
from stoker.errors import OptionError


def test_contiguous_arrays_are_shared_and_stay_writable_for_their_owner() -> None:
    given = np.arange(6.0)
    store = Store.from_arrays(x=given, lengths=[2, 4])
    assert np.shares_memory(store[1]["x"], given)
    assert not store[1]["x"].flags.writeable
    given[3] = 70
    assert store[1]["x"].tolist() == [2, 70, 4, 5]


GRID, FLAT = np.zeros((2, 4)), np.zeros(6)
SHAPES: list[tuple[dict[str, Any], list[int], dict[str, str]]] = [
    ({"x": np.zeros(4)}, [4], {"x": "step"}),
    ({"x": [1, 2, 3]}, [3], {"x": "step"}),
    ({"x": GRID}, [4, 4], {"x": "step"}),
    ({"x": np.zeros((2, 4, 3))}, [4, 4], {"x": "step[3]"}),
    ({"x": GRID, "y": np.zeros((2, 4, 3)), "z": np.zeros(2), "w": np.zeros((2, 7))}, [4, 4], {"z": "series", "w": "series[7]"}),
    ({"x": [np.zeros(1), np.zeros(0)], "y": np.zeros(2)}, [1, 0], {"x": "step", "y": "series"}),
    ({"x": [np.zeros((1, 2)), np.zeros((3, 2))]}, [1, 3], {"x": "step[2]"}),
    ({"x": [np.zeros(0), np.zeros((3, 2))]}, [0, 3], {"x": "step[2]"}),
    ({"x": (np.zeros(1), np.zeros(3))}, [1, 3], {"x": "step"}),
    ({"x": FLAT, "y": np.zeros((6, 2)), "z": np.zeros(2), "lengths": [2, 4]}, [2, 4], {"x": "step", "y": "step[2]", "z": "series"}),
    ({"x": FLAT, "lengths": np.array([0, 6, 0], dtype=np.uint8)}, [0, 6, 0], {"x": "step"}),
    ({"x": np.zeros((3, 1)), "lengths": [1, 1, 1]}, [1, 1, 1], {"x": "step[1]"}),
    ({"x": GRID, "lengths": [4, 4]}, [4, 4], {"x": "step"}),
    ({"x": np.zeros(0), "lengths": []}, [], {"x": "step"}),
    ({"x": np.zeros((0, 5))}, [], {"x": "step"}),
    ({"x": [[1, 2], []]}, [2, 0], {"x": "step"}),
    ({"label": np.zeros(3), "x": [[], [], [1, 2, 3]]}, [0, 0, 3], {"x": "step", "label": "series"}),
]


@pytest.mark.parametrize(("columns", "lengths", "levels"), SHAPES, ids=[str(i) for i in range(len(SHAPES))])
def test_the_shapes_that_are_understood(columns: dict[str, Any], lengths: list[int], levels: dict[str, str]) -> None:
    store = Store.from_arrays(**columns)
    assert store.lengths.tolist() == lengths
    for name, level in levels.items():
        column = store.schema[name]
        assert f"{column.level}{f'[{column.width}]' if column.width is not None else ''}" == level
    for series in store:
        dict(series)
    store.to_arrow().validate(full=True)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "needs at least one column"),
    ({"x": 5}, "column 'x' cannot be read as arrays"),
    ({"x": None}, "column 'x' cannot be read as arrays"),
    ({"x": "abc"}, "column 'x' cannot be read as arrays"),
    ({"x": [[[1, 2], [3]]]}, "column 'x' cannot be read as arrays"),
    ({"x": [np.zeros(2), 3]}, "column 'x' cannot be read as arrays"),
    ({"x": [np.zeros(2), np.zeros((2, 2))]}, "column 'x' has series of different widths"),
    ({"x": np.zeros(6), "lengths": [2, 5]}, r"column 'x' has shape \(6,\), which fits neither 2 series nor their 7 steps"),
    ({"x": np.zeros(6), "lengths": [2.0, 4.0]}, "lengths must be integers from 0"),
    ({"x": np.zeros(6), "lengths": [-2, 8]}, "lengths must be integers from 0"),
    ({"x": np.zeros(6), "lengths": [[2, 4]]}, "lengths must be integers from 0"),
    ({"x": np.zeros(6), "lengths": [True, True]}, "lengths must be integers from 0"),
    ({"x": [np.zeros(3)], "y": [np.zeros(2)]}, r"column 'y' has other lengths .*series 0: 2 against 3"),
    ({"x": [np.zeros(3)], "y": [np.zeros(3)] * 2}, r"column 'y' has other lengths .*2 series against 1"),
    ({"x": np.zeros((2, 3)), "y": np.zeros((3, 3))}, r"column 'y' has shape \(3, 3\)"),
    ({"x": np.zeros((2, 3)), "name": ["a"]}, "column 'name' has 1 strings, but there are 2 series"),
    ({"x": np.zeros((2, 3, 4, 5))}, "column 'x' has dtype float64 and 3 axes"),
    ({"x": np.array(["a", "b"])}, "column 'x' has dtype <U1"),
    ({"x": np.array([None, {}])}, "column 'x' has dtype object"),
    ({"x": np.zeros(2, "<M8[ns]")}, "column 'x' has dtype datetime64"),
    ({"x": np.zeros(2, "<c16")}, "column 'x' has dtype complex128"),
    ({"x": np.zeros(2, np.longdouble)}, "column 'x' has dtype float128"),
]


@pytest.mark.parametrize(("columns", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_invalid_is_refused_with_the_column(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Store.from_arrays(**columns)


DTYPES = st.sampled_from(["|b1", "|i1", "<u2", "<i4", "<i8", "<u8", "<f2", "<f4", "<f8"])


@given(lengths=st.lists(st.integers(0, 5), max_size=7), dtype=DTYPES, width=st.sampled_from([None, 1, 3]), data=st.data())
def test_the_store_in_memory_is_its_slow_twin(lengths: list[int], dtype: str, width: int | None, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    twin = [rng.integers(0, 100, (n,) if width is None else (n, width)).astype(dtype) for n in lengths]
    flat = np.concatenate(twin) if twin else np.zeros((0,) if width is None else (0, width), dtype)
    labels = rng.normal(size=len(lengths) + 1)[:-1]
    ways: list[dict[str, Any]] = [{"x": flat, "lengths": lengths}]
    if twin:
        ways.append({"x": twin, "label": labels})
    if twin and len(set(lengths)) == 1:
        ways.append({"x": np.stack(twin), "label": labels})
    for columns in ways:
        store = Store.from_arrays(**columns)
        assert len(store) == len(twin)
        assert store.num_steps == sum(lengths)
        assert store.offsets.tolist() == [0, *np.cumsum(lengths).tolist()]
        for i, expected in enumerate(twin):
            assert store[i]["x"].dtype == np.dtype(dtype)
            assert np.array_equal(store[i]["x"], expected)
            if "label" in columns:
                assert store[i]["label"] == labels[i]
        if twin:
            assert store.to_arrow()["x"].to_pylist() == [series.tolist() for series in twin]
