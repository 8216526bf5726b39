"""Temperatures: the ends of every schedule, TimeHUT's formula, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.errors import OptionError
from stoker.recipes.timehut.schedules import SCHEDULES, temperatures


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_stays_between_its_ends(schedule: str) -> None:
    found = temperatures(schedule, 100, low=0.2, high=0.8, period=7)
    assert found.shape == (100,)
    assert found.min() >= 0.2 - 1e-12
    assert found.max() <= 0.8 + 1e-12
    if schedule != "constant":
        assert np.ptp(found) > 0.5


def test_cosine_is_the_formula_of_the_authors() -> None:
    found = temperatures("cosine", 40, low=0.15, high=0.75, period=10.5)
    expected = [0.15 + (0.75 - 0.15) / 2 * (1 + np.cos(np.pi * epoch / 10.5)) for epoch in range(40)]
    assert np.allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("schedule", "first", "last"), [("linear", 0.8, 0.2), ("polynomial", 0.8, 0.2), ("warmup-cosine", 0.2, 0.2)]
)
def test_schedules_end_where_they_should(schedule: str, first: float, last: float) -> None:
    found = temperatures(schedule, 50, low=0.2, high=0.8)
    assert (found[0], found[-1]) == (pytest.approx(first), pytest.approx(last))


def test_restarts_and_cycles_have_their_period() -> None:
    for schedule in ("restarts", "cyclic"):
        found = temperatures(schedule, 40, low=0.2, high=0.8, period=8)
        assert np.allclose(found[:8], found[8:16])


def test_a_temperature_of_zero_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"goes from 0 to 1 with period 5; expected 0 < low <= high"):
        temperatures("cosine", 5, low=0, high=1, period=5)
    with pytest.raises(OptionError, match=r"schedule is 'cosin'; expected one of cosine, linear"):
        temperatures("cosin", 5, low=0.1, high=1)
