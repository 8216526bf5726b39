"""Digit ranges are those of all digits, though most blocks need not be looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmarks.before.mostlyai_statistics import analyze_numeric
from tests.recipes.tabular.digits.digits_twin import mixed_numbers, money

from stoker_recipes.tabular.digits.kernels import BLOCK
from stoker_recipes.tabular.statistics import numbers
from stoker_recipes.tabular.statistics.numbers import DigitRanges
from stoker_recipes.tabular.statistics.quantiles import float_keys, whole_keys

FEW = 4 * BLOCK + 77


def found_in(values: Any) -> tuple[dict[str, int], dict[str, int]]:
    ranges = DigitRanges()
    if values.dtype.kind == "f":
        ranges.add(np.unique(float_keys(values.astype(np.float64))[0]), "float")
    else:
        ranges.add(np.unique(whole_keys(values)), "int" if values.dtype.kind == "i" else "uint")
    return ranges.named(num_values=len(values))


def printed(values: Any) -> tuple[dict[str, int], dict[str, int]]:
    analysis = analyze_numeric(pd.Series(values, name="x"), encoding="digit")
    return analysis["min_digits"], analysis["max_digits"]


def columns(rng: np.random.Generator) -> dict[str, Any]:
    mixed = mixed_numbers(rng, FEW)
    return {
        "normals": rng.normal(size=FEW),
        "money": money(rng, FEW),
        "mixed": mixed[np.isfinite(mixed)],
        "narrow": rng.uniform(531, 532, FEW),
        "away from zero": rng.uniform(0.1, 9, FEW),
        "many decimals": rng.normal(size=FEW) * 1e-7,
        "more decimals than are printed": rng.normal(size=FEW) * 1e-18,
        "above the highest place": rng.normal(size=FEW) * 1e19,
        "one above": np.concatenate([rng.uniform(0, 9e18, FEW), [2e19]]),
        "whole": rng.integers(-(10**6), 10**6, FEW),
        "whole from 2 to 3 million": rng.integers(2 * 10**6, 3 * 10**6, FEW),
        "large": rng.integers(0, 2**64 - 1, FEW, dtype=np.uint64),
        "zeros": np.zeros(3),
        "one rounded away": np.array([1e-25, 0.5]),
    }


def test_ranges_are_those_of_the_printed_digits(rng: np.random.Generator) -> None:
    for name, values in columns(rng).items():
        assert found_in(values) == printed(values), name


@pytest.mark.promise("P11", control=True)
def test_negative_control_leaving_out_too_much_is_found(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.concatenate([money(rng, 20 * BLOCK), [123.456]])
    expected = printed(values[-3 * BLOCK :])
    assert expected[1]["E-3"] == found_in(values)[1]["E-3"] == 6
    monkeypatch.setattr(numbers, "_lowest_reached", lambda sizes, lowest: np.full(sizes.shape[1], 99))
    assert found_in(values)[1]["E-3"] == 0
