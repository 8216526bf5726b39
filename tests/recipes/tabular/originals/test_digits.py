"""The digits of mostlyai-engine itself: the same frame, column by column."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from tests.recipes.tabular.digits.digits_twin import mixed_numbers, money
from tests.recipes.tabular.originals.mostlyai import split_sub_columns_digit

from stoker_recipes.tabular import split_digits

pytestmark = [pytest.mark.originals, pytest.mark.filterwarnings("ignore")]


def check(values: pd.Series, **window: int) -> None:
    pd.testing.assert_frame_equal(split_digits(values, frame=True, **window), split_sub_columns_digit(values, **window))


@pytest.mark.promise("P11")
@pytest.mark.parametrize("window", [{}, {"max_decimal": 5, "min_decimal": -3}, {"max_decimal": 49, "min_decimal": -20}])
def test_columns_of_every_kind(window: dict[str, int], rng: np.random.Generator) -> None:
    mixed = mixed_numbers(rng, 20_000)
    columns: dict[str, Any] = {
        "money": money(rng, 20_000),
        "mixed": mixed[~np.isinf(mixed)],
        "normal": rng.normal(size=20_000),
        "whole": rng.integers(-(2**63), 2**63 - 1, 20_000),
        "float32": rng.normal(size=5000).astype(np.float32),
        "nullable": pd.array(rng.choice([1, None, 77], 500), dtype="Int64"),
    }
    for values in columns.values():
        check(pd.Series(values), **window)


@given(st.lists(st.floats(allow_infinity=False), min_size=1, max_size=50))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_floats(values: list[float]) -> None:
    check(pd.Series(values, dtype=np.float64))


def test_negative_control_a_cent_is_seen(rng: np.random.Generator) -> None:
    values = pd.Series(money(rng, 100))
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(split_digits(values + 0.01, frame=True), split_sub_columns_digit(values))
