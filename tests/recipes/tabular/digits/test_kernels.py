"""Few values go the plain way, without kernels: the same results bit for bit, and nothing of numba is loaded for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.recipes.tabular.digits.digits_twin import mixed_numbers, money

from stoker_recipes.tabular import Statistics, analyze
from stoker_recipes.tabular.statistics import numbers, quantiles
from stoker_recipes.tabular.statistics.quantiles import SMALL, compiled

USERS = (quantiles, numbers)


def plain(frame: Any, **options: Any) -> Statistics:
    with pytest.MonkeyPatch.context() as patch:
        for module in USERS:
            patch.setattr(module, "compiled", lambda num_values: None)
        return analyze(frame, **options)


def with_kernels(frame: Any, **options: Any) -> Statistics:
    assert compiled(SMALL + 1) is not None
    assert compiled(0) is not None  # once they are loaded
    return analyze(frame, **options)


def check_same(one: Statistics, other: Statistics) -> None:
    """All values, and as JSON, where -0.0 is not 0.0."""
    assert one == other
    assert one.to_json() == other.to_json()


def table(rng: np.random.Generator, num_rows: int) -> pd.DataFrame:
    mixed = mixed_numbers(rng, num_rows)
    return pd.DataFrame(
        {
            "money": money(rng, num_rows),
            "mixed": np.where(np.isinf(mixed), np.nan, mixed),
            "infinite": np.where(rng.random(num_rows) < 0.01, -np.inf, rng.normal(size=num_rows) * 1e-15),
            "few": rng.choice([0.0, -0.0, 1.5, np.nan], num_rows),
            "whole": rng.integers(-(2**63), 2**63 - 1, num_rows),
            "unsigned": rng.integers(0, 2**64 - 1, num_rows, dtype=np.uint64),
            "when": rng.integers(-(10**17), 10**17, num_rows).astype("M8[us]"),
            "text": rng.choice(["a", "b"], num_rows),
        }
    )


@pytest.mark.promise("P11")
@pytest.mark.parametrize("num_rows", [0, 1, 2, 300, SMALL - 1, SMALL, SMALL + 1])
def test_both_ways_have_the_same_bits(num_rows: int, rng: np.random.Generator) -> None:
    frame = table(rng, num_rows)
    check_same(plain(frame), with_kernels(frame))


@pytest.mark.promise("P11", control=True)
@pytest.mark.parametrize("part", ["_widen_by_printing", "lowest"])
def test_negative_control_a_plain_way_that_differs_is_found(
    part: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = table(rng, 300)
    whole = with_kernels(frame).to_json()
    if part == "lowest":  # repr alone, without the rounding at 20 decimals
        monkeypatch.setattr(numbers, "LOWEST", -30)
        monkeypatch.setattr(numbers, "_NUM_PLACES", 49)
    else:
        monkeypatch.setattr(numbers.DigitRanges, part, lambda self, keys, form: None)
    assert plain(frame).to_json() != whole
