"""Codes of mostlyai-engine, without its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stoker._types import Array
from stoker_recipes.tabular.compat.codes import codes_of_column, encode_values, relative_parts
from stoker_recipes.tabular.compat.statistics import part_of_column, reduce_column
from stoker_recipes.tabular.values import read_values

US = pa.timestamp("us")


def fitted(kind: str, column: pa.Array, starts: Array | None = None) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The statistics that keep everything, and the codes of the column."""
    rows = np.arange(len(column))
    starts = rows if starts is None else starts
    entry = reduce_column(kind, [part_of_column(kind, column, starts)], protect=False)
    codes = codes_of_column("x", pa.chunked_array([column]), entry, rows, starts)
    assert (codes >= 0).all()
    assert (codes < list(entry["cardinalities"].values())).all()
    return entry, dict(zip(entry["cardinalities"], codes.T.tolist(), strict=True))


def dates(*texts: str | None) -> pa.Array:
    return pa.array([None if text is None else pd.Timestamp(text) for text in texts], US)


@pytest.mark.promise("P11")
def test_gaps_of_hours_stay_where_all_sequences_begin_at_midnight() -> None:
    """mostlyai-engine asks the first dates alone whether there are hours: gaps of 36 h come back as 24 h."""
    column = dates("2021-01-01", "2021-01-02 12:00", "2021-01-04", "2021-03-01", "2021-03-02 12:00")
    entry, codes = fitted("TABULAR_DATETIME_RELATIVE", column, np.array([0, 3]))
    low = entry["min_values"]
    hours = [
        24 * (day + low["itt_day"]) + hour + low["itt_hour"] for day, hour in zip(codes["itt_day"], codes["itt_hour"], strict=True)
    ]
    assert [hours[row] for row in (1, 2, 4)] == [36, 36, 36]
    assert "itt_hour" not in fitted("TABULAR_DATETIME_RELATIVE", dates("2021-01-01", "2021-01-02", "2021-01-09"), np.array([0]))[1]


@pytest.mark.promise("P11")
def test_a_missing_date_takes_nothing_from_the_next_subject() -> None:
    """mostlyai-engine fills backwards over the whole column."""
    column = dates(None, None, "2030-05-05", None, "2030-05-07", "2021-01-01")
    parts = relative_parts(read_values("x", column), np.array([0, 2, 5]))
    assert parts["start_year"].tolist() == [2021, 2021, 2030, 2030, 2030, 2021]  # the first subject has the smallest date of all
    assert parts["itt_day"].tolist() == [0, 0, 0, 0, 2, 0]


@pytest.mark.parametrize(("text", "expected"), [("_RARE_", 3), ("<<NULL>>", 2), ("\x01x", 1), ("unknown", 0)])
def test_reserved_words_are_categories_like_others(text: str, expected: int) -> None:
    entry, _ = fitted("TABULAR_CATEGORICAL", pa.array(["_RARE_", "<<NULL>>", "\x01x"]))
    assert encode_values(entry, read_values("x", pa.array([text])), np.arange(1)).tolist() == [[expected]]
