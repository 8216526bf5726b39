"""Kernels that gather batches, each beside a loop of plain Python, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stoker.feed.padding import cast_spans, clear_tails, copy_spans, mark_observed, mark_rows, scale_rows, scale_spans

Array = npt.NDArray[Any]
SPANS = [(9, 600, 40), (33, 5, 0), (1, 1000, 2000), (20, 40, 21), (8, 3, 0)]
"""Number of spans, the longest, and how many steps are at least in each: short ones, long ones, some that are empty."""


def spans(rng: np.random.Generator, number: int, most: int, least: int) -> tuple[Array, Array, Array, int]:
    """Starts and counts of spans, where each goes, and the size of the target."""
    counts = rng.integers(least, least + most, number)
    starts = rng.integers(0, 500, number)
    order = rng.permutation(number)
    places = np.zeros(number, dtype=np.int64)
    places[order] = np.cumsum(np.r_[3, counts[order][:-1] + 1])
    return starts, counts, places, int((places + counts).max(initial=0)) + 2


def read_only(values: Array) -> Array:
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(("number", "most", "least"), SPANS)
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("unit", [1, 12])
def test_spans_are_copied(rng: np.random.Generator, number: int, most: int, least: int, streaming: bool, unit: int) -> None:
    starts, counts, places, size = spans(rng, number, most, least)
    source = read_only(rng.integers(0, 256, 4000 * unit, dtype=np.uint8))
    target = np.full(size * unit, 7, dtype=np.uint8)
    expected = target.copy()
    for start, count, place in zip(starts, counts, places, strict=True):
        expected[place * unit : (place + count) * unit] = source[start * unit : (start + count) * unit]
    copy_spans(source, starts, counts, target, places, unit, streaming)
    assert target.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("number", "most", "least"), SPANS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("streaming", [True, False])
def test_rows_are_scaled(rng: np.random.Generator, number: int, most: int, least: int, dtype: str, streaming: bool) -> None:
    starts, counts, places, size = spans(rng, number, most, least)
    source = read_only(rng.normal(size=4000).astype(dtype))
    series = rng.integers(0, 3, number)
    centers, divisors = rng.normal(size=3).astype(dtype), rng.uniform(0.5, 2, 3).astype(dtype)
    target = np.zeros(size, dtype=dtype)
    expected = target.copy()
    for start, count, place, one in zip(starts, counts, places, series, strict=True):
        expected[place : place + count] = (source[start : start + count] - centers[one]) / divisors[one]
    assert not scale_rows(source, starts, counts, series, centers, divisors, target, places, streaming)
    assert target.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("dtype", "to"), [("float64", "float32"), ("int32", "float32"), ("float32", "float32")])
@pytest.mark.parametrize("width", [1, 3])
def test_spans_are_scaled_and_cast(rng: np.random.Generator, width: int, dtype: str, to: str) -> None:
    starts, counts, places, size = spans(rng, 20, 300, 0)
    source = read_only((100 * rng.normal(size=4000 * width)).astype(dtype))
    series = rng.integers(0, 3, len(starts))
    own = "float64" if dtype == "int32" else dtype  # the arithmetic of integers is that of float64
    centers, divisors = rng.normal(size=(3, width)).astype(own), rng.uniform(0.5, 2, (3, width)).astype(own)
    target = np.zeros(size * width, dtype=to)
    expected = target.copy()
    for start, count, place, one in zip(starts, counts, places, series, strict=True):
        for step in range(count):
            for k in range(width):
                value = (source[(start + step) * width + k].astype(own) - centers[one, k]) / divisors[one, k]
                expected[(place + step) * width + k] = value
    assert not scale_spans(source, starts * width, counts * width, series, centers, divisors, target, places * width)
    assert target.tobytes() == expected.tobytes()


def test_spans_are_cast_and_overflow_is_reported(rng: np.random.Generator) -> None:
    starts, counts, places, size = spans(rng, 20, 300, 0)
    source = rng.normal(size=4000)
    target = np.zeros(size, dtype=np.float32)
    expected = target.copy()
    for start, count, place in zip(starts, counts, places, strict=True):
        expected[place : place + count] = source[start : start + count].astype(np.float32)
    assert not cast_spans(read_only(source.copy()), starts, counts, target, places)
    assert target.tobytes() == expected.tobytes()
    source[starts[0]] = 1e300
    counts[0] = max(counts[0], 1)
    assert cast_spans(read_only(source), starts[:1], counts[:1], target, places[:1] * 0)
    assert np.isinf(target[0])


def test_tails_are_cleared_and_steps_marked(rng: np.random.Generator) -> None:
    counts = np.array([0, 3, 5, 1])
    target = rng.integers(1, 256, 4 * 5 * 8, dtype=np.uint8)
    expected = target.reshape(4, 5, 8).copy()
    marks = np.full((4, 3), 9, dtype=np.uint8)
    for row, count in enumerate(counts):
        expected[row, count:] = 0
    clear_tails(target, counts, 5, 8)
    assert target.tobytes() == expected.tobytes()
    mark_rows(counts, 1, marks)  # of the steps 1, 2 and 3
    assert marks.tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_missing_values_become_zero_and_are_marked(dtype: str) -> None:
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    values = np.array([[1.5, np.nan, -np.inf], [-0.0, np.inf, -np.nan]], dtype=dtype)
    values.reshape(-1).view(bits)[1] |= 1  # a NaN with a payload
    before, marks = values.copy(), np.zeros((2, 3), dtype=np.bool_)
    mark_observed(values, dtype, marks)
    assert marks.tolist() == (~np.isnan(before)).tolist()
    assert values.tobytes() == np.where(np.isnan(before), np.zeros((), dtype), before).tobytes()
