"""Dates and categories in the classes of mostlyai-engine: values come back, and its errors do not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stoker._types import Array
from stoker.errors import OptionError
from stoker.recipes.tabular.compat_encodings import DatetimeParts, RelativeParts, encoding_of, relative_parts
from stoker.recipes.tabular.compat_statistics import part_of_column, reduce_column
from stoker.recipes.tabular.compat_workspace import values_of
from stoker.recipes.tabular.values import read_values

US = pa.timestamp("us")


def fitted(kind: str, column: pa.Array, starts: Array | None = None) -> tuple[object, Array, pa.Array]:
    """An encoding that keeps everything, the codes of the column, and the column of the codes."""
    starts = np.arange(len(column)) if starts is None else starts
    entry = reduce_column(kind, [part_of_column(kind, column, starts)], protect=False)
    encoding = encoding_of(entry)
    codes = encoding.encode(values_of("x", column, kind), starts)
    assert dict(encoding.sizes) == entry["cardinalities"]
    assert (codes >= 0).all()
    assert (codes < list(encoding.sizes.values())).all()
    return encoding, codes, encoding.decode(codes, column.type, starts, np.zeros(len(column)))


def dates(*texts: str | None) -> pa.Array:
    return pa.array([None if text is None else pd.Timestamp(text) for text in texts], US)


def test_dates_come_back_down_to_milliseconds() -> None:
    column = dates("2020-02-29 23:59:59.987", None, "1969-12-31 00:00:00", "2100-01-01 12:00:00.001")
    encoding, codes, back = fitted("TABULAR_DATETIME", column)
    assert isinstance(encoding, DatetimeParts)
    assert list(encoding.sizes)[-3:] == ["ms_E2", "ms_E1", "ms_E0"]
    assert codes[:, 0].tolist() == [0, 1, 0, 0]
    assert back.equals(column)


def test_a_day_beyond_its_month_and_a_date_beyond_the_range_are_clipped() -> None:
    column = dates("2021-01-31", "2021-02-01", "2021-04-30")
    encoding, codes, _ = fitted("TABULAR_DATETIME", column)
    assert list(encoding.sizes) == ["year", "month", "day"]  # type: ignore[attr-defined]
    mixed = np.array([codes[0], codes[1], codes[0]])
    mixed[0, 1], mixed[2, 1] = 1, 3  # 31 February, 31 April
    back = encoding.decode(mixed, US, np.arange(3), np.zeros(3))  # type: ignore[attr-defined]
    assert back.to_pylist() == [pd.Timestamp("2021-02-28"), pd.Timestamp("2021-02-01"), pd.Timestamp("2021-04-30")]


def test_dates_without_a_range_are_all_missing() -> None:
    entry = reduce_column(
        "TABULAR_DATETIME", [part_of_column("TABULAR_DATETIME", dates("2021-01-31", None), np.arange(2))], protect=True
    )
    assert entry["min"] is None
    encoding = encoding_of(entry)
    assert encoding.decode(np.zeros((2, len(encoding.sizes)), np.int64), US, np.arange(2), np.zeros(2)).null_count == 2


def test_gaps_of_hours_stay_where_all_sequences_begin_at_midnight() -> None:
    """mostlyai-engine asks the first dates alone whether there are hours: gaps of 36 h come back as 24 h."""
    column = dates("2021-01-01", "2021-01-02 12:00", "2021-01-04", "2021-03-01", "2021-03-02 12:00")
    encoding, _, back = fitted("TABULAR_DATETIME_RELATIVE", column, np.array([0, 3]))
    assert isinstance(encoding, RelativeParts)
    assert "itt_hour" in encoding.sizes
    assert back.equals(column)
    whole_days = dates("2021-01-01", "2021-01-02", "2021-01-09")
    encoding, _, back = fitted("TABULAR_DATETIME_RELATIVE", whole_days, np.array([0]))
    assert "itt_hour" not in encoding.sizes  # type: ignore[attr-defined]
    assert back.equals(whole_days)


def test_a_missing_date_takes_nothing_from_the_next_subject() -> None:
    """mostlyai-engine fills backwards over the whole column."""
    column = dates(None, None, "2030-05-05", None, "2030-05-07", "2021-01-01")
    found = relative_parts(read_values("x", column), np.array([0, 2, 5]))
    assert found["start_year"].tolist() == [2021, 2021, 2030, 2030, 2030, 2021]  # the first subject has the smallest date of all
    assert found["itt_day"].tolist() == [0, 0, 0, 0, 2, 0]
    _, _, back = fitted("TABULAR_DATETIME_RELATIVE", column, np.array([0, 2, 5]))
    assert back.equals(column)


def test_sequences_do_not_restart(rng: np.random.Generator) -> None:
    """mostlyai-engine forgets the last dates at every 500,000 rows. Here a subject is decoded at once, also with gaps below zero."""
    lengths = rng.integers(1, 40, 200)
    starts = np.cumsum(lengths) - lengths
    seconds = rng.integers(-(10**7), 10**8, lengths.sum()) * 10**6
    column = pa.array(1_600_000_000_000_000 + seconds).cast(US)
    encoding, codes, back = fitted("TABULAR_DATETIME_RELATIVE", column, starts)
    assert "itt_neg" in encoding.sizes  # type: ignore[attr-defined]
    assert back.equals(column)
    first = starts[100]  # one half after the other gives the same
    halves = [
        encoding.decode(part, US, own, np.zeros(len(part)))  # type: ignore[attr-defined]
        for part, own in ((codes[:first], starts[:100]), (codes[first:], starts[100:] - first))
    ]
    assert pa.concat_arrays(halves).equals(column)


@pytest.mark.parametrize(("text", "expected"), [("_RARE_", 3), ("<<NULL>>", 2), ("\x01x", 1), ("unknown", 0)])
def test_reserved_words_are_categories_like_others(text: str, expected: int) -> None:
    column = pa.array(["_RARE_", "<<NULL>>", "\x01x"])
    encoding, _, back = fitted("TABULAR_CATEGORICAL", column)
    assert back.equals(column)
    assert encoding.encode(read_values("x", pa.array([text])), np.arange(1)).tolist() == [[expected]]  # type: ignore[attr-defined]


def test_an_unknown_kind_is_refused() -> None:
    for kind in ("LANGUAGE_TEXT", "TABULAR_LAT_LONG"):
        with pytest.raises(OptionError, match=f"the column has the encoding {kind}; expected one of TABULAR_CATEGORICAL, "):
            encoding_of({"encoding_type": kind})
