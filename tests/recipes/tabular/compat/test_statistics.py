"""Statistics of mostlyai-engine: bins, ranges and limits that are drawn."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from stoker.errors import OptionError
from stoker_recipes.tabular.compat.statistics import part_of_column, reduce_column, reduce_lengths


def reduced(kind: str, *columns: pa.Array, protect: bool = True) -> dict[str, object]:
    np.random.seed(0)
    return reduce_column(kind, [part_of_column(kind, column, np.arange(len(column))) for column in columns], protect=protect)


@pytest.mark.promise("P11", control=True)
def test_rare_categories_and_extreme_numbers_are_left_out() -> None:
    found = reduced("TABULAR_CATEGORICAL", pa.array(["a"] * 20 + ["b"] * 4 + [None]))
    assert found["codes"] == {"_RARE_": 0, "<<NULL>>": 1, "a": 2}
    assert found["no_of_rare_categories"] == 1
    digits = reduced("TABULAR_NUMERIC_DIGIT", pa.array(np.arange(100)))
    assert isinstance(digits["min"], float)
    assert isinstance(digits["max"], float)
    assert 5 <= digits["min"] <= 7
    assert 92 <= digits["max"] <= 94
    everything = reduced("TABULAR_NUMERIC_DIGIT", pa.array(np.arange(100)), protect=False)  # negative control
    assert (everything["min"], everything["max"]) == (0.0, 99.0)


def test_lengths_that_few_have_are_left_out() -> None:
    lengths = np.array([1] * 3 + [4] * 40 + [99] * 3)
    np.random.seed(0)
    assert reduce_lengths(lengths, protect=True) == {"min": 4, "max": 4, "median": 4, "value_protection": True}
    assert reduce_lengths(lengths, protect=False)["max"] == 99
    for few in ([1, 2, 1], [1, 1, 1]):
        with pytest.raises(OptionError, match="the data has 3 subjects; protection needs at least 20"):
            reduce_lengths(np.array(few), protect=True)
