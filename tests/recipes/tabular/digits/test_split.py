"""Digits are those of the printed number, for every float64 and every window; the frame is that of the way it replaces."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmarks.before.mostlyai_digits import arithmetic_digits, split_printed
from tests.recipes.tabular.digits.digits_twin import WINDOWS, hard_numbers, mixed_numbers, money, printed_digits

from stoker.errors import OptionError
from stoker_recipes.tabular import split_digits

COLUMNS = {
    "money": pd.Series([21047147.89, -910635.287793, 0.2997, np.nan, 19.99, -0.0]),
    "float32": pd.Series([0.1, -1.5, np.nan, 3e38], dtype="float32"),
    "float16": pd.Series([0.1, -1.5, 65504], dtype="float16"),
    "int64": pd.Series([2**63 - 1, -(2**63), 0, -1, 2**53 + 1]),
    "uint64": pd.Series([2**64 - 1, 0], dtype="uint64"),
    "int8": pd.Series([-128, 127], dtype="int8"),
    "Int64": pd.Series([1, None, -3, 2**63 - 1], dtype="Int64"),
    "UInt8": pd.Series([1, None, 255], dtype="UInt8"),
    "Float64": pd.Series([1.5, None, -0.1], dtype="Float64"),
    "Float32": pd.Series([1.5, None, -0.1], dtype="Float32"),
    "arrow int64": pd.Series([1, None, 2**60 + 1], dtype="int64[pyarrow]"),
    "arrow double": pd.Series([1.25, None, float("nan")], dtype="double[pyarrow]"),
    "arrow float": pd.Series([1.1, None], dtype="float[pyarrow]"),
    "sparse": pd.Series(pd.arrays.SparseArray([1.0, np.nan, 2.5])),
    "no value": pd.Series([np.nan, np.nan]),
    "no nullable value": pd.Series([None, None], dtype="Int64"),
    "empty": pd.Series([], dtype="float64"),
    "indexed": pd.Series([1.5, -2.0, 3.0], index=["a", "a", "b"], name="price"),
    "by time": pd.Series([1, 2], index=pd.date_range("2024", periods=2)),
    "sliced": pd.Series(np.arange(20.0) / 7)[3:17:2],
}


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_digits_are_those_of_the_printed_number(window: tuple[int, int]) -> None:
    values = hard_numbers()
    found = split_digits(values, max_decimal=window[0], min_decimal=window[1])
    assert found.matrix.dtype == np.int8
    np.testing.assert_array_equal(found.matrix, printed_digits(values, *window))


@pytest.mark.promise("P11")
@pytest.mark.parametrize("window", [(18, -8), (3, -1), (49, -20)], ids=str)
@pytest.mark.parametrize("name", COLUMNS)
def test_the_frame_is_that_of_the_way_it_replaces(name: str, window: tuple[int, int]) -> None:
    expected = split_printed(COLUMNS[name], *window)
    found = split_digits(COLUMNS[name], max_decimal=window[0], min_decimal=window[1], frame=True)
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


@pytest.mark.promise("P11", control=True)
def test_division_gets_half_of_money_and_integers_wrong_and_normals_right(rng: np.random.Generator) -> None:
    def wrong(values: Any) -> float:
        return float((arithmetic_digits(values) != split_digits(values).digits).any(axis=1).mean())

    assert 0.4 < wrong(money(rng, 20_000)) < 0.6
    assert 0.4 < wrong(rng.integers(-1_000_000, 1_000_000, 20_000).astype(np.float64)) < 0.6
    assert wrong(rng.normal(size=20_000)) < 0.001


@pytest.mark.parametrize(
    ("values", "options", "window"),
    [
        ([19.99, 120.5], {}, (2, -2)),
        ([0.05], {}, (0, -2)),
        ([1000, 2000], {}, (3, 3)),
        ([1e-19, 1e30], {}, (30, -19)),
        ([0.0, np.nan], {}, (0, 0)),
        ([], {}, (0, 0)),
        ([19.99], {"min_decimal": -5}, (1, -5)),
        ([19.99], {"max_decimal": 6}, (6, -2)),
        ([19.99], {"min_decimal": 4}, (4, 4)),
        ([2000.0], {"max_decimal": 1}, (1, 1)),
    ],
)
def test_bounds_that_are_not_given_come_from_the_values(
    values: list[float], options: dict[str, int], window: tuple[int, int]
) -> None:
    bounds: dict[str, Any] = {"max_decimal": None, "min_decimal": None} | options
    found = split_digits(np.array(values, dtype=np.float64), **bounds).window
    assert (found.max_decimal, found.min_decimal) == window


def test_the_count_of_cut_values_follows_the_window(rng: np.random.Generator) -> None:
    values = mixed_numbers(rng, 5000)
    whole = printed_digits(values, 49, -20)[:, 2:]
    lossless = np.array([float("".join(map(str, row)) + "e-20") for row in whole.tolist()]) == np.abs(values)
    for top, bottom in WINDOWS:
        outside = np.delete(whole, np.s_[49 - top : 50 - bottom], axis=1).any(axis=1)
        expected = (outside | ~lossless) & ~np.isnan(values)
        assert split_digits(values, max_decimal=top, min_decimal=bottom).num_cut == expected.sum()


@pytest.mark.parametrize("bounds", [(50, 0), (0, -21), (3, 4)])
def test_bounds_beyond_the_printed_places_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(OptionError, match="Choose -20 <= min_decimal <= max_decimal <= 49"):
        split_digits([1.0], max_decimal=bounds[0], min_decimal=bounds[1])


@pytest.mark.promise("P4")
@pytest.mark.parametrize("dtype", ["float64", "int32", "Int64", "double[pyarrow]"])
@pytest.mark.parametrize("frame", [False, True])
def test_memory_is_that_of_the_result(frame: bool, dtype: str) -> None:
    column = pd.Series(np.arange(300_000) % 1000, dtype=dtype)
    split_digits(column[:3000], frame=frame)
    tracemalloc.start()
    kept = split_digits(column, frame=frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.05 * len(kept) * 29 * (8 if frame else 1)


def test_the_example_of_the_manual_runs() -> None:
    manual = Path(__file__).parents[4] / "docs" / "encoding" / "digits.md"
    blocks = re.findall(r"```python\n(.*?)```", manual.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(blocks[0], manual.name, "exec"), names)
    assert names["digits"].columns == ("nan", "neg", "E3", "E2", "E1", "E0", "E-1", "E-2")
    assert names["digits"].matrix.tolist() == [[0, 0, 0, 0, 1, 9, 9, 9], [0, 1, 1, 2, 5, 0, 5, 0], [1, 0, 0, 0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(names["back"], names["prices"])
