"""Counts of texts: those of mostlyai-engine where all are kept, and within the stated error where they are not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from benchmarks.before.mostlyai_statistics import analyze_categorical
from tests.recipes.tabular.statistics.twin import as_json

from stoker.errors import OptionError
from stoker_recipes.tabular import analyze
from stoker_recipes.tabular.statistics import gather
from stoker_recipes.tabular.statistics.gather import CategoryColumn

WORDS = ["b", "a", "_RARE_", "<<NULL>>", "\x01", "\x01_RARE_", "", " ", "é", "Z", "🦊", "a\x00b", None]


def category(values: Any, **options: Any) -> CategoryColumn:
    column = analyze(values if isinstance(values, pd.DataFrame | pl.DataFrame) else {"x": values}, **options)["x"]
    assert isinstance(column, CategoryColumn)
    return column


def frames(rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    texts = rng.choice(np.array(WORDS, dtype=object), 2000)
    return {
        "texts": pd.DataFrame({"x": texts}),
        "categories": pd.DataFrame({"x": pd.Categorical(texts, categories=[*filter(None, WORDS), "", "unused"])}),
        "categories of numbers": pd.DataFrame({"x": pd.Categorical(rng.integers(0, 9, 2000))}),
        "truth values": pd.DataFrame({"x": rng.random(2000) < 0.3}),
        "truth values with gaps": pd.DataFrame({"x": pd.array(rng.choice([True, False, None], 2000), dtype="boolean")}),
    }


@pytest.mark.promise("P11")
def test_the_same_json_as_the_original(rng: np.random.Generator) -> None:
    for name, frame in frames(rng).items():
        expected = analyze_categorical(frame["x"])
        found = category(frame).analysis()
        assert as_json(found) == as_json(expected), name
        assert list(found["cnt_values"]) == list(expected["cnt_values"]), name


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_strings_are_the_same_however_they_are_stored(kind: pa.DataType) -> None:
    found = category(pa.array(["b", "a", None, "b"], pa.string()).cast(kind))
    assert found.cnt_values == {"a": 1, "b": 2}
    assert (found.num_null, found.num_distinct, found.count_error, found.type) == (1, 2, 0, "string")
    assert category(pl.DataFrame({"x": pl.Series(["b", "a", None, "b"], dtype=pl.Categorical)})) == found


@pytest.mark.parametrize("key", [None, "who"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_floats_are_strings_of_their_own_type_and_nan_is_missing(dtype: Any, key: str | None) -> None:
    values = np.array([0.1, np.nan, -0.0, 0.0, 0.1, np.inf, 1e4], dtype=dtype)
    expected = analyze_categorical(pd.Series(values))
    assert "nan" not in expected["cnt_values"]
    owners = {} if key is None else {"who": np.arange(7)}
    of_polars = [] if dtype == np.float16 else [pl.Series(values)]
    for source in (values, pd.Series(values), pa.array(values), *of_polars):
        found: Any = analyze({"x": source, **owners}, kinds={"x": "category"}, key=key)["x"]
        assert as_json(found.analysis()) == as_json(expected)
        assert found.num_null == 1


@pytest.mark.promise("P11", control=True)
@pytest.mark.parametrize("key", [None, "who"])
def test_negative_control_floats_as_arrow_has_them_count_nan_and_join_zeros(
    monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.setattr(gather, "texts_of_floats", lambda values: values)
    values = np.array([0.1, np.nan, -0.0, 0.0], dtype=np.float32)
    owners = {} if key is None else {"who": np.arange(4)}
    found: Any = analyze({"x": values, **owners}, kinds={"x": "category"}, key=key)["x"]
    assert "nan" in found.cnt_values
    assert "0.10000000149011612" in found.cnt_values


@pytest.mark.promise("P11")
@pytest.mark.parametrize("kept", [1, 5, 50])
@pytest.mark.parametrize("pieces", [1, 7, 300])
def test_too_many_strings_are_counted_within_the_stated_error(kept: int, pieces: int, rng: np.random.Generator) -> None:
    words = np.array([f"w{number}" for number in rng.zipf(1.5, 20_000) % 2000])
    found = category(pa.chunked_array([pa.array(part.tolist()) for part in np.array_split(words, pieces)]), categories=kept)
    true = Counter(words.tolist())
    assert found.num_distinct is None
    assert 0 < found.count_error <= len(words) / (kept + 1)
    assert len(found.cnt_values) <= kept
    for word, count in true.items():
        assert count - found.count_error <= found.cnt_values.get(word, 0) <= count
    with pytest.raises(OptionError, match="column 'x' has more different strings than were kept"):
        found.analysis()


@pytest.mark.promise("P11", control=True)
def test_negative_control_dropping_strings_without_lowering_the_others_breaks_the_error(rng: np.random.Generator) -> None:
    words = [f"w{number}" for number in rng.permutation(np.repeat(np.arange(40), 50))]
    true = Counter(words)

    def lost(column: CategoryColumn) -> int:
        return max(count - column.cnt_values.get(word, 0) for word, count in true.items())

    values = pa.chunked_array([pa.array(words[start : start + 20]) for start in range(0, len(words), 20)])
    found = category(values, categories=4)
    assert lost(found) <= found.count_error
    honest = found.count_error
    assert lost(found) > honest // 2  # so an error half as large would be a lie


def test_long_strings_are_dropped_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MAX_TEXT_BYTES", 1000)
    found = category(pa.array(["x" * 600, "y" * 600, "x" * 600, "z"]))
    assert found.cnt_values == {"x" * 600: 1}
    assert found.count_error == 1
