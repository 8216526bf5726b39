"""mostlyai-engine itself, where it is installed (`make test-originals`): its functions, and its JSON of one column."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("mostlyai.engine", reason="mostlyai-engine is not installed: make test-originals", exc_type=ImportError)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mostlyai.engine import _common, analysis
    from mostlyai.engine._encoding_types.tabular.numeric import split_sub_columns_digit
    from mostlyai.engine._tabular import encoding
    from mostlyai.engine._tabular.training import BatchCollator
    from mostlyai.engine.domain import ModelEncodingType

__all__ = ["BatchCollator", "as_written", "encoding", "numbers_of_text", "original", "split_sub_columns_digit"]

KINDS = {
    "auto": ModelEncodingType.tabular_numeric_auto,
    "discrete": ModelEncodingType.tabular_numeric_discrete,
    "binned": ModelEncodingType.tabular_numeric_binned,
    "digit": ModelEncodingType.tabular_numeric_digit,
    "category": ModelEncodingType.tabular_categorical,
    "date": ModelEncodingType.tabular_datetime,
}


def as_written(stats: Any) -> str:
    """As the engine writes it; values of NumPy on which its writing would fail (the int8 of truth values) are made plain."""
    plain = {
        name: {key.item() if isinstance(key, np.generic) else key: one for key, one in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in _common.cast_numpy_keys_to_python(stats).items()
    }
    return json.dumps(plain, ensure_ascii=False, default=lambda value: value.item())


def original(values: pd.Series, kind: str, keys: Any = None) -> str:
    """What the engine says of a column; `keys` are its root keys."""
    roots = None if keys is None else pd.Series(keys, index=values.index, name="__rkey")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stats = analysis._analyze_col(values=values, encoding_type=KINDS[kind], root_keys=roots, parent_pid=None)
    return as_written({name: value for name, value in stats.items() if name != "encoding_type"})


def numbers_of_text(texts: list[Any]) -> Any:
    """A column of texts as the engine takes it for numbers."""
    return _common.safe_convert_numeric(pd.Series(texts, dtype=object)).to_numpy(dtype=np.float64)
