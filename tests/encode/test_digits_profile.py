"""A profile says of a column's digits what can be read off them, and profiles of parts merge into that of the whole."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from tests.encode.digits_twin import WINDOWS, mixed_numbers, money, printed_digits

from stoker.encode import profile_digits, split_digits
from stoker.encode.kernels import BLOCK
from stoker.errors import BadValueError, OptionError


def read_off(values: Any, window: tuple[int, int]) -> dict[str, Any]:
    """The slow way."""
    matrix = printed_digits(values, *window)
    there = matrix[matrix[:, 0] == 0, 2:]
    nothing = (0,) * (window[0] - window[1] + 1)
    return {
        "num_rows": len(values),
        "num_null": int(matrix[:, 0].sum()),
        "num_negative": int(matrix[:, 1].sum()),
        "min_digits": tuple(there.min(axis=0).tolist()) if len(there) else nothing,
        "max_digits": tuple(there.max(axis=0).tolist()) if len(there) else nothing,
    }


def columns(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "mixed": mixed_numbers(rng, 3 * BLOCK + 9),
        "money": np.concatenate([[np.nan], -money(rng, BLOCK)]),
        "narrow": rng.integers(531, 539, BLOCK + 1) + 0.25,
        "a block without values": np.concatenate([np.full(BLOCK, np.nan), [777.0]]),
        "no value": np.full(5, np.nan),
        "empty": np.empty(0),
        "one": np.array([111.0]),
    }


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_profile_is_what_can_be_read_off_the_digits(rng: np.random.Generator, window: tuple[int, int]) -> None:
    for name, values in columns(rng).items():
        found = profile_digits(values, max_decimal=window[0], min_decimal=window[1])
        assert {key: getattr(found, key) for key in read_off(values, window)} == read_off(values, window), name
        assert found.num_cut == split_digits(values, max_decimal=window[0], min_decimal=window[1]).num_cut


def test_profiles_of_parts_merge_into_that_of_the_whole(rng: np.random.Generator) -> None:
    for values in columns(rng).values():
        for cut in {0, len(values) // 3, len(values)}:
            assert profile_digits(values[:cut]).merge(profile_digits(values[cut:])) == profile_digits(values)


def test_profiles_of_different_places_do_not_merge() -> None:
    with pytest.raises(OptionError, match="cannot be merged"):
        profile_digits([1.0]).merge(profile_digits([1.0], max_decimal=3))


def test_used_places_are_those_with_a_digit_that_is_not_zero() -> None:
    assert profile_digits([100.0, 0.25]).used_places == [2, -1, -2]


def test_a_profile_names_what_has_no_digits() -> None:
    with pytest.raises(BadValueError, match="column 'price' holds inf"):
        profile_digits([1.0, float("inf")], name="price")


def test_a_profile_takes_no_memory_that_grows_with_the_column() -> None:
    values = np.arange(400_000, dtype=np.int32)
    profile_digits(values[:10])
    tracemalloc.start()
    profile_digits(values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000 < 4 * len(values)
