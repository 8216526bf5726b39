"""The slow, obvious way: sorted lists in plain Python, and values to try."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd


def as_json(analysis: dict[str, Any]) -> Any:
    """An analysis as the engine writes it: keys of counts are texts."""
    texts = {key: {str(k): v for k, v in value.items()} if isinstance(value, dict) else value for key, value in analysis.items()}
    return json.loads(json.dumps(texts, default=lambda number: number.item()))


def rank_distance(ordered: Any, found: float, position: int) -> int:
    """How far the position asked for is from those at which the value found stands."""
    first, last = int(np.searchsorted(ordered, found, side="left")), int(np.searchsorted(ordered, found, side="right")) - 1
    assert last >= first, f"{found} is none of the values"
    return max(first - position, position - last, 0)


def number_columns(rng: np.random.Generator, size: int) -> dict[str, pd.Series]:  # type: ignore[type-arg]
    """Numbers of all kinds, with and without gaps."""
    bits = rng.integers(0, 2**64 - 1, size, dtype=np.uint64).view(np.float64)
    gaps = rng.random(size) < 0.1
    numbers: dict[str, Any] = {
        "money": np.round(rng.gamma(2, 150, size), 2),
        "normals": rng.normal(size=size),
        "any bits": np.where(np.isfinite(bits), bits, 1.0),
        "tiny": rng.normal(size=size) * 10.0 ** rng.integers(-25, -3, size),
        "huge": rng.normal(size=size) * 10.0 ** rng.integers(15, 60, size),
        "narrow": rng.uniform(100, 101, size),
        "one value": np.full(size, 25.0),
        "float32": rng.normal(size=size).astype(np.float32),
        "whole": rng.integers(0, 100_000, size),
        "few": rng.integers(-3, 40, size),
        "int8": rng.integers(-128, 128, size).astype(np.int8),
        "large": rng.integers(-(2**63), 2**63 - 1, size),
        "uint64": rng.integers(0, 2**64 - 1, size, dtype=np.uint64),
    }
    columns = {name: pd.Series(values, name="x") for name, values in numbers.items()}
    for name in ("money", "normals", "tiny"):
        columns[f"{name} with NaN"] = columns[name].where(~gaps)
    for name in ("whole", "few", "large"):
        columns[f"{name} with gaps"] = columns[name].astype("Int64").where(~gaps)
    columns["Arrow with gaps"] = columns["money"].astype("double[pyarrow]").where(~gaps)
    columns["all missing"] = pd.Series(np.full(7, math.nan), name="x")
    columns["no rows"] = pd.Series(np.empty(0), name="x")
    columns["one row"] = pd.Series([-7.5], name="x")
    return columns
