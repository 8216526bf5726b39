"""Dates: parts, extremes and texts as mostlyai-engine and NumPy have them."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from benchmarks.before.mostlyai_statistics import PARTS, analyze_datetime, split_moments
from hypothesis import given
from tests.recipes.tabular.statistics.twin import as_json

from stoker.errors import BadValueError
from stoker_recipes.tabular import analyze
from stoker_recipes.tabular.statistics.dates import DateColumn, moment_texts, widen_parts

MOMENTS = st.integers(-(2**58), 2**58)


def dates(values: Any, **options: Any) -> DateColumn:
    column = analyze(values.to_frame() if isinstance(values, pd.Series) else {"x": values}, **options)["x"]
    assert isinstance(column, DateColumn)
    return column


def columns(rng: np.random.Generator) -> dict[str, Any]:
    size = 2500
    fine = np.datetime64("1931-05-06T00:00:00", "us") + rng.integers(0, 4 * 10**15, size).astype("m8[us]")
    gaps = rng.random(size) < 0.2
    return {
        "microseconds": pd.Series(fine, name="x"),
        "milliseconds": pd.Series(fine.astype("M8[ms]"), name="x"),
        "seconds": pd.Series(fine.astype("M8[s]"), name="x"),
        "days": pd.Series(fine.astype("M8[D]").astype("M8[s]"), name="x"),
        "nanoseconds": pd.Series(fine.astype("M8[ns]") + rng.integers(0, 999, size).astype("m8[ns]"), name="x"),
        "one day": pd.Series(np.array(["2024-02-29"] * 3, dtype="M8[s]"), name="x"),
        "in a zone": pd.Series(fine, name="x").dt.tz_localize("UTC").dt.tz_convert("Asia/Kathmandu"),
        "with gaps": pd.Series(fine, name="x").mask(gaps),
        "all missing": pd.Series([pd.NaT] * 4, name="x", dtype="datetime64[us]"),
    }


@pytest.mark.promise("P11")
def test_the_same_json_as_the_original(rng: np.random.Generator) -> None:
    for name, values in columns(rng).items():
        expected = analyze_datetime(values)
        found = dates(values).analysis()
        assert list(found) == list(expected)
        assert as_json(found) == as_json(expected), name


@given(st.lists(MOMENTS, min_size=1, max_size=5))
def test_strings_are_those_of_pandas(moments: list[int]) -> None:
    expected = pd.Series(np.array(moments).view("M8[us]")).astype(str).tolist()
    assert moment_texts(np.array(moments)) == expected


@pytest.mark.parametrize("span", [10**3, 10**9, 10**13, 10**17])
def test_ranges_of_parts_though_full_ones_are_skipped(span: int, rng: np.random.Generator) -> None:
    micros = np.sort(rng.integers(-span, span, 50_000))
    least, most = np.full(9, 2**62), np.full(9, -(2**62))
    widen_parts(micros, least, most)
    parts = split_moments(micros.view("M8[us]"))
    assert least.tolist() == [int(parts[part].min()) for part in PARTS]
    assert most.tolist() == [int(parts[part].max()) for part in PARTS]


def test_a_time_that_microseconds_cannot_hold_is_named() -> None:
    with pytest.raises(BadValueError, match="column 'x' holds 9300000000000 s since 1970 near row 1"):
        dates(pa.array([0, 9_300_000_000_000], pa.timestamp("s")))
