"""Functions of the user's own: called with their options and the task, and what goes wrong in them is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.experiment.tasks import task_and_batch

from stoker.experiment.config import Own
from stoker.experiment.models import make_loss, make_model

CODE = """\
from torch import nn
import neighbour

def make(task, *, width=3):
    return nn.Linear(task.num_features, neighbour.times(width))

def wrong(task):
    return 3

def fails(task):
    raise RuntimeError("no such\\nluck")

def loss(model, batch, *, factor=1.0):
    return (model(batch["b"]) ** 2).mean() * factor
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend("/")  # so that what is put on the path goes again
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "neighbour.py").write_text("def times(n): return n * 2\n")
    (tmp_path / "broken.py").write_text("x = (\n")
    return tmp_path


def test_a_model_and_a_loss_of_your_own(code: Path) -> None:
    task, batch = task_and_batch("last")
    model = make_model(Own(function=f"{code}/mine.py:make", options={"width": 4}), task)
    assert isinstance(model, torch.nn.Linear)
    assert (model.in_features, model.out_features) == (2, 8)
    loss = make_loss(Own(function=f"{code}/mine.py:loss", options={"factor": 0.0}), task)
    assert loss(model, batch) == 0
