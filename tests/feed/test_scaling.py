"""Scales: the statistics of the finite values of each series, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.feed.twin import finite_scale

from stoker.feed.scaling import Scales, series_scales
from stoker.sampling.views import Lengths

Array = npt.NDArray[Any]


def scales_of(series: list[Array], method: Any) -> Scales:
    offsets = np.cumsum([0, *map(len, series)])
    lengths = Lengths(num_series=len(series), num_steps=int(offsets[-1]), offsets=offsets)
    return series_scales(np.concatenate(series), lengths, method)


def assert_same_bits(found: Any, expected: Any) -> None:
    if math.isnan(expected):  # there are many NaNs, and which of them comes out depends on the processor
        assert math.isnan(found)
    else:
        assert np.asarray(found).tobytes() == np.asarray(expected, dtype=found.dtype).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("method", ["zero", "max"])
def test_the_statistics_are_those_of_the_finite_values(method: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    series = [(rng.normal(size=(size, 2)) * 50).astype(dtype) for size in (1, 2, 9, 0, 500)]
    series[2][3:6, 0] = np.nan, np.inf, -np.inf
    scales = scales_of(series, method)
    for i, values in enumerate(series):
        for k in range(2):
            center, divisor = finite_scale(values[:, k], method)
            assert_same_bits(scales.centers[i, k], scales.centers.dtype.type(center))
            assert_same_bits(scales.divisors[i, k], scales.divisors.dtype.type(divisor))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_constant_series_becomes_zero(dtype: str) -> None:
    """Its deviation is a rounding error; dividing by that would make noise of it, as NumPy's does."""
    series = [np.full(size, value, dtype=dtype) for size in (1, 7, 1000) for value in (0.1, 1e-4, 1000.7, 0.0, -3.3)]
    scales = scales_of(series, "zero")
    assert (scales.divisors == 1).all()
    if dtype == "float32":
        assert any(values.std() != 0 for values in series), "the fault that this is about"


def test_float16_is_measured_in_pieces() -> None:
    """It is widened a piece of a million steps at a time; where pieces begin changes nothing."""
    rng = np.random.default_rng(0)
    series = [rng.normal(size=size).astype(np.float16) for size in (600_000, 5, 0, 600_000, 1_200_000, 3)]
    together = scales_of(series, "max")
    alone = [scales_of([values], "max").divisors[0, 0] for values in series]
    assert together.divisors[:, 0].tolist() == alone
