"""Columns of numbers come from anywhere and give the same digits; what is no number is named by column, row and value."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.recipes.tabular.digits.digits_twin import printed_digits

from stoker.errors import BadValueError, OptionError
from stoker_recipes.tabular import split_digits
from stoker_recipes.tabular.digits.kernels import BLOCK

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
    (pd.Series([1, 2, True], name="price", dtype=object), r"column 'price' holds True \(bool\) in row 3"),
    (pd.Series([None, "Wien"], name="city"), r"column 'city' holds 'Wien' \(str\) in row 2, and its type is str"),
    (pd.Series([True, False], name="flag"), r"column 'flag' holds True \(bool\) in row 1, and its type is bool"),
    (pd.Series([None, True], name="flag", dtype="boolean"), r"column 'flag' holds True \(bool\) in row 2"),
    (pd.Series(["a", "b"], name="kind", dtype="category"), r"column 'kind' holds 'a' \(str\) in row 1, and its type is category"),
    (pd.Series(pd.to_datetime(["2024-01-01"]), name="day"), r"column 'day' holds 2024-01-01T00:00:00.* in row 1"),
    (pd.Series(["1.5"], name="price", dtype="string[pyarrow]"), r"column 'price' holds '1.5' \(str\) in row 1"),
    (pl.Series("price", [None, "x"]), r"column 'price' holds 'x' \(str\) in row 2, and its type is (large_)?string"),
    (pl.Series("price", [True]), r"column 'price' holds True \(bool\) in row 1"),
    (pa.array(["x"]), r"the column holds 'x' \(str\) in row 1"),
    ([Decimal("1.00")], r"the column holds Decimal\('1.00'\) \(Decimal\) in row 1"),
    (np.array(["x"]), r"the column holds 'x' \(str_\) in row 1"),
    (np.array([1j]), r"the column holds 1j \(complex128\) in row 1"),
    (np.array([], dtype="datetime64[s]"), r"the column has the type datetime64\[s\]"),
    ([1.0] * BLOCK + [{}], rf"the column holds {{}} \(dict\) in row {BLOCK + 1:,}"),
    ([1, 10**400], r"in row 2, which float64 cannot hold"),
    ([1.0, pd.Series([2, 3])], r"the column holds 0 2 1 3 dtype: int64 \(Series\) in row 2"),
    ([1.0, [2.0]], r"the column holds \[2.0\] \(list\) in row 2"),
    (pd.Series([1.0, -np.inf], name="price"), r"column 'price' holds -inf \(float\) in row 2, which has no digits"),
    (np.concatenate([FLOATS, [np.inf]]), rf"the column holds inf \(float\) in row {ROWS + 1:,}, which has no digits"),
    (np.array([np.finfo(np.longdouble).max]), r"the column holds inf \(float\) in row 1"),
]


@pytest.mark.promise("P11")
@pytest.mark.parametrize(("given", "message"), NOT_NUMBERS, ids=[message for _, message in NOT_NUMBERS])
def test_a_value_that_is_nan_is_named(given: Any, message: str) -> None:
    with pytest.raises(BadValueError, match=message) as error:
        split_digits(given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        np.zeros((2, 2)),
        np.float64(1),
        3.5,
        "1.5",
        {"a": 1},
        None,
        iter([1.0]),
        pd.DataFrame({"a": [1]}),
        pl.DataFrame({"a": [1]}),
        pa.table({"a": [1]}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_other_than_one_column_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match="expected"):
        split_digits(given)


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import stoker_recipes.tabular", set()),
        ("import stoker_recipes.tabular as e; e.join_digits(e.split_digits([1, None]))", {"numba"}),
        (
            "import polars as pl, stoker_recipes.tabular as e; e.split_digits(pl.Series([1.5, None]))",
            {"numba", "pyarrow", "polars"},
        ),
        ("import numpy as np, stoker_recipes.tabular as e; e.split_digits(np.ones(2), frame=True)", {"numba", "pandas", "pyarrow"}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("import numpy as np, stoker_recipes.tabular as e; e.split_digits(np.ones(2))", {"numba"}),
                (
                    "import pyarrow as pa, stoker_recipes.tabular as e; e.split_digits(pa.nulls(2, pa.float64()))",
                    {"numba", "pyarrow"},
                ),
            )
        ),
    ],
)
def test_only_what_is_needed_is_imported(run_python: Callable[..., str], code: str, loaded: set[str]) -> None:
    modules = run_python(f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))")
    assert {"torch", "numba", "pandas", "pyarrow", "polars"} & set(json.loads(modules)) == loaded
