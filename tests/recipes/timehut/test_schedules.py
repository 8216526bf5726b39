"""Temperatures: TimeHUT's formula, the ends of a line, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.errors import OptionError
from stoker.recipes.timehut.schedules import temperatures


def test_cosine_is_the_formula_of_the_authors() -> None:
    found = temperatures("cosine", 40, low=0.15, high=0.75, period=10.5)
    expected = [0.15 + (0.75 - 0.15) / 2 * (1 + np.cos(np.pi * epoch / 10.5)) for epoch in range(40)]
    assert np.allclose(found, expected, rtol=1e-14)


def test_a_line_goes_from_the_largest_to_the_smallest() -> None:
    assert temperatures("linear", 4, low=0.2, high=0.8).tolist() == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert temperatures("constant", 3, low=0.2, high=0.8).tolist() == [0.8] * 3


def test_a_temperature_of_zero_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"goes from 0 to 1 with period 5; expected 0 < low <= high"):
        temperatures("cosine", 5, low=0, high=1, period=5)
    with pytest.raises(OptionError, match=r"schedule is 'cosin'; expected one of cosine, linear"):
        temperatures("cosin", 5, low=0.1, high=1)
