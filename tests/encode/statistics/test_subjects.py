"""Whose each row is: a key counts once, as the root keys of mostlyai-engine do; and keys are counted by their rows."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.before import mostlyai_statistics as before

from stoker.encode import Statistics, analyze
from stoker.encode.statistics import subjects
from stoker.errors import BadValue, OptionError, SourceInvalid


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


def test_keys_are_counted_by_their_rows() -> None:
    found = analyze({"who": ["b", "a", "b", "b", "c"], "x": [1, 2, 1, 1, None]}, key="who")
    assert (found.key, found.cnt_lengths, found.names) == ("who", {"1": 2, "3": 1}, ["x"])
    column: Any = found["x"]
    assert (column.cnt_values, column.min_n, column.max_n, column.num_keys) == ({"1": 1, "2": 1}, [1.0, 2.0], [2.0, 1.0], 3)


def test_files_in_any_chunks_are_the_table(rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(rng, 3000, 40)
    whole = analyze(frame, key="who")
    for i in range(3):
        pq.write_table(pa.Table.from_pandas(frame[i * 1000 : (i + 1) * 1000]), tmp_path / f"{i}.parquet", row_group_size=100)
    monkeypatch.setattr(subjects, "_ENOUGH", 150)
    assert analyze(tmp_path, key="who").to_json(partial=True) == whole.to_json(partial=True)
    assert analyze(tmp_path, key="who", columns="text,few")["few"] == whole["few"]


def test_parts_with_different_keys_are_the_whole(rng: np.random.Generator) -> None:
    frame = table(rng).sort_values("who", kind="stable", ignore_index=True)
    whole = analyze(frame, key="who")
    cut = int(np.searchsorted(frame["who"], 20))
    one, other = analyze(frame[:cut], key="who"), analyze(frame[cut:].reset_index(drop=True), key="who")
    joined = one.merge(Statistics.from_json(other.to_json(partial=True)))
    assert joined.to_json(partial=True) == whole.to_json(partial=True)
    nothing = analyze({name: frame[name][:0] for name in frame}, key="who")
    assert whole.merge(nothing).to_json(partial=True) == whole.to_json(partial=True)


@pytest.mark.parametrize(
    "keys",
    [
        np.array([0.0, -0.0, 1.5]),
        pd.Categorical(["a", "a", "b"]),
        pd.to_datetime(["2020", "2020", "2021"]),
        pa.array([Decimal("1.10"), Decimal("1.10"), Decimal("1.20")]),
        [True, True, False],
        pa.array(["a", "a", "b"], pa.string_view()),
    ],
    ids=str,
)
def test_keys_of_any_type(keys: Any) -> None:
    column: Any = analyze({"who": keys, "x": [5, 5, 5]}, key="who")["x"]
    assert (column.cnt_values, column.num_keys) == ({"5": 2}, 2)


def test_values_of_any_type() -> None:
    values = {
        "truth": [True, True, False],
        "decimal": pa.array([Decimal("19.99"), Decimal("19.99"), None]),
        "zeros": [0.0, -0.0, np.inf],
        "nothing": [None, None, None],
        "code": [7, 7, 8],
    }
    found: Any = analyze({"who": [1, 1, 2], **values}, key="who", kinds={"code": "category"})
    assert found["truth"].cnt_values == {"True": 1, "False": 1} or found["truth"].cnt_values == {"False": 1, "True": 1}
    assert (found["decimal"].cnt_values, found["decimal"].max_n) == ({"19.99": 1}, [19.99])
    assert (found["zeros"].cnt_values, found["zeros"].num_infinite) == ({"0.0": 1}, 1)
    assert (found["nothing"].num_null, found["nothing"].num_keys) == (3, 2)
    assert found["code"].cnt_values == {"7": 1, "8": 1}
    assert Statistics.from_json(found.to_json(partial=True)).to_json(partial=True) == found.to_json(partial=True)


@pytest.mark.parametrize(
    ("source", "options", "error", "told"),
    [
        ({"who": [1, None], "x": [1, 2]}, {}, BadValue, "the key 'who' is missing in row 2"),
        ({"who": [1.0, float("nan")], "x": [1, 2]}, {}, BadValue, "the key 'who' is missing in row 2"),
        ({"x": [1, 2]}, {}, OptionError, "key is 'who', but <dict> has the columns x"),
        ({"who": [1], "x": [[1, 2]]}, {}, OptionError, "column 'x' holds lists, which cannot be counted by key"),
    ],
)
def test_what_cannot_be_counted_is_named(source: Any, options: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        analyze(source, key="who", **options)


def test_many_values_are_not_counted_one_by_one() -> None:
    column: Any = analyze({"who": np.arange(200), "x": np.arange(200)}, key="who")["x"]
    assert column.analysis()["cnt_values"] is None
    with pytest.raises(OptionError, match="100 values or more, which are not counted by key"):
        column.analysis("discrete")


def test_parts_by_another_key_do_not_join() -> None:
    with pytest.raises(OptionError, match="the key 'who', another with None"):
        analyze({"who": [1], "x": [1]}, key="who").merge(analyze({"x": [1]}))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cnt_lengths": None}, r"\$.cnt_lengths: expected lengths exactly where there is a key"),
        ({"cnt_lengths": {"x": 1}}, r"\$.cnt_lengths: expected lengths"),
        ({"cnt_lengths": {"9": 1}}, r"\$.cnt_lengths: expected at most 2 rows, found 9"),
        ({"cnt_lengths": {"1": 0}}, r"\$.cnt_lengths: expected counts of at least 1"),
    ],
)
def test_lengths_that_cannot_be_are_refused(change: dict[str, Any], told: str) -> None:
    content = json.loads(analyze({"who": [1, 2], "x": [1, 2]}, key="who").to_json())
    with pytest.raises(SourceInvalid, match=told):
        Statistics.from_json(json.dumps({**content, **change}).encode())


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("num_keys", 3, "no more keys than rows"),
        ("min_n", [1.0, 1.0, 2.0], r"min_n: expected 2, found 3"),
        ("min_n", [], r"min_n: expected 2, found 0"),
        ("cnt_values", {"1": 3}, r"cnt_values: expected 2, found 3"),
    ],
)
def test_counts_by_key_that_cannot_be_are_refused(field: str, value: Any, told: str) -> None:
    content = json.loads(analyze({"who": [1, 2], "x": [1, 2]}, key="who").to_json())
    content["columns"][0][field] = value
    with pytest.raises(SourceInvalid, match=told):
        Statistics.from_json(json.dumps(content).encode())
