"""Digits and bins: values come back, within the interval of a bin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stoker.recipes.tabular.compat_encodings import Binned, encoding_of
from stoker.recipes.tabular.compat_statistics import part_of_column, reduce_column
from stoker.recipes.tabular.values import read_values

ROWS = 1000
STARTS = np.arange(ROWS)
COLUMNS = {
    "money": lambda rng: pa.array(np.round(rng.lognormal(3, 1, ROWS), 2)),
    "signed": lambda rng: pa.array(rng.integers(-500, 500, ROWS)),
    "missing": lambda rng: pa.array(
        np.where(rng.random(ROWS) < 0.1, np.nan, np.round(rng.normal(50, 9, ROWS), 1)), from_pandas=True
    ),
    "zero": lambda rng: pa.array([0] * ROWS),
}


def fitted(kind: str, column: pa.Array) -> Any:
    """An encoding that keeps everything."""
    return encoding_of(reduce_column(kind, [part_of_column(kind, column, STARTS)], protect=False))


@pytest.mark.parametrize("name", COLUMNS)
def test_digits_come_back_exactly(rng: np.random.Generator, name: str) -> None:
    column = COLUMNS[name](rng)
    values = read_values("x", column)
    encoding = fitted("TABULAR_NUMERIC_DIGIT", column)
    codes = encoding.encode(values, STARTS)
    assert (codes < list(encoding.sizes.values())).all()
    assert encoding.decode(codes, column.type, STARTS, np.zeros(ROWS)).equals(column)


@pytest.mark.parametrize("name", COLUMNS)
def test_bins_come_back_in_their_interval(rng: np.random.Generator, name: str) -> None:
    column = COLUMNS[name](rng)
    values = read_values("x", column)
    encoding = fitted("TABULAR_NUMERIC_BINNED", column)
    codes = encoding.encode(values, STARTS)
    assert (codes < encoding.sizes["bin"]).all()
    assert (codes[values.valid] > 0).all()
    back = read_values("x", encoding.decode(codes, column.type, STARTS, rng.random(ROWS)))
    assert (back.valid == values.valid).all()
    assert (encoding.encode(back, STARTS) == codes).mean() > 0.9  # a draw may be the minimum or round to an edge


def test_one_value_and_no_value() -> None:
    """A single edge has no interval; without ends every value is unknown and comes back missing."""
    values = read_values("x", pa.array([7.0, 8.0, None]))
    single = Binned(edges=[7.0], decimals=0, has_null=True)
    codes = single.encode(values, np.arange(3))
    assert codes[:, 0].tolist() == [3, 3, 1]
    assert single.decode(codes, pa.float64(), np.arange(3), np.zeros(3)).to_pylist() == [7.0, 7.0, None]
    hidden = Binned(edges=[0.0], decimals=0, has_null=True, has_ends=False)
    codes = hidden.encode(values, np.arange(3))
    assert (codes < hidden.sizes["bin"]).all()
    assert hidden.decode(codes, pa.float64(), np.arange(3), np.zeros(3)).null_count == 3
