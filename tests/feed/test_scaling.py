"""Scales: with `compat` what NumPy computes, bit for bit; without it, what a careful reader would expect."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from tests.feed.twin import finite_scale
from tests.harness import num_examples

from stoker.feed.scaling import Scales, series_scales
from stoker.sampling.views import Lengths

Array = npt.NDArray[Any]


def scales_of(series: list[Array], method: Any, *, compat: bool) -> Scales:
    offsets = np.cumsum([0, *map(len, series)])
    lengths = Lengths(num_series=len(series), num_steps=int(offsets[-1]), offsets=offsets)
    return series_scales(np.concatenate(series), lengths, method, compat=compat)


def assert_as_numpy(series: list[Array]) -> None:
    zero, largest = scales_of(series, "zero", compat=True), scales_of(series, "max", compat=True)
    for i, values in enumerate(series):
        with np.errstate(all="ignore"):
            mean, deviation, top = values.mean(), values.std(), np.abs(values).max()
        assert_same_bits(zero.centers[i, 0], mean)
        assert_same_bits(zero.divisors[i, 0], deviation if deviation != 0 else type(deviation)(1))
        assert_same_bits(largest.divisors[i, 0], top if top != 0 else type(top)(1))
        assert largest.centers[i, 0] == 0


def assert_same_bits(found: Any, expected: Any) -> None:
    if math.isnan(expected):  # there are many NaNs, and which of them comes out depends on the processor
        assert math.isnan(found)
    else:
        assert np.asarray(found).tobytes() == np.asarray(expected, dtype=found.dtype).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_statistics_are_those_of_numpy_at_every_length(dtype: str) -> None:
    """NumPy adds up in blocks of 8 and 128 and halves; a sum in any other order has other bits."""
    rng = np.random.default_rng(0)
    lengths = [*range(1, 300), 1000, 1023, 1024, 1025, 4097, 65_537]
    assert_as_numpy([(rng.normal(size=size) * 100 + 3).astype(dtype) for size in lengths])


@settings(max_examples=num_examples(150))
@given(
    length=st.integers(1, 3000),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e5, 1e18]),
    level=st.sampled_from([0.0, 1.0, 1e6]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_statistics_are_those_of_numpy_for_any_values(length: int, seed: int, scale: float, level: float, dtype: str) -> None:
    values = np.random.default_rng(seed).standard_cauchy(length) * scale + level
    assert_as_numpy([values.astype(dtype)])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_odd_values_are_those_of_numpy(dtype: str) -> None:
    top = float(np.finfo(dtype).max)
    odd = [
        [0.1] * 100,
        [0.0] * 9,
        [-0.0],
        [1.0, math.nan, 2.0],
        [math.nan],
        [math.inf, 1.0],
        [math.inf, -math.inf],
        [top, top, top],
        [-top],
        [float(np.finfo(dtype).tiny)] * 3,
    ]
    assert_as_numpy([np.array(values, dtype=dtype) for values in odd])


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint16"])
def test_integers_are_those_of_numpy_and_are_cut(dtype: str) -> None:
    rng = np.random.default_rng(0)
    series = [rng.integers(0, 100, size).astype(dtype) for size in (1, 5, 200)]
    for method in ("zero", "max"):
        scales = scales_of(series, method, compat=True)
        assert scales.truncate
        assert scales.divisors.dtype == np.float64
    assert_as_numpy(series)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("method", ["zero", "max"])
def test_without_compat_the_statistics_are_those_of_the_finite_values(method: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    series = [(rng.normal(size=(size, 2)) * 50).astype(dtype) for size in (1, 2, 9, 0, 500)]
    series[2][3:6, 0] = np.nan, np.inf, -np.inf
    scales = scales_of(series, method, compat=False)
    for i, values in enumerate(series):
        for k in range(2):
            center, divisor = finite_scale(values[:, k], method)
            assert_same_bits(scales.centers[i, k], scales.centers.dtype.type(center))
            assert_same_bits(scales.divisors[i, k], scales.divisors.dtype.type(divisor))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_without_compat_a_constant_series_becomes_zero(dtype: str) -> None:
    """With compat, rounding makes -1 or 1 of it: the deviation of a constant is a rounding error, and not 0."""
    series = [np.full(size, value, dtype=dtype) for size in (1, 7, 1000) for value in (0.1, 1e-4, 1000.7, 0.0, -3.3)]
    scales = scales_of(series, "zero", compat=False)
    assert (scales.divisors == 1).all()
    if dtype == "float32":
        assert (scales_of(series, "zero", compat=True).divisors != 1).any()


def test_float16_is_measured_in_pieces() -> None:
    """It is widened a piece of a million steps at a time; where pieces begin changes nothing."""
    rng = np.random.default_rng(0)
    series = [rng.normal(size=size).astype(np.float16) for size in (600_000, 5, 0, 600_000, 1_200_000, 3)]
    together = scales_of(series, "max", compat=False)
    alone = [scales_of([values], "max", compat=False).divisors[0, 0] for values in series]
    assert together.divisors[:, 0].tolist() == alone
