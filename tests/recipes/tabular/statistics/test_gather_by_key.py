"""Whose each row is: a key counts once, as the root keys of mostlyai-engine do; and keys are counted by their rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.before import mostlyai_statistics as before

from stoker.errors import OptionError
from stoker_recipes.tabular import analyze
from stoker_recipes.tabular.statistics import gather


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
