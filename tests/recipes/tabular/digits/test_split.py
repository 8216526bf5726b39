"""Digits are those of the printed number, for every float64 and every window; the frame is that of the way it replaces."""

from __future__ import annotations

import re
import tracemalloc
from array import array
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from benchmarks.before.mostlyai_digits import arithmetic_digits, split_printed
from tests.recipes.tabular.digits.digits_twin import WINDOWS, hard_numbers, mixed_numbers, money, printed_digits

from stoker.errors import BadValueError, OptionError
from stoker_recipes.tabular import Digits, join_digits, split_digits
from stoker_recipes.tabular.digits.kernels import BLOCK
from stoker_recipes.tabular.digits.split import DigitWindow

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


# Columns of numbers come from anywhere and give the same digits; what is no number is named by column, row and value


ROWS = 3 * BLOCK + 5
FLOATS = np.round(np.random.default_rng(1).normal(size=ROWS) * 1e4, 3)
FLOATS[:: ROWS // 7] = np.nan
WHOLE = np.arange(ROWS, dtype=np.int64) * 977 - 12_345
GAPS = [None if np.isnan(value) else value for value in FLOATS.tolist()]
DECIMALS = [None if value is None else Decimal(repr(value)) for value in GAPS]
CHUNKS = [0, 1, 0, BLOCK - 3, 7, ROWS - BLOCK - 5]


def chunked(values: pa.Array) -> pa.ChunkedArray:
    ends = np.cumsum(CHUNKS)
    assert ends[-1] == len(values)
    return pa.chunked_array([values.slice(end - size, size) for end, size in zip(ends.tolist(), CHUNKS, strict=True)])


KINDS: dict[str, tuple[Any, Any]] = {
    "numpy": (FLOATS, FLOATS),
    "strided": (np.repeat(FLOATS, 3)[::3], FLOATS),
    "backwards": (FLOATS[::-1], FLOATS[::-1]),
    "big endian": (FLOATS.astype(">f8"), FLOATS),
    "read only": (np.frombuffer(FLOATS.tobytes()), FLOATS),
    "unaligned": (np.frombuffer(b"\0" + FLOATS.tobytes(), dtype=np.uint8)[1:].view(np.float64), FLOATS),
    "float32": (FLOATS.astype(np.float32), FLOATS.astype(np.float32)),
    "long double": (FLOATS.astype(np.longdouble), FLOATS),
    "int64": (WHOLE, WHOLE),
    **{
        name: (column := np.array([np.iinfo(name).min, 0, 1, 99, np.iinfo(name).max - 1, np.iinfo(name).max], dtype=name), column)
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
    "uint64 with gaps": (pd.Series([2**64 - 1, None, 2**63 + 1025], dtype="UInt64"), np.array([2.0**64, np.nan, 2.0**63 + 2048])),
    "uint64 of arrow": (pa.array([2**64 - 1, None, 2**63], pa.uint64()), np.array([2.0**64, np.nan, 2.0**63])),
    "many uint16": (WHOLE.astype(np.uint16), WHOLE.astype(np.uint16)),
    "masked": (np.ma.masked_array(WHOLE, mask=np.isnan(FLOATS)), np.where(np.isnan(FLOATS), np.nan, WHOLE)),
    "masked nowhere": (np.ma.masked_array(WHOLE), WHOLE),
    "objects": (np.array(GAPS, dtype=object), FLOATS),
    "list": (GAPS, FLOATS),
    "tuple of numpy numbers": (tuple(FLOATS.astype(np.float32)), FLOATS.astype(np.float32)),
    "array of the standard library": (array("d", FLOATS.tolist()), FLOATS),
    "range": (range(100), np.arange(100)),
    "pandas": (pd.Series(FLOATS), FLOATS),
    "pandas index": (pd.Index(FLOATS), FLOATS),
    "pandas array": (pd.array(GAPS, dtype="Float64"), FLOATS),
    "pandas objects": (pd.Series([1, None, pd.NA, 2.5], dtype=object), np.array([1, np.nan, np.nan, 2.5])),
    "pandas nullable": (pd.Series(GAPS, dtype="Float64"), FLOATS),
    "pandas arrow": (pd.Series(GAPS, dtype="double[pyarrow]"), FLOATS),
    "polars": (pl.Series(GAPS, dtype=pl.Float64), FLOATS),
    "polars in chunks": (pl.concat([pl.Series(GAPS[:9]), pl.Series(GAPS[9:])], rechunk=False), FLOATS),
    "polars int32": (pl.Series(WHOLE.tolist(), dtype=pl.Int32), WHOLE),
    "polars nothing": (pl.Series([None, None]), np.array([np.nan, np.nan])),
    "arrow": (pa.array(FLOATS), FLOATS),
    "arrow with gaps": (pa.array(GAPS), FLOATS),
    "arrow slice with gaps": (pa.array(GAPS).slice(5, 2 * BLOCK + 1), FLOATS[5 : 2 * BLOCK + 6]),
    "arrow half": (pa.array(FLOATS.astype(np.float16)), FLOATS.astype(np.float16)),
    "arrow chunks": (chunked(pa.array(FLOATS)), FLOATS),
    "arrow chunks with gaps": (chunked(pa.array(GAPS)), FLOATS),
    "arrow int8 chunks": (chunked(pa.array(WHOLE.astype(np.int8))), WHOLE.astype(np.int8)),
    "arrow decimals": (chunked(pa.array(DECIMALS)), FLOATS),
    "arrow wide decimals": (pa.array(DECIMALS, pa.decimal256(60, 3))[7:], FLOATS[7:]),
    "pandas decimals": (pd.Series(DECIMALS, dtype=pd.ArrowDtype(pa.decimal128(12, 3))), FLOATS),
    "polars decimals": (pl.Series(DECIMALS, dtype=pl.Decimal(12, 3)), FLOATS),
    "arrow nulls": (pa.nulls(3), np.full(3, np.nan)),
    "arrow no chunks": (pa.chunked_array([], type=pa.float64()), np.empty(0)),
    "empty list": ([], np.empty(0)),
}


@pytest.mark.promise("P11")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_column_gives_the_digits_of_its_float64(kind: str) -> None:
    given, same = KINDS[kind]
    np.testing.assert_array_equal(split_digits(given).matrix, printed_digits(np.asarray(same)))


NOT_NUMBERS: list[tuple[Any, str]] = [
    (pd.Series([1.5, "n/a", 2.0], name="price", dtype=object), r"column 'price' holds 'n/a' \(str\) in row 2, expected a number"),
    (pd.Series([None, "Wien"], name="city"), r"column 'city' holds 'Wien' \(str\) in row 2, and its type is (large_)?string"),
    (pd.Series([None, True], name="flag", dtype="boolean"), r"column 'flag' holds True \(bool\) in row 2"),
    (pd.Series(["a", "b"], name="kind", dtype="category"), r"column 'kind' holds 'a' \(str\) in row 1, and its type is dictionary"),
    (
        pd.Series(pd.to_datetime(["2024-01-01"]), name="day"),
        r"column 'day' holds datetime.datetime\(2024, 1, 1, 0, 0\) \(datetime\) in row 1",
    ),
    (pl.Series("price", [None, "x"]), r"column 'price' holds 'x' \(str\) in row 2, and its type is (large_)?string"),
    (pa.array(["x"]), r"the column holds 'x' \(str\) in row 1"),
    ([Decimal("1.00")], r"the column holds Decimal\('1.00'\) \(Decimal\) in row 1"),
    (np.array([1j]), r"the column holds 1j \(complex\) in row 1"),
    (np.array([], dtype="datetime64[s]"), r"the column has the type datetime64\[s\]"),
    ([1.0] * BLOCK + [{}], rf"the column holds {{}} \(dict\) in row {BLOCK + 1:,}"),
    ([1, 10**400], r"in row 2, which float64 cannot hold"),
    (pd.Series([1.0, -np.inf], name="price"), r"column 'price' holds -inf \(float\) in row 2, which has no digits"),
    (np.concatenate([FLOATS, [np.inf]]), rf"the column holds inf \(float\) in row {ROWS + 1:,}, which has no digits"),
    (np.array([np.finfo(np.longdouble).max]), r"the column holds inf \(float\) in row 1"),
]


@pytest.mark.promise("P11")
@pytest.mark.parametrize(("given", "message"), NOT_NUMBERS, ids=[message for _, message in NOT_NUMBERS])
def test_a_word_among_numbers_is_named(given: Any, message: str) -> None:
    with pytest.raises(BadValueError, match=message) as error:
        split_digits(given)
    assert "\n" not in str(error.value)


NO_COLUMNS: list[Any] = [
    np.zeros((2, 2)),
    np.float64(1),
    3.5,
    "1.5",
    {"a": 1},
    None,
    pd.DataFrame({"a": [1]}),
    pa.table({"a": [1]}),
]


@pytest.mark.parametrize("given", NO_COLUMNS, ids=lambda given: type(given).__name__)
def test_other_than_one_column_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match="expected"):
        split_digits(given)


STEPS: dict[str, set[str]] = {
    "import stoker_recipes.tabular as e": set(),
    "e.join_digits(e.split_digits([1, None]))": {"numba", "pyarrow"},
    "import polars as pl; e.split_digits(pl.Series([1.5, None]))": {"numba", "pyarrow", "polars"},
    "import numpy as np; e.split_digits(np.ones(2), frame=True)": {"numba", "pyarrow", "polars", "pandas"},
}
"""Code, and which of the heavy modules a process has loaded when it has run all up to there."""


def test_only_what_is_needed_is_imported(run_python: Callable[..., str]) -> None:
    heavy = {"torch", "numba", "pandas", "pyarrow", "polars"}
    printed = run_python("import sys\n" + "".join(f"{code}\nprint(*sorted({heavy} & set(sys.modules)))\n" for code in STEPS))
    assert [set(line.split()) for line in printed.splitlines()] == list(STEPS.values())


# Digits joined again are the float64 nearest to what they spell; what was split without a loss comes back bit for bit


@pytest.mark.parametrize("text", ["90071992547409925", "90071992547409915", "90071992547409935", "180143985094819845"])
@pytest.mark.parametrize("tail", ["", "0" * 9, "0" * 8 + "1"])
def test_halves_between_two_numbers_round_to_even(text: str, tail: str) -> None:
    whole = f"{text}{tail}".rjust(50, "0")
    matrix = np.array([[0, 0, *map(int, whole)]], dtype=np.int8)
    for lowest in (-20, -1, 0):
        made = Digits(matrix=matrix, window=DigitWindow(lowest + 49, lowest), num_cut=0)
        assert join_digits(made).tolist() == [float(f"{whole}e{lowest}")]


def test_what_was_split_without_a_loss_comes_back(rng: np.random.Generator) -> None:
    values = np.concatenate([mixed_numbers(rng, 20_000), hard_numbers()])
    digits = split_digits(values, max_decimal=49, min_decimal=-20)
    back = join_digits(digits)
    lost = ~((back == values) | np.isnan(values))
    assert lost.sum() == digits.num_cut
    assert (np.abs(values[lost]) < 1e-3).sum() + (np.abs(values[lost]) >= 1e50).sum() == lost.sum()


@pytest.mark.parametrize(("row", "column", "value"), [(1, 0, 2), (0, 1, -1), (1, 5, 10), (0, 2, -128)])
def test_an_entry_that_is_not_a_digit_is_named(row: int, column: int, value: int) -> None:
    digits = split_digits([1.5, 2.5])
    digits.matrix[row, column] = value  # type: ignore[index]
    with pytest.raises(BadValueError, match=f"column '{digits.columns[column]}' holds {value} in row {row + 1}"):
        join_digits(digits)


# Tensors give the digits that arrays give, and come back as tensors


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_is_widened_to_float64(dtype: torch.dtype) -> None:
    values = torch.arange(-100, 100, dtype=torch.float64).mul(1.37).to(dtype)[::3]
    digits, expected = split_digits(values), split_digits(values.double().numpy())
    assert (digits.window, digits.num_cut) == (expected.window, expected.num_cut)
    np.testing.assert_array_equal(digits.matrix, expected.matrix)


def test_tensors_come_back_as_tensors() -> None:
    values = torch.tensor([19.99, -3.0, float("nan")], dtype=torch.float64, requires_grad=True)
    digits = split_digits(values)
    assert isinstance(digits.matrix, torch.Tensor)
    joined = join_digits(digits)
    assert isinstance(joined, torch.Tensor)
    torch.testing.assert_close(joined, values.detach(), equal_nan=True, rtol=0, atol=0)


@pytest.mark.gpu
def test_digits_of_a_gpu_are_there() -> None:
    values = torch.tensor([19.99, -3.0], dtype=torch.float64, device="cuda")
    digits = split_digits(values)
    assert digits.matrix.is_cuda  # type: ignore[union-attr]
    assert join_digits(digits).equal(values)
