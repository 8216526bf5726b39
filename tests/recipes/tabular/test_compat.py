"""The workflow of mostlyai-engine: its files, what it refuses, and which of its errors it does not repeat."""

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

from stoker.errors import BadValueError, ConfigError, OptionError
from stoker.recipes.tabular import compat

SIGNATURES = {
    "split": "tgt_data, ctx_data=None, tgt_primary_key=None, ctx_primary_key=None, tgt_context_key=None, model_type=None, "
    "tgt_encoding_types=None, ctx_encoding_types=None, n_partitions=1, trn_val_split=0.8, workspace_dir='engine-ws', update_progress=None",
    "analyze": "value_protection=True, differential_privacy=None, workspace_dir='engine-ws', update_progress=None",
    "encode": "workspace_dir='engine-ws', update_progress=None",
    "train": "model=None, max_training_time=14400.0, max_epochs=100.0, batch_size=None, gradient_accumulation_steps=None, "
    "enable_flexible_generation=True, max_sequence_window=None, differential_privacy=None, model_state_strategy='RESET', device=None, "
    "workspace_dir='engine-ws', update_progress=None, upload_model_data_callback=None",
    "generate": "ctx_data=None, seed_data=None, sample_size=None, batch_size=None, sampling_temperature=1.0, sampling_top_p=1.0, "
    "device=None, rare_category_replacement_method='CONSTANT', rebalancing=None, imputation=None, fairness=None, "
    "workspace_dir='engine-ws', update_progress=None",
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = encoded(tmp_path_factory.mktemp("compat") / "ws", *make())
    calls: list[dict[str, Any]] = []
    compat.train(
        workspace_dir=folder,
        model="MOSTLY_AI/Small",
        max_epochs=3,
        device="cpu",
        update_progress=lambda **values: calls.append(values) or {"stopExecution": len(calls) > 2},  # type: ignore[func-returns-value]
        upload_model_data_callback=lambda: calls.append({"uploaded": True}),
    )
    return folder, calls


def generated(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "SyntheticData")


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_and_defaults_are_those_of_the_package(name: str) -> None:
    found = inspect.signature(getattr(compat, name)).parameters.values()
    assert [one.name for one in found] == re.findall(r"(\w+)(?:=[^,]*)?(?:, |$)", SIGNATURES[name])
    assert ", ".join(f"{one.name}={one.default!r}" for one in found if one.default is not one.empty) == SIGNATURES[
        name
    ].removeprefix("tgt_data, ")
    assert all(one.kind is one.KEYWORD_ONLY for one in found if one.name != "tgt_data")


def test_a_workspace_has_the_files_of_the_package(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = trained
    compat.generate(workspace_dir=folder, device="cpu")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "stoker-run" not in path.parts}
    assert found == {
        *(f"OriginalData/{role}-data/part.000000-{kind}.parquet" for role in ("tgt", "ctx") for kind in ("trn", "val")),
        *(f"OriginalData/encoded-data/part.000000-{kind}.parquet" for kind in ("trn", "val")),
        *(f"OriginalData/{role}-meta/{name}.json" for role in ("tgt", "ctx") for name in ("keys", "encoding-types")),
        *(f"ModelStore/{role}-stats/stats.json" for role in ("tgt", "ctx")),
        *(f"ModelStore/model-data/{name}" for name in ("model-weights.pt", "model-configs.json", "progress-messages.csv")),
        "SyntheticData/part.000000.000000.parquet",
    }  # fmt: skip


def test_progress_is_reported_and_stops_the_run(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, calls = trained
    assert calls[0] == {"completed": 0, "total": 1}
    assert calls[-1] == {"completed": 1, "total": 1}
    messages = [call["message"] for call in calls if "message" in call]
    assert [list(one) for one in messages] == [
        ["epoch", "is_checkpoint", "steps", "samples", "trn_loss", "val_loss", "total_time", "learn_rate"]
    ] * 2  # the answer to the second one stops it
    assert messages[0]["epoch"] == 1.0
    assert calls.count({"uploaded": True}) == 2
    written = pd.read_csv(folder / "ModelStore/model-data/progress-messages.csv")
    assert written["val_loss"].tolist() == [one["val_loss"] for one in messages]


def test_events_are_generated_in_order_with_their_types(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = trained
    compat.set_random_state(2)
    compat.generate(workspace_dir=folder, device="cpu", sample_size=20)
    found = generated(folder)
    assert list(found.columns) == ["user", "time", "step", "state", "amount"]
    assert str(found["amount"].dtype) == "Int64"
    users = found["user"].to_numpy()
    assert (np.diff(np.flatnonzero(np.diff(users, prepend=-1))) > 0).all()
    assert len(set(users)) == (np.diff(users) != 0).sum() + 1  # side by side
    gaps = found.groupby("user")["time"].diff().dropna()
    assert set(gaps) == {pd.Timedelta("36h")}
    compat.set_random_state(2)
    compat.generate(workspace_dir=folder, device="cpu", sample_size=20)
    pd.testing.assert_frame_equal(generated(folder), found)


def test_values_are_rebalanced_and_imputed(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = trained
    compat.generate(
        workspace_dir=folder,
        device="cpu",
        rebalancing={"column": "state", "probabilities": {"a": 0.9}},
        imputation={"columns": ["amount", "state"]},
    )
    found = generated(folder)
    assert found[["amount", "state"]].notna().all().all()
    assert (found["state"] == "a").mean() > 0.75
    with pytest.raises(OptionError, match=r"imputation is \{'column': 'a'\}; expected a dict with 'columns'"):
        compat.generate(workspace_dir=folder, imputation={"column": "a"})


def test_seeds_come_back_in_their_order_for_integer_keys(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    """mostlyai-engine sorts them with an unstable sort."""
    folder, _ = trained
    _, context = make()
    seeds = pd.DataFrame({"user": np.tile(np.arange(20), 3), "step": np.repeat([7, 9, 8], 20), "amount": np.arange(60)})
    compat.generate(workspace_dir=folder, device="cpu", ctx_data=context, seed_data=seeds)
    found = generated(folder)
    first = found.groupby("user").head(3).reset_index(drop=True)
    for user in range(20):
        own = first[first["user"] == user]
        assert own["step"].tolist() == [7, 9, 8]
        assert own["amount"].tolist() == [user, 20 + user, 40 + user]


def test_rare_categories_are_replaced_on_request(tmp_path: Path) -> None:
    words = ["a"] * 60 + [f"w{number}" for number in range(60)]
    compat.set_random_state(0)
    compat.split({"word": words}, workspace_dir=tmp_path)
    compat.analyze(workspace_dir=tmp_path)
    compat.encode(workspace_dir=tmp_path)
    compat.train(workspace_dir=tmp_path, model="MOSTLY_AI/Small", max_epochs=1, device="cpu")
    for method, expected in (("CONSTANT", {"a", "_RARE_"}), ("SAMPLE", {"a"})):
        compat.generate(workspace_dir=tmp_path, device="cpu", rare_category_replacement_method=method)
        assert set(generated(tmp_path)["word"]) == expected


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


def test_a_context_without_any_value_and_new_contexts(tmp_path: Path) -> None:
    events, context = make()
    encoded(tmp_path, events, context.assign(segment=None))
    compat.train(workspace_dir=tmp_path, model="MOSTLY_AI/Small", max_epochs=1, device="cpu")
    compat.generate(workspace_dir=tmp_path, device="cpu", ctx_data={"id": list(range(100, 140)), "segment": [None] * 40})
    assert set(generated(tmp_path)["user"]) <= set(range(100, 140))


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


def test_few_subjects_are_an_error_and_not_single_rows(tmp_path: Path) -> None:
    """mostlyai-engine learns them as single rows, without a word."""
    events, context = make(19)
    compat.split(events, ctx_data=context, workspace_dir=tmp_path, **KEYS)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"the data has 19 subjects; protection needs at least 20.*Pass value_protection=False"):
        compat.analyze(workspace_dir=tmp_path)
    compat.analyze(workspace_dir=tmp_path, value_protection=False)
    assert json.loads((tmp_path / "ModelStore/tgt-stats/stats.json").read_text())["is_sequential"] is True


ROWS = {"x": list(range(50)), "user": [number // 2 for number in range(50)]}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tgt_context_key": "nope"}, OptionError, "tgt_data has no column 'nope'; it has 'x', 'user'"),
        ({"tgt_primary_key": "user"}, BadValueError, "tgt_data has the user 0 more than once"),
        ({"ctx_data": {"user": [1]}}, OptionError, "ctx_data is given, but tgt_context_key is not"),
        ({"ctx_data": {"user": [1]}, "tgt_context_key": "user"}, OptionError, "ctx_data is given, but ctx_primary_key is not"),
        (
            {"ctx_data": {"id": [0, 1]}, "tgt_context_key": "user", "ctx_primary_key": "id"},
            BadValueError,
            "tgt_data has the user 2 in row 4, which ctx_data does not have",
        ),
        (
            {"ctx_data": {"id": ["a"]}, "tgt_context_key": "user", "ctx_primary_key": "id"},
            BadValueError,
            "user is of the type int64 in tgt_data, but of the type string in context",
        ),
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


def test_lists_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="column 'l' of tgt_data holds lists, which are not supported"):
        compat.split({"l": [[1]] * 30}, workspace_dir=tmp_path)


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        ("train", {"max_epochs": 0}, "max_epochs is 0; expected a number above 0"),
        ("train", {"max_training_time": 0}, "max_training_time is 0; expected a number above 0"),
        ("train", {"model": "MOSTLY_AI/Huge"}, "model is 'MOSTLY_AI/Huge'; expected one of MOSTLY_AI/Small"),
        ("train", {"batch_size": 0}, "batch_size is 0; expected an integer from 1"),
        ("train", {"differential_privacy": {}}, "differential_privacy is not supported here"),
        ("train", {"model_state_strategy": "AGAIN"}, "model_state_strategy is 'AGAIN'; expected RESET, REUSE or RESUME"),
        ("generate", {"sample_size": 41}, "sample_size is 41, but there are 40 contexts"),
        ("generate", {"fairness": {}}, "fairness is not supported here"),
        ("generate", {"rare_category_replacement_method": "X"}, "rare_category_replacement_method is 'X'"),
        ("generate", {"ctx_data": {"id": [1, 2]}}, "ctx_data lacks the columns 'segment'"),
        ("generate", {"ctx_data": {"segment": ["x"]}}, "ctx_data has no column 'id'; it has 'segment'"),
        ("generate", {"seed_data": {"step": [1]}}, "seed_data has no column 'user'"),
    ],
)
def test_bad_arguments_have_one_clear_line(
    trained: tuple[Path, list[dict[str, Any]]], step: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message) as found:
        getattr(compat, step)(workspace_dir=trained[0], **options)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("analyze", "has no OriginalData/tgt-meta/encoding-types.json. Call compat.split"),
        ("encode", "has no ModelStore/tgt-stats/stats.json. Call compat.analyze"),
        ("train", "has no ModelStore/tgt-stats/stats.json. Call compat.analyze"),
        ("generate", "has no ModelStore/tgt-stats/stats.json. Call compat.analyze"),
    ],
)
def test_steps_come_in_order(tmp_path: Path, step: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        getattr(compat, step)(workspace_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_not_trained_or_damaged_is_an_error(tmp_path: Path) -> None:
    """mostlyai-engine generates from random weights."""
    encoded(tmp_path, *make())
    with pytest.raises(OptionError, match=r"has no ModelStore/model-data/model-configs.json. Call compat.train"):
        compat.generate(workspace_dir=tmp_path)
    model = tmp_path / "ModelStore/model-data"
    model.mkdir()
    (model / "model-configs.json").write_text('{"model_id": "MOSTLY_AI/Small"}')
    with pytest.raises(OptionError, match="the model is not trained"):
        compat.generate(workspace_dir=tmp_path)
    (model / "model-weights.pt").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"model-weights.pt does not fit"):
        compat.generate(workspace_dir=tmp_path)
