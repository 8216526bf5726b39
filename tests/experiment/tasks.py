"""Tasks of each kind, over one small store of series of different lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

import stoker
from stoker.experiment.models import Gru, Mlp, Predictor, Task, Transformer

LENGTHS = (40, 23, 9, 3)
TASKS = {
    "horizon": Task(inputs={"a": 1, "b": 2}, targets={"a": 1}, length=8, when="horizon", horizon=3),
    "shift": Task(inputs={"a": 1, "b": 2}, targets={"a": 1, "b": 2}, length=8, when="shift"),
    "last": Task(inputs={"b": 2}, targets={"a": 1}, length=8, when="last"),
    "series": Task(inputs={"a": 1, "b": 2}, targets={"label": 1}, length=16, when="series"),
}
VIEWS: dict[str, Any] = {
    "horizon": stoker.Windows(8, stride=3, horizon=3),
    "shift": stoker.Segments(8, shift=1),
    "last": stoker.Windows(8, stride=7),
    "series": stoker.Sequences(16, buckets=(16,)),
}
NETWORKS: dict[str, Any] = {"transformer": Transformer, "gru": Gru, "mlp": Mlp, "linear": lambda task, **_: Mlp(task, layers=0)}


def store() -> stoker.Store:
    rng = np.random.default_rng(0)
    return stoker.Store.from_arrays(
        a=[rng.normal(size=n).astype("f4") for n in LENGTHS],
        b=[rng.normal(size=(n, 2)).astype("f4") for n in LENGTHS],
        label=np.array([0, 1, 2, -1]),
    )


def task_and_batch(kind: str, rows: int = 32) -> tuple[Task, dict[str, torch.Tensor]]:
    """The last batch is not full: some of its rows are no samples."""
    feed = stoker.Feed(store(), VIEWS[kind], batch_size=rows)
    return replace(TASKS[kind], padded=feed.samples.padded), next(iter(feed))


def model(name: str, task: Task, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return Predictor(task, NETWORKS[name](task, width=16, **options)).eval()
