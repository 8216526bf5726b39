"""The recipe: events to run folder to predictions; resumed exactly; invalid input is refused in one line."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.recipes.running import stop_and_resume, weights_of

from stoker_recipes.icecube import make_events, pack_events
from stoker_recipes.icecube.settings import IceCubeSettings
from stoker_recipes.icecube.training import resume, train
from stoker_recipes.run_folder import make_settings, read_settings

QUICK: dict[str, Any] = {"size": "tiny", "batch_size": 16, "epochs": 2, "warmup": 2, "device": "cpu"}


def test_a_run_has_checkpoints_metrics_and_settings(ice: Path, tmp_path: Path) -> None:
    done = train(ice, folder=tmp_path / "run", valid="batch_id == 2", **QUICK)
    assert (done.result.stopped, done.result.step, done.num_events) == ("finished", 4, 28)
    assert {"loss", "val_loss", "val_nll", "val_degrees"} <= set(done.result.metrics)
    assert 0 < done.result.metrics["val_degrees"] < 180
    assert {"run.json", "metrics.jsonl", "recipe.json", "checkpoints"} <= {path.name for path in (tmp_path / "run").iterdir()}
    given = {name: value for name, value in QUICK.items() if name != "device"}
    assert read_settings(tmp_path / "run", IceCubeSettings) == make_settings(
        IceCubeSettings, {"data": str(ice), "valid": "batch_id == 2", **given}
    )


@pytest.mark.promise("P29")
@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(ice: Path, tmp_path: Path, ema: float | None) -> None:
    done, whole = stop_and_resume(partial(train, ice), resume, tmp_path, ema=ema, **QUICK)
    assert done.result.step == 8
    assert all(torch.equal(tensor, whole[name]) for name, tensor in weights_of(done).items())


def test_a_finetune_starts_from_the_weights_of_a_run(ice: Path, tmp_path: Path) -> None:
    first = train(ice, folder=tmp_path / "first", **QUICK)
    tuned = train(ice, init=str(tmp_path / "first"), lr=1e-12, side_lr=1e-12, **{**QUICK, "epochs": 1})
    before, after = weights_of(first), weights_of(tuned)
    for name in before:
        if name != "loss.step":
            torch.testing.assert_close(after[name], before[name])
    assert int(after["loss.step"]) == 4  # of its own run


@pytest.mark.promise("P29")
@pytest.mark.slow
def test_a_run_learns_directions(tmp_path: Path) -> None:
    """Chance is 90 degrees; a new model predicts one direction for all."""
    pack_events(make_events(tmp_path / "icecube", files=21, events=400), tmp_path / "ice.stoker")
    options = {**QUICK, "batch_size": 64, "epochs": 4, "warmup": 40, "lr": 0.01, "side_lr": 2e-3}
    done = train(tmp_path / "ice.stoker", valid="batch_id == 21", **options)
    assert done.result.metrics["val_degrees"] < 70
