"""Codes of numbers and categories are those of mostlyai-engine, for the same statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stoker.recipes.tabular.compat_encodings import encoding_of
from stoker.recipes.tabular.values import read_values

pytestmark = pytest.mark.originals
numeric = pytest.importorskip("mostlyai.engine._encoding_types.tabular.numeric")
categorical = pytest.importorskip("mostlyai.engine._encoding_types.tabular.categorical")
domain = pytest.importorskip("mostlyai.engine.domain")

COLUMNS = {
    "money": lambda rng: np.round(rng.lognormal(3, 1, 3000), 2),
    "normal": lambda rng: rng.normal(size=3000),
    "integers": lambda rng: rng.integers(-50, 999, 3000),
    "few": lambda rng: rng.integers(0, 9, 3000),
    "missing": lambda rng: np.where(rng.random(3000) < 0.1, np.nan, np.round(rng.normal(50, 20, 3000), 1)),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("kind", ["discrete", "digit", "binned"])
def test_codes_of_numbers(rng: np.random.Generator, name: str, kind: str) -> None:
    values = pd.Series(COLUMNS[name](rng), name="x")
    keys = pd.Series(np.arange(len(values)), name="id")
    asked = domain.ModelEncodingType(f"TABULAR_NUMERIC_{kind.upper()}")
    partial = numeric.analyze_numeric(values, keys, None, asked)
    stats: dict[str, Any] = numeric.analyze_reduce_numeric([partial], value_protection=True, encoding_type=asked)
    stats["encoding_type"] = asked
    expected = numeric.encode_numeric(values.copy(), stats)
    encoding = encoding_of(stats)
    column = pa.array(values, from_pandas=True)
    if kind == "discrete" and stats["min_decimal"] >= 0:
        column = column.cast(pa.int64())
    found = encoding.encode(read_values("x", column, family="text" if kind == "discrete" else None), np.arange(len(values)))
    assert set(expected.columns) == set(encoding.sizes)
    there = ~values.isna().to_numpy()
    for number, sub in enumerate(encoding.sizes):
        rows = slice(None) if sub in ("nan", "cat", "bin") else there
        assert found[rows, number].tolist() == expected[sub].to_numpy()[rows].astype(np.int64).tolist(), sub
    assert {sub: encoding.sizes[sub] for sub in stats["cardinalities"]} == stats["cardinalities"]


def test_codes_of_categories(rng: np.random.Generator) -> None:
    values = pd.Series(rng.choice(["a", "b", "ä", None, "rare"], 500, p=[0.4, 0.3, 0.2, 0.096, 0.004]), name="x")
    keys = pd.Series(np.arange(500), name="id")
    stats = categorical.analyze_reduce_categorical([categorical.analyze_categorical(values, keys)], value_protection=True)
    stats["encoding_type"] = "TABULAR_CATEGORICAL"
    encoding = encoding_of(stats)
    found = encoding.encode(read_values("x", pa.array(values, from_pandas=True)), np.arange(500))
    assert found[:, 0].tolist() == categorical.encode_categorical(values, stats)["cat"].tolist()
