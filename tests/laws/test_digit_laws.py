"""The laws of digits, for any number: they are those of the printed number, in any window, and join again."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings
from tests.harness import num_examples
from tests.recipes.tabular.digits.digits_twin import mixed_numbers, printed_digits

from stoker_recipes.tabular import Digits, join_digits, split_digits
from stoker_recipes.tabular.digits.split import HIGHEST, LOWEST, DigitWindow

pytestmark = pytest.mark.promise("P11")

BITS = st.integers(0, 2**64 - 1).map(lambda bits: float(np.uint64(bits).view(np.float64)))
DECIMALS = st.builds(lambda digits, place: float(f"{digits}e{place}"), st.integers(-(10**17), 10**17), st.integers(-40, 60))
SCALED = st.builds(lambda digits, place: digits / 10.0**place, st.integers(0, 10**16), st.integers(0, 22))
TIES = st.builds(lambda halves, more: halves * 5e-21 * 2.0**more, st.integers(0, 10**6), st.integers(-60, 60))
NUMBERS = st.one_of(BITS, DECIMALS, SCALED, TIES, st.floats(), st.integers(-(2**63), 2**63).map(float)).filter(
    lambda x: abs(x) != np.inf
)
COLUMNS = st.lists(NUMBERS, min_size=1, max_size=30).map(lambda values: np.array(values, dtype=np.float64))
PLACES = st.tuples(st.integers(LOWEST, HIGHEST), st.integers(LOWEST, HIGHEST)).map(lambda two: (max(two), min(two)))
WINDOWS = st.just((18, -8)) | PLACES


@settings(max_examples=num_examples(1500))
@given(values=COLUMNS, window=WINDOWS)
@example(
    values=np.array([19.99, 0.3, -0.0, 1e22, 1e-20, 2.5e-20, 3.5e-20, 9.99999999999999e-9, 5e-324, 1e50, np.nan]), window=(49, -20)
)
def test_digits_are_those_of_the_printed_number(values: Any, window: tuple[int, int]) -> None:
    found = split_digits(values, max_decimal=window[0], min_decimal=window[1])
    np.testing.assert_array_equal(found.matrix, printed_digits(values, *window))


@settings(max_examples=num_examples(500))
@given(data=st.data(), window=WINDOWS)
def test_any_digits_join_to_the_nearest_number(data: st.DataObject, window: tuple[int, int]) -> None:
    places = window[0] - window[1] + 1
    digits = data.draw(st.lists(st.sampled_from([0, 0, 0, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8]), min_size=places, max_size=places))
    negative = data.draw(st.integers(0, 1))
    made = Digits(matrix=np.array([[0, negative, *digits]], dtype=np.int8), window=DigitWindow(*window), num_cut=0)
    sign = "-" if negative else ""
    expected = float(f"{sign}{''.join(map(str, digits))}e{window[1]}")
    assert join_digits(made).view(np.int64).tolist() == np.array([expected]).view(np.int64).tolist()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(8))
def test_four_million_numbers_of_all_magnitudes(rng: np.random.Generator, part: int) -> None:
    values = mixed_numbers(rng, 500_000)
    expected = printed_digits(values, HIGHEST, LOWEST)
    windows = [(HIGHEST, LOWEST), (18, -8), (int(rng.integers(0, 30)), int(rng.integers(-15, 1)))]
    for top, bottom in windows:
        found = split_digits(values, max_decimal=top, min_decimal=bottom)
        np.testing.assert_array_equal(found.matrix[:, :2], expected[:, :2])
        np.testing.assert_array_equal(found.digits, expected[:, 2 + HIGHEST - top : 3 + HIGHEST - bottom])
    whole = split_digits(values, max_decimal=HIGHEST, min_decimal=LOWEST)
    assert int((join_digits(whole) == values).sum() + np.isnan(values).sum()) == len(values) - whole.num_cut
