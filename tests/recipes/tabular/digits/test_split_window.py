"""The range of places: its bounds, the columns it has, and how it follows from the digits that occur."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stoker.errors import OptionError
from stoker_recipes.tabular.digits.split import HIGHEST, LOWEST, MAX_DECIMAL, MIN_DECIMAL, DigitWindow

PLACES = st.integers(LOWEST, HIGHEST)


@given(PLACES, PLACES)
def test_columns_are_one_per_place_from_the_highest(one: int, other: int) -> None:
    window = DigitWindow(max(one, other), min(one, other))
    assert window.num_places == len(window.places) == abs(one - other) + 1
    assert list(window.places) == sorted(window.places, reverse=True)
    assert window.columns == ("nan", "neg", *(f"E{place}" for place in window.places))


@given(st.sets(PLACES))
def test_a_derived_window_holds_every_place_that_occurs(used: set[int]) -> None:
    window = DigitWindow.derived(sorted(used, reverse=True), None, None)
    assert used <= set(window.places)


@pytest.mark.parametrize("bounds", [(HIGHEST + 1, 0), (0, LOWEST - 1), (0, 1), (True, 0), (1.5, 0), ("3", 0)])
def test_impossible_places_are_refused(bounds: tuple[Any, Any]) -> None:
    with pytest.raises(OptionError, match="max_decimal"):
        DigitWindow(*bounds)


def test_the_default_is_that_of_the_encoder() -> None:
    assert (DigitWindow().max_decimal, DigitWindow().min_decimal) == (MAX_DECIMAL, MIN_DECIMAL) == (18, -8)
