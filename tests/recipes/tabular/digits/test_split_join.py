"""Digits joined again are the float64 nearest to what they spell; what was split without a loss comes back bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.recipes.tabular.digits.digits_twin import hard_numbers, mixed_numbers, money

from stoker.errors import BadValueError, OptionError
from stoker_recipes.tabular import Digits, join_digits, split_digits
from stoker_recipes.tabular.digits.split import DigitWindow


def spelled(matrix: Any, min_decimal: int) -> Any:
    """The slow way: write the digits down, and read the text."""
    texts = ["".join(map(str, row)) for row in matrix[:, 2:].tolist()]
    values = np.array([float(f"{text}e{min_decimal}") for text in texts]) * np.where(matrix[:, 1], -1.0, 1.0)
    return np.where(matrix[:, 0], np.nan, values)


def random_digits(rng: np.random.Generator, rows: int, places: int) -> Any:
    matrix = rng.integers(0, 10, (rows, 2 + places)).astype(np.int8)
    column = np.arange(places)
    matrix[:, 2:][column < rng.integers(0, places + 1, (rows, 1))] = 0
    matrix[:, 2:][column >= rng.integers(0, places + 1, (rows, 1))] = 0
    matrix[:, :2] = rng.random((rows, 2)) < [0.02, 0.5]
    return matrix


def assert_same_bits(found: Any, expected: Any) -> None:
    assert found.dtype == np.float64
    both = np.isnan(found) & np.isnan(expected)
    np.testing.assert_array_equal(found.view(np.int64)[~both], expected.view(np.int64)[~both])
    assert (np.isnan(found) == np.isnan(expected)).all()


@pytest.mark.parametrize("window", [(18, -8), (49, -20), (9, -2), (49, 20), (-1, -20), (0, 0)], ids=str)
def test_any_digits_join_to_the_nearest_number(rng: np.random.Generator, window: tuple[int, int]) -> None:
    matrix = random_digits(rng, 3000, window[0] - window[1] + 1)
    assert_same_bits(join_digits(Digits(matrix=matrix, window=DigitWindow(*window), num_cut=0)), spelled(matrix, window[1]))


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


@pytest.mark.parametrize("make", [money, lambda rng, size: rng.integers(-(10**9), 10**9, size)], ids=["money", "integers"])
def test_plain_columns_come_back_through_the_plain_window(rng: np.random.Generator, make: Any) -> None:
    values = make(rng, 5000)
    digits = split_digits(values)
    assert digits.num_cut == 0
    np.testing.assert_array_equal(join_digits(digits), values)


@pytest.mark.parametrize("window", [(49, 30), (18, -8), (-15, -20)])
def test_no_digit_at_all_is_zero(window: tuple[int, int]) -> None:
    matrix = np.zeros((2, 3 + window[0] - window[1]), dtype=np.int8)
    matrix[1, 1] = 1
    assert str(join_digits(Digits(matrix=matrix, window=DigitWindow(*window), num_cut=0)).tolist()) == "[0.0, -0.0]"


@pytest.mark.parametrize(("row", "column", "value"), [(1, 0, 2), (0, 1, -1), (1, 5, 10), (0, 2, -128)])
def test_an_entry_that_is_not_a_digit_is_named(row: int, column: int, value: int) -> None:
    digits = split_digits([1.5, 2.5])
    digits.matrix[row, column] = value  # type: ignore[index]
    with pytest.raises(BadValueError, match=f"column '{digits.columns[column]}' holds {value} in row {row + 1}"):
        join_digits(digits)


@pytest.mark.parametrize(
    "matrix", [np.zeros((2, 28), dtype=np.int8), np.zeros((2, 29), dtype=np.int16), np.zeros(29, dtype=np.int8)]
)
def test_a_matrix_that_does_not_fit_its_window_is_refused(matrix: Any) -> None:
    with pytest.raises(OptionError, match=r"needs int8 \[rows, 29\]"):
        join_digits(Digits(matrix=matrix, window=DigitWindow(), num_cut=0))
