"""Counts by key, as the root keys of mostlyai-engine, and counts of strings within the stated error."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.before import mostlyai_statistics as before
from benchmarks.before.mostlyai_statistics import analyze_categorical
from tests.recipes.tabular.statistics.twin import as_json

from stoker.errors import OptionError
from stoker_recipes.tabular import analyze
from stoker_recipes.tabular.statistics import gather
from stoker_recipes.tabular.statistics.gather import CategoryColumn


def table(rng: np.random.Generator, num_rows: int = 400, num_keys: int = 50) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "who": rng.integers(0, num_keys, num_rows),
            "few": rng.integers(-20, 20, num_rows) / 4,
            "many": np.round(rng.normal(size=num_rows) * 1000, 2),
            "whole": rng.integers(-9, 9, num_rows),
            "large": rng.integers(-(2**62), 2**62, num_rows),
            "text": rng.choice(["a", "b", "_RARE_", "d"], num_rows),
            "when": rng.integers(0, 10**15, num_rows).astype("M8[us]"),
        }
    )
    frame.loc[rng.random(num_rows) < 0.1, ["few", "many", "text", "when"]] = None
    frame.loc[frame["who"] == 3, ["few", "many", "text", "when"]] = None  # a key without any value
    return frame


def expected(frame: pd.DataFrame, name: str) -> Any:
    keys = frame["who"].rename("keys")
    if name == "text":
        return before.analyze_categorical(frame[name], keys)
    return before.analyze_datetime(frame[name], keys) if name == "when" else before.analyze_numeric(frame[name], keys)


@pytest.mark.promise("P11")
def test_the_same_json_as_the_original(rng: np.random.Generator) -> None:
    for num_rows, num_keys in ((400, 50), (3000, 2500), (5, 1), (60, 60)):
        frame = table(rng, num_rows, num_keys)
        found: Any = analyze(frame, key="who")
        for name in frame.columns[1:]:
            assert json.dumps(found[name].analysis()) == json.dumps(expected(frame, name)), name


def test_negative_control_without_a_key_counts_and_extremes_are_those_of_rows(rng: np.random.Generator) -> None:
    frame = table(rng)
    for name in ("few", "many", "whole", "text", "when"):
        column: Any = analyze(frame)[name]
        assert json.dumps(column.analysis()) != json.dumps(expected(frame, name)), name


def test_files_in_any_chunks_are_the_table(rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(rng, 3000, 40)
    whole = analyze(frame, key="who")
    for i in range(3):
        pq.write_table(pa.Table.from_pandas(frame[i * 1000 : (i + 1) * 1000]), tmp_path / f"{i}.parquet", row_group_size=100)
    monkeypatch.setattr(gather, "_MERGE_ROWS", 150)
    assert analyze(tmp_path, key="who") == whole
    assert analyze(tmp_path, key="who", columns="text,few")["few"] == whole["few"]


@pytest.mark.parametrize("keys", [[1.0, None, 2.0, None, 1.0], ["a", None, "b", None, "a"]], ids=["numbers", "texts"])
def test_a_row_without_a_key_counts_for_no_one(keys: list[Any]) -> None:
    values = [5.0, 6.0, 7.0, 5.0, 5.0]
    when = np.array([1, 2, 3, 4, 5], dtype="M8[s]")
    found: Any = analyze({"who": keys, "x": values, "text": list("abcab"), "when": when}, key="who")
    assert found["x"].cnt_values == {"5.0": 1, "6.0": 0, "7.0": 1}
    assert (found["x"].min_n, found["x"].max_n, found["x"].num_values) == ([5.0, 7.0], [7.0, 5.0], 5)
    assert found["text"].cnt_values == {"a": 1, "b": 1, "c": 1}
    assert len(found["when"].min_n) == 2
    assert (found.cnt_lengths, found["x"].num_keys) == ({"1": 1, "2": 1}, 2)
    nobody: Any = analyze({"who": pa.nulls(2, pa.int64()), "x": [1, 2]}, key="who")
    assert (nobody["x"].cnt_values, nobody["x"].min_n, nobody.cnt_lengths) == ({"1": 0, "2": 0}, [], {})


def test_a_zero_keeps_its_sign_where_only_one_occurs() -> None:
    one: Any = analyze({"who": [1, 1, 2], "x": [-0.0, -0.0, 1.0]}, key="who")["x"]
    assert json.dumps([one.cnt_values, one.min_n, one.max_n]) == '[{"-0.0": 1, "1.0": 1}, [-0.0, 1.0], [1.0, -0.0]]'
    both: Any = analyze({"who": [1, 1, 2, 3], "x": [-0.0, 0.0, -0.0, 1.0]}, key="who")["x"]
    assert json.dumps([both.cnt_values, both.min_n, both.max_n]) == '[{"0.0": 2, "1.0": 1}, [-0.0, -0.0, 1.0], [1.0, 0.0, -0.0]]'
    assert json.dumps(both.analysis("discrete")["cnt_values"]) == '{"0.0": 2, "1.0": 1}'


@pytest.mark.promise("P11", control=True)
def test_negative_control_zeros_that_are_two_values_are_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "_ZEROS", np.array([1, 2], dtype=np.uint64))  # two keys that no value here has
    found: Any = analyze({"who": [1, 1, 2, 3], "x": [-0.0, 0.0, -0.0, 1.0]}, key="who")["x"]
    assert found.cnt_values == {"0.0": 3, "1.0": 1}, "two keys have a zero"


def test_many_values_are_counted_by_key_for_discrete_encoding(rng: np.random.Generator) -> None:
    frame = pd.DataFrame({"who": rng.integers(0, 30, 3000), "x": rng.integers(-400, 400, 3000) / 4})
    column: Any = analyze(frame, key="who")["x"]
    assert (column.cnt_values, column.analysis()["cnt_values"]) == (None, None)
    expected = json.dumps(before.analyze_numeric(frame["x"], frame["who"].rename("keys"), "discrete"))
    assert json.dumps(column.analysis("discrete")) == expected


def test_more_pairs_than_are_kept_are_reported(rng: np.random.Generator) -> None:
    frame = {"who": np.arange(5000), "x": rng.permutation(5000) % 200, "few": np.arange(5000) % 7}
    found: Any = analyze(frame, key="who", exact=1024)
    with pytest.raises(OptionError, match="column 'x' has more different pairs of key and value than were kept"):
        found["x"].analysis("discrete")
    assert sum(found["few"].analysis("discrete")["cnt_values"].values()) == 5000
    assert analyze(frame, key="who")["x"].analysis("discrete")["cnt_values"] == dict.fromkeys(range(200), 25)  # type: ignore[union-attr,call-arg]


# Counts of texts: those of mostlyai-engine where all are kept, and within the stated error where they are not


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
def test_the_same_json_as_the_original_of_categories(rng: np.random.Generator) -> None:
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
