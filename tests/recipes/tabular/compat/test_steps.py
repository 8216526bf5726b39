"""The steps of mostlyai-engine between split and training: their files, what is refused, and errors that are not repeated."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.recipes.tabular.compat_tables import split

from stoker.errors import BadValueError, OptionError
from stoker_recipes.tabular import compat

SIGNATURES = {
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


RELATIVE = {"time": "TABULAR_DATETIME_RELATIVE"}


def encoded(folder: Path) -> Path:
    np.random.seed(1)
    compat.analyze(workspace_dir=folder)
    compat.encode(workspace_dir=folder)
    return folder


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_and_defaults_are_those_of_the_package(name: str) -> None:
    parameters = inspect.signature(getattr(compat, name)).parameters.values()
    assert ", ".join(f"{parameter.name}={parameter.default!r}" for parameter in parameters) == SIGNATURES[name]
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)


def test_all_partitions_are_analyzed_and_encoded(tmp_path: Path) -> None:
    events, context = make()
    split(tmp_path, events, context, key="user", types=RELATIVE, parts=2)
    calls: list[dict[str, int]] = []
    compat.analyze(workspace_dir=tmp_path, update_progress=lambda **values: calls.append(values))
    compat.encode(workspace_dir=tmp_path)
    assert calls[0] == calls[-1] | {"completed": 0} == {"completed": 0, "total": 1}
    stats = json.loads((tmp_path / "ModelStore/tgt-stats/stats.json").read_text())
    assert (stats["no_of_training_records"], stats["no_of_validation_records"]) == (20, 20)
    codes = pd.read_parquet(tmp_path / "OriginalData/encoded-data")
    assert len(codes) == len(context)
    assert codes["tgt:/__slen_cat"].map(len).sum() == len(events) + len(context)  # one more step per subject, the end


def test_an_earlier_context_does_not_stay(tmp_path: Path) -> None:
    """mostlyai-engine leaves the context of an earlier split, and takes it for that of the new table."""
    events, context = make()
    split(tmp_path, events, context, key="user", types=RELATIVE)
    encoded(tmp_path)
    split(tmp_path, events[["state", "amount"]])
    encoded(tmp_path)
    assert not (tmp_path / "ModelStore/ctx-stats").exists()
    assert json.loads((tmp_path / "ModelStore/tgt-stats/stats.json").read_text())["is_sequential"] is False
    assert not any(name.startswith("ctx") for name in pd.read_parquet(tmp_path / "OriginalData/encoded-data").columns)


@pytest.mark.promise("P11")
def test_few_subjects_are_an_error_and_not_single_rows(tmp_path: Path) -> None:
    """mostlyai-engine learns them as single rows, without a word."""
    split(tmp_path, *make(19), key="user", types=RELATIVE)
    with pytest.raises(OptionError, match=r"the data has 19 subjects; protection needs at least 20.*Pass value_protection=False"):
        compat.analyze(workspace_dir=tmp_path)
    compat.analyze(workspace_dir=tmp_path, value_protection=False)
    assert json.loads((tmp_path / "ModelStore/tgt-stats/stats.json").read_text())["is_sequential"] is True


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: compat.analyze(workspace_dir=folder), "has no OriginalData/tgt-meta/keys.json. Call mostlyai.engine.split"),
        (lambda folder: compat.encode(workspace_dir=folder), "has no OriginalData/tgt-meta/keys.json. Call mostlyai.engine.split"),
        (
            lambda folder: compat.analyze(workspace_dir=folder, differential_privacy={"epsilon": 1}),
            "differential_privacy is not supported here; expected None",
        ),
    ],
)
def test_what_cannot_be_done_has_one_line(tmp_path: Path, call: Any, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        call(tmp_path)
    assert not list(tmp_path.iterdir())


def test_encode_comes_after_analyze_and_lists_are_refused(tmp_path: Path) -> None:
    events, context = make()
    events["state"] = [["a"]] * len(events)
    split(tmp_path, events, context, key="user", types=RELATIVE)
    with pytest.raises(OptionError, match=r"has no ModelStore/tgt-stats/stats.json. Call compat.analyze\("):
        compat.encode(workspace_dir=tmp_path)
    with pytest.raises(BadValueError, match="column 'state' is of the type list"):
        compat.analyze(workspace_dir=tmp_path)
