"""A model in a workspace: resumed, reused, and with the batch sizes of mostlyai-engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from stoker.recipes.tabular import compat
from stoker.recipes.tabular.compat_model import default_batch_size, layout_of, model_units, read_stats, workspace_weights
from stoker.recipes.tabular.compat_workspace import Workspace
from stoker.recipes.tabular.model import TabularModel

WEIGHTS = "ModelStore/model-data/model-weights.pt"
SMALL: dict[str, Any] = {"model": "MOSTLY_AI/Small", "device": "cpu", "max_epochs": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    compat.set_random_state(0)
    compat.split({"a": rng.choice(list("xyz"), 90).tolist(), "b": rng.integers(0, 300, 90)}, workspace_dir=tmp_path)
    compat.analyze(workspace_dir=tmp_path)
    compat.encode(workspace_dir=tmp_path)
    return tmp_path


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(folder / WEIGHTS, weights_only=True))


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_stopped_run_resumes_to_the_same_weights(folder: Path) -> None:
    """mostlyai-engine forgets the best loss, the order and the random state."""
    compat.set_random_state(5)
    compat.train(workspace_dir=folder, **SMALL)
    whole = weights(folder)
    compat.set_random_state(5)
    compat.train(workspace_dir=folder, update_progress=lambda **_: {"stopExecution": True}, **SMALL)
    assert not same(weights(folder), whole)  # negative control
    compat.train(workspace_dir=folder, model_state_strategy="RESUME", **SMALL)
    assert same(weights(folder), whole)
    messages = pd.read_csv(folder / "ModelStore/model-data/progress-messages.csv")
    assert messages["epoch"].tolist() == [1.0, 2.0]
    before = weights(folder)
    compat.train(workspace_dir=folder, model_state_strategy="REUSE", **(SMALL | {"max_epochs": 1}))
    assert not same(weights(folder), before)


def test_weights_have_all_widths_and_a_head_for_every_sub_column(folder: Path) -> None:
    layout = layout_of(read_stats(Workspace(folder=folder)), "s")
    found = workspace_weights(TabularModel(layout))
    units = model_units(layout)
    for sub in layout.subs:
        assert found[f"embedders.embedders.embedder@{sub.name}.weight"].shape == (sub.num_classes, units[f"embedder@{sub.name}"])
        assert found[f"regressors.regressors.regressor@{sub.name}.0.bias"].shape == (units[f"regressor@{sub.name}"][0],)


@pytest.mark.parametrize(
    ("count", "num_weights", "longest", "free", "expected"),
    [
        (100, 1000, 1, "16g", 8),
        (6400, 1000, 1, "16g", 64),
        (10**7, 1000, 1, "16g", 2048),
        (10**7, 1000, 1, "64g", 4096),
        (10**7, 1000, 1, "4g", 1024),
        (10**7, 2 * 10**6, 1, "16g", 512),
        (10**7, 1000, 600, "16g", 128),  # one long sequence makes all batches small
        (10**7, 1000, 10**5, "16g", 8),
    ],
)
def test_batch_sizes(monkeypatch: pytest.MonkeyPatch, count: int, num_weights: int, longest: int, free: str, expected: int) -> None:
    monkeypatch.setenv("MOSTLY_ENGINE_AVAILABLE_RAM_FOR_HEURISTICS", free)
    stats: Any = {"tgt": {"seq_len": {"max": longest}, "columns": {"a": {"cardinalities": {"E1": 3, "E0": 10}}}}}
    assert default_batch_size(stats, count, num_weights) == expected
