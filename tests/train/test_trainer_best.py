"""After early stopping the model has its best weights, also of a run that was resumed; an option keeps the last."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.training import Pair, network, pairs, same_weights, trainer_of
from torch import nn

from stoker import EarlyStopping
from stoker.train import load_trained

RATE = 0.1
"""A learning rate at which the loss gets worse again."""


def trained(
    folder: Path | None = None, *, epochs: int = 40, model: nn.Module | None = None, resume: bool = False, **options: Any
) -> Any:
    model = model or network()
    stopping = EarlyStopping("val_loss", patience=3, **options)
    trainer = trainer_of(model, None, torch.optim.AdamW(model.parameters(), lr=RATE), early_stopping=stopping, folder=folder)
    result = trainer.fit(pairs(), valid=VALID, epochs=epochs, resume=resume)
    return model, trainer, result


VALID: list[Pair] = pairs(3, seed=9)


@pytest.mark.parametrize("has_folder", [True, False])
def test_the_model_has_its_best_weights(has_folder: bool, tmp_path: Path) -> None:
    _, trainer, result = trained(tmp_path / "run" if has_folder else None)
    assert result.stopped == "early"
    assert result.best_step < result.step
    assert trainer.evaluate(VALID)["loss"] == result.best
    if has_folder:
        best = network(seed=5)
        assert load_trained(best, tmp_path / "run").step == result.best_step
        assert same_weights(best, trainer.model)


def test_negative_control_the_last_weights_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    model, trainer, result = trained(tmp_path / "run", restore_best=False)
    last = network(seed=5)
    assert load_trained(last, tmp_path / "run", latest=True).step == result.step
    assert same_weights(last, model)
    assert trainer.evaluate(VALID)["loss"] != result.best


def test_a_resumed_run_has_the_best_weights_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    whole, _, result = trained(tmp_path / "whole")
    trained(tmp_path / "run", epochs=result.epoch - 2)
    again, _, resumed = trained(tmp_path / "run", model=network(seed=3), resume=True)
    assert (resumed.step, resumed.best_step) == (result.step, result.best_step)
    assert same_weights(whole, again)


def test_best_weights_that_are_gone_are_warned_of(tmp_path: Path) -> None:
    _, _, result = trained(tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        if path.name == "BEST" or path.name == f"step-{result.best_step:09}":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.warns(UserWarning, match=r"the best weights, of step \d+, were not saved"):
        trained(tmp_path / "run", model=network(seed=3), resume=True)
