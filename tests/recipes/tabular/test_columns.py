"""A column from anywhere is read as arrays that share its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from stoker.errors import OptionError
from stoker_recipes.tabular.columns import plain_values, read_column

NUMBERS = np.arange(4.0)


@pytest.mark.parametrize(
    "given", [NUMBERS, pd.Series(NUMBERS), pa.array(NUMBERS), pl.Series(NUMBERS), pa.chunked_array([NUMBERS[:1], NUMBERS[1:]])]
)
def test_numbers_are_not_copied(given: Any) -> None:
    column = read_column("x", given)
    values = np.concatenate([plain_values(part)[0] for part in column.parts])
    assert values.tolist() == NUMBERS.tolist()
    if len(column.parts) == 1 and not isinstance(given, pl.Series):
        assert np.shares_memory(plain_values(column.parts[0])[0], np.asarray(given))


@pytest.mark.parametrize("given", [{"a": [1]}, pd.DataFrame({"a": [1]}), np.zeros((2, 2)), {1, 2}])
def test_values_that_are_not_a_column_are_refused(given: Any) -> None:
    with pytest.raises(OptionError, match=r"column 'x' (is a|has 2 axes)"):
        read_column("x", given)
