"""Digits joined again are the float64 nearest to what they spell; what was split without a loss comes back bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.recipes.tabular.digits.digits_twin import hard_numbers, mixed_numbers

from stoker.errors import BadValueError
from stoker_recipes.tabular import Digits, join_digits, split_digits
from stoker_recipes.tabular.digits.split import DigitWindow


@pytest.mark.parametrize("text", ["90071992547409925", "90071992547409915", "90071992547409935", "180143985094819845"])
@pytest.mark.parametrize("tail", ["", "0" * 9, "0" * 8 + "1"])
def test_halves_between_two_numbers_round_to_even(text: str, tail: str) -> None:
    whole = f"{text}{tail}".rjust(50, "0")
    matrix = np.array([[0, 0, *map(int, whole)]], dtype=np.int8)
    for lowest in (-20, -1, 0):
        made = Digits(matrix=matrix, window=DigitWindow(lowest + 49, lowest), num_cut=0)
        assert join_digits(made).tolist() == [float(f"{whole}e{lowest}")]


def test_what_was_split_without_a_loss_comes_back(rng: np.random.Generator) -> None:
    values = np.concatenate([mixed_numbers(rng, 20_000), hard_numbers()])
    digits = split_digits(values, max_decimal=49, min_decimal=-20)
    back = join_digits(digits)
    lost = ~((back == values) | np.isnan(values))
    assert lost.sum() == digits.num_cut
    assert (np.abs(values[lost]) < 1e-3).sum() + (np.abs(values[lost]) >= 1e50).sum() == lost.sum()


@pytest.mark.parametrize(("row", "column", "value"), [(1, 0, 2), (0, 1, -1), (1, 5, 10), (0, 2, -128)])
def test_an_entry_that_is_not_a_digit_is_named(row: int, column: int, value: int) -> None:
    digits = split_digits([1.5, 2.5])
    digits.matrix[row, column] = value  # type: ignore[index]
    with pytest.raises(BadValueError, match=f"column '{digits.columns[column]}' holds {value} in row {row + 1}"):
        join_digits(digits)
