"""A small store for the tests of feeds, with every type of number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker import Store

LENGTHS = (5, 0, 9, 1, 3, 0, 14, 2, 7)
NUMBERS = "|b1 |u1 |i1 <u2 <i2 <u4 <i4 <u8 <i8 <f2 <f4 <f8".split()


def numbers(rng: np.random.Generator, dtype: str, *shape: int) -> Any:
    """Values of a type, from all over its range; no NaN, but all else that floats can be."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    values = rng.normal(size=shape).astype(dtype)
    values.reshape(-1)[::13] = -0.0
    return values


def every_number(lengths: Sequence[int] = LENGTHS, *, seed: int = 0) -> Store:
    """A store in memory: a column of every type, some with a width, and some with a value a series."""
    rng = np.random.default_rng(seed)
    steps, series = sum(lengths), len(lengths)
    columns: dict[str, Any] = {f"x{dtype[1:]}": numbers(rng, dtype, steps) for dtype in NUMBERS}
    columns |= {f"w{dtype[1:]}": numbers(rng, dtype, steps, 3) for dtype in ("|b1", "<u2", "<f2", "<f4", "<f8")}
    columns |= {f"s{dtype[1:]}": numbers(rng, dtype, series) for dtype in ("|b1", "<u4", "<i8", "<f4", "<f8")}
    columns["sw"] = numbers(rng, "<f4", series, 2)
    return Store.from_arrays(lengths=lengths, **columns)
