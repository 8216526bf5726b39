"""Small training runs for tests of the command line: a store, a configuration, and functions of a user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import stoker

CONFIG = """\
data:
  store: waves.stoker
  view: {name: windows, length: 8, horizon: 2, stride: 4}
  batch_size: 32
split: {valid: 0.25}
model: linear
optimizer: {lr: 1e-2}
train:
  epochs: 2
  precision: fp32
  execution: {compile: false}
  metrics: [mae]
"""

OWN = """\
import time
from torch import nn


class Mean(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.task = task
        self.layer = nn.Linear(task.length, task.steps)

    def forward(self, batch):
        return self.layer(batch["close"])[..., None]


def make(task):
    return Mean(task)


def slow(model, batch, *, seconds=0.0):
    time.sleep(seconds)
    valid = batch["valid"][:, None, None]
    errors = (model(batch) - batch["close_target"][..., None]) ** 2
    return {"loss": (errors * valid).sum() / valid.sum().clamp(min=1)}
"""


def make_folder(folder: Path) -> Path:
    """A folder with waves.stoker, c.yaml and own.py."""
    rng = np.random.default_rng(0)
    steps = np.arange(300)
    waves = [(np.sin(steps / 7 + shift) + rng.normal(size=300) * 0.1 + 50).astype("f4") for shift in range(3)]
    labels = [(np.sin(steps / 7 + shift) > 0).astype("f4") for shift in range(3)]
    stoker.Store.from_arrays(close=waves, up=labels, kind=np.array([0, 1, 1])).save(folder / "waves.stoker")
    (folder / "c.yaml").write_text(CONFIG)
    (folder / "own.py").write_text(OWN)
    return folder
