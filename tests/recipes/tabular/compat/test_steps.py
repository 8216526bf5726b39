"""The steps before training of mostlyai-engine: their files, what is refused, and errors that are not repeated."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from stoker.errors import BadValueError, OptionError
from stoker_recipes.tabular import compat

SIGNATURES = {
    "split": "tgt_data, ctx_data=None, tgt_primary_key=None, ctx_primary_key=None, tgt_context_key=None, model_type=None, "
    "tgt_encoding_types=None, ctx_encoding_types=None, n_partitions=1, trn_val_split=0.8, workspace_dir='engine-ws', update_progress=None",
    "analyze": "value_protection=True, differential_privacy=None, workspace_dir='engine-ws', update_progress=None",
    "encode": "workspace_dir='engine-ws', update_progress=None",
}


def make(num_subjects: int = 40) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 6, num_subjects)
    owner = np.repeat(np.arange(num_subjects), lengths)
    rng.shuffle(owner)
    n = len(owner)
    step = pd.Series(owner).groupby(owner).cumcount().to_numpy()
    events = pd.DataFrame({
        "user": owner,
        "step": step,
        "state": pd.Series(rng.choice(list("abc"), n)).mask(rng.random(n) < 0.1),
        "amount": pd.Series(rng.integers(0, 50, n)).astype("Int64").mask(rng.random(n) < 0.2),
        "time": pd.Timestamp("2021-01-01") + pd.to_timedelta(36 * step, unit="h"),
    })  # fmt: skip
    return events, pd.DataFrame({"id": np.arange(num_subjects)[::-1], "segment": rng.choice(list("xy"), num_subjects)})


KEYS = {"ctx_primary_key": "id", "tgt_context_key": "user", "tgt_encoding_types": {"time": "TABULAR_DATETIME_RELATIVE"}}


def encoded(folder: Path, events: Any, context: Any, **options: Any) -> Path:
    compat.set_random_state(1)
    compat.split(events, ctx_data=context, workspace_dir=folder, **(KEYS | options))
    compat.analyze(workspace_dir=folder)
    compat.encode(workspace_dir=folder)
    return folder


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_and_defaults_are_those_of_the_package(name: str) -> None:
    found = inspect.signature(getattr(compat, name)).parameters.values()
    assert [one.name for one in found] == re.findall(r"(\w+)(?:=[^,]*)?(?:, |$)", SIGNATURES[name])
    assert ", ".join(f"{one.name}={one.default!r}" for one in found if one.default is not one.empty) == SIGNATURES[
        name
    ].removeprefix("tgt_data, ")
    assert all(one.kind is one.KEYWORD_ONLY for one in found if one.name != "tgt_data")


def test_any_frame_gives_the_same_statistics_and_codes(tmp_path: Path) -> None:
    both = make()
    first = encoded(tmp_path / "pandas", *both)
    codes = pd.read_parquet(first / "OriginalData/encoded-data").map(str)
    for as_kind in (pl.from_pandas, lambda one: pa.Table.from_pandas(one, preserve_index=False)):
        other = encoded(tmp_path / "other", *map(as_kind, both))
        for name in ("ModelStore/tgt-stats/stats.json", "ModelStore/ctx-stats/stats.json"):
            assert (first / name).read_text() == (other / name).read_text()
        assert pd.read_parquet(other / "OriginalData/encoded-data").map(str).equals(codes)


def test_a_function_splits_the_keys(tmp_path: Path) -> None:
    events, context = make()
    encoded(tmp_path, events, context, trn_val_split=lambda keys: (keys[keys < 30], keys[keys >= 30]), n_partitions=2)
    for name, least, most in (("trn", 0, 29), ("val", 30, 39)):
        files = sorted((tmp_path / "OriginalData/ctx-data").glob(f"*-{name}.parquet"))
        assert len(files) == 2
        keys = pd.concat([pd.read_parquet(path) for path in files])["id"]
        assert (keys.min(), keys.max(), len(keys)) == (least, most, most - least + 1)


def test_an_earlier_context_does_not_stay(tmp_path: Path) -> None:
    """mostlyai-engine leaves the context of an earlier split, and takes it for that of the new table."""
    events, context = make()
    encoded(tmp_path, events, context)
    compat.split(events[["state", "amount"]], workspace_dir=tmp_path)
    compat.analyze(workspace_dir=tmp_path)
    compat.encode(workspace_dir=tmp_path)
    assert not (tmp_path / "OriginalData/ctx-data").exists()
    assert not (tmp_path / "ModelStore/ctx-stats").exists()
    assert json.loads((tmp_path / "ModelStore/tgt-stats/stats.json").read_text())["is_sequential"] is False


@pytest.mark.promise("P11")
def test_few_subjects_are_an_error_and_not_single_rows(tmp_path: Path) -> None:
    """mostlyai-engine learns them as single rows, without a word."""
    events, context = make(19)
    compat.split(events, ctx_data=context, workspace_dir=tmp_path, **KEYS)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"the data has 19 subjects; protection needs at least 20.*Pass value_protection=False"):
        compat.analyze(workspace_dir=tmp_path)
    compat.analyze(workspace_dir=tmp_path, value_protection=False)
    assert json.loads((tmp_path / "ModelStore/tgt-stats/stats.json").read_text())["is_sequential"] is True


ROWS = {"x": list(range(50)), "user": [number // 2 for number in range(50)]}


def with_ids(ids: list[Any]) -> dict[str, Any]:
    return {"ctx_data": {"id": ids}, "tgt_context_key": "user", "ctx_primary_key": "id"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tgt_context_key": "nope"}, OptionError, "tgt_data has no column 'nope'; it has 'x', 'user'"),
        ({"tgt_primary_key": "user"}, BadValueError, "tgt_data has the user 0 more than once"),
        ({"ctx_data": {"user": [1]}}, OptionError, "ctx_data is given, but tgt_context_key is not"),
        ({"ctx_data": {"user": [1]}, "tgt_context_key": "user"}, OptionError, "ctx_data is given, but ctx_primary_key is not"),
        (with_ids([0, 1]), BadValueError, "tgt_data has the user 2 in row 4, which ctx_data does not have"),
        (with_ids(["a"]), BadValueError, "user is of the type int64 in tgt_data, but of the type string in ctx_data"),
        ({"model_type": "LANGUAGE"}, OptionError, "model_type is 'LANGUAGE'; expected 'TABULAR'"),
        ({"tgt_encoding_types": {"x": "LANGUAGE_TEXT"}}, OptionError, r"tgt_encoding_types\['x'\] is 'LANGUAGE_TEXT'; expected one of"),
        ({"tgt_encoding_types": {"y": "AUTO"}}, OptionError, "tgt_encoding_types names the column 'y'; expected one of 'x', 'user'"),
        ({"n_partitions": 0}, OptionError, "n_partitions is 0; expected an integer from 1"),
        ({"trn_val_split": 1.0}, OptionError, "trn_val_split is 1.0; expected a number between 0 and 1"),
    ],
)  # fmt: skip
def test_a_split_that_cannot_be_has_one_clear_line(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as found:
        compat.split(ROWS, workspace_dir=tmp_path, **options)
    assert "\n" not in str(found.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("analyze", "has no OriginalData/tgt-meta/encoding-types.json. Call compat.split"),
        ("encode", "has no ModelStore/tgt-stats/stats.json. Call compat.analyze"),
    ],
)
def test_steps_come_in_order(tmp_path: Path, step: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        getattr(compat, step)(workspace_dir=tmp_path)
    assert not list(tmp_path.iterdir())
