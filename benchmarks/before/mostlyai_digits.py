"""How mostlyai-engine splits numbers into digits today: each value is printed, and the texts are cut into columns.

Rewritten after `split_sub_columns_digit` of release 2.5.0, with the same steps of pandas and the same result; only what it does
for columns without any value is left out of the comparison (it forgets the index there). `arithmetic_digits` is the repair that
is in circulation: fast to write, and wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

BEFORE_POINT, BEHIND_POINT = 50, 20


def print_number(value: float) -> str:
    """A number at full length, padded so that each decimal place stands at the same position."""
    return np.format_float_positional(value, unique=True, precision=BEHIND_POINT, pad_left=BEFORE_POINT, pad_right=BEHIND_POINT)


def split_printed(values: pd.Series[Any], max_decimal: int = 18, min_decimal: int = -8) -> pd.DataFrame:
    """One int64 column a decimal place, behind `nan` and `neg`."""
    if not (pd.api.types.is_integer_dtype(values) or pd.api.types.is_float_dtype(values)):
        raise ValueError("expected to be numeric")
    names = [f"E{place}" for place in range(max_decimal, min_decimal - 1, -1)]
    missing = values.isna()
    if missing.all():
        frame = pd.DataFrame({name: [0] * len(values) for name in names})
    else:
        values = values.astype("float64")
        missing = values.isna()
        texts = values.abs().apply(print_number).astype("string[pyarrow]").replace("nan", pd.NA)
        texts = texts.str.replace(" ", "0").str.replace(".", "", n=1, regex=False)
        texts = texts.str[BEFORE_POINT - 1 - max_decimal : BEFORE_POINT - min_decimal]
        pieces = texts.str.split("", n=len(names) + 1, expand=True)  # an empty text comes before the first and behind the last
        frame = pieces.drop(columns=[0, len(names) + 1]).fillna("0")
        frame.columns = pd.Index(names)
    frame.insert(0, "nan", missing)
    frame.insert(1, "neg", ~missing & (values < 0))
    return frame.astype("int")


def arithmetic_digits(values: npt.NDArray[np.float64], max_decimal: int = 18, min_decimal: int = -8) -> npt.NDArray[np.int8]:
    """Digits by division, [rows, places]: what most people write, though 19.99 then reads as 19.98999009."""
    powers = [float(f"1e{place}") for place in range(max_decimal, min_decimal - 1, -1)]
    return (np.floor(np.abs(values)[:, None] / powers) % 10).astype(np.int8)
