"""The slow, obvious way to digits: print each number, and read the places off the text. And numbers that are hard to print."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

WINDOWS = [(18, -8), (49, -20), (9, -2), (5, 2), (-3, -20), (0, 0), (30, -15), (49, 49), (-20, -20)]


def printed(value: float) -> str:
    """70 digits: places 49 to -20."""
    text = np.format_float_positional(abs(value), unique=True, pad_left=50, pad_right=20, precision=20)
    return text.replace(" ", "0").replace(".", "", 1)[:70]


def printed_digits(values: Array, max_decimal: int = 18, min_decimal: int = -8) -> npt.NDArray[np.int8]:
    """int8 [rows, 2 + places], as `Digits.matrix`."""
    numbers = values.astype(np.float64)
    missing = np.isnan(numbers)
    texts = "".join("0" * 70 if none else printed(value) for value, none in zip(numbers.tolist(), missing.tolist(), strict=True))
    digits = (np.frombuffer(texts.encode(), dtype=np.uint8) - ord("0")).reshape(-1, 70)[:, 49 - max_decimal : 50 - min_decimal]
    return np.column_stack([missing, numbers < 0, digits]).astype(np.int8)


def money(rng: np.random.Generator, size: int) -> Array:
    return np.round(rng.lognormal(4, 2, size), 2)


def hard_numbers() -> Array:
    """Every power of two and of ten with its neighbours, ties at 1e-20, and numbers just beside a place's end."""
    powers = np.concatenate([2.0 ** np.arange(-1074, 1024), [float(f"1e{p}") for p in range(-323, 309)]])
    ties = np.arange(200) * 5e-21
    edges = np.concatenate(
        [np.arange(1000) * 1e-8, np.arange(1, 1000) * 1e-20, 1e7 + np.arange(100) / 7, 2.0**53 + np.arange(-9, 9)]
    )
    some = np.concatenate([powers, ties, edges, [0.0, 19.99, 0.3, 1e22, 9.99999999999999e-9, 9.99e-21, 2.5e-20, 3.5e-20, 5e-324]])
    with np.errstate(under="ignore"):
        around = np.concatenate([some, np.nextafter(some, 0), np.nextafter(some, 1e308)])
    return np.concatenate([around, -around, [np.nan, np.finfo(float).max]])


def mixed_numbers(rng: np.random.Generator, size: int) -> Array:
    """Numbers of all magnitudes and makes, some of them missing, in random order."""
    each = size // 16 + 1
    made = [
        rng.integers(0, 2047 << 52, each).view(np.float64),  # any bits
        money(rng, each),
        rng.normal(size=each),
        rng.normal(size=each).astype(np.float32).astype(np.float64),
        np.exp(rng.uniform(-60, 130, each)),
        rng.integers(0, 10**18, each).astype(np.float64),
        rng.integers(0, 10**6, each).astype(np.float64),
        np.round(rng.normal(size=each) * 1e6, 5),
        np.nextafter(10.0 ** rng.integers(-25, 60, each), rng.choice([0.0, 1e308], each)),
        np.nextafter(2.0 ** rng.integers(-80, 200, each), rng.choice([0.0, 1e308], each)),
        rng.integers(0, 2**53, each) / 2.0 ** rng.integers(0, 90, each),
        rng.integers(0, 10**6, each) * 1e-8,
        np.nextafter(rng.integers(0, 10**6, each) * 1e-8, 1),
        rng.integers(0, 10**4, each) * 5e-21,
        rng.integers(0, 10**16, each) / 10.0 ** rng.integers(0, 22, each),
        rng.integers(1, 2**52, each).view(np.float64),  # subnormal
    ]
    values = rng.permutation(np.concatenate(made))[:size]
    values[~np.isfinite(values) | (rng.random(size) < 0.02)] = np.nan
    return values * rng.choice([-1.0, 1.0], size)
