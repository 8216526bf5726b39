"""Keys are in the order of their numbers, and give them back."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from stoker.encode.statistics.quantiles import Form, decode_floats, decode_keys, float_keys, whole_keys

FLOATS = st.floats(width=64)


@given(st.lists(FLOATS, min_size=1))
def test_floats_and_back(values: list[float]) -> None:
    keys, num_nan, num_infinite, first = float_keys(np.array(values))
    finite = [value for value in values if math.isfinite(value)]
    assert decode_keys(keys, "float").tobytes() == np.array(finite).tobytes()
    assert num_nan == sum(map(math.isnan, values))
    assert num_infinite == sum(map(math.isinf, values))
    assert first == next((i for i, value in enumerate(values) if math.isinf(value)), -1)


@given(FLOATS, FLOATS)
def test_keys_of_floats_are_ordered_and_minus_zero_comes_first(one: float, other: float) -> None:
    if not (math.isfinite(one) and math.isfinite(other)):
        return
    keys = float_keys(np.array([one, other]))[0].tolist()
    order = (one, math.copysign(1, one)) if one == other == 0 else (one, 0)
    assert (keys[0] < keys[1]) == (order < ((other, math.copysign(1, other)) if one == other == 0 else (other, 0)))


@pytest.mark.parametrize(("form", "dtype"), [("int", np.int64), ("uint", np.uint64)])
def test_integers_and_back_in_order(form: Form, dtype: Any, rng: np.random.Generator) -> None:
    bounds = np.iinfo(dtype)
    values = np.sort(rng.integers(bounds.min, bounds.max, 1000, dtype=dtype, endpoint=True))
    values[0], values[-1] = bounds.min, bounds.max
    keys = whole_keys(values)
    assert (keys[1:] >= keys[:-1]).all()
    assert (decode_keys(keys, form) == values).all()
    assert (decode_floats(keys, form) == values.astype(np.float64)).all()


def test_values_that_are_strided_or_backwards_are_read_as_they_are() -> None:
    values = np.arange(10.0)[::-2]
    assert decode_keys(float_keys(values)[0], "float").tolist() == values.tolist()
    swapped = values.astype(">f8").astype("<f8")
    assert decode_keys(float_keys(swapped)[0], "float").tolist() == values.tolist()
