"""GluonTS: one series of many columns, windows cut by its instance splitter, batched by its training loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.workload import Case, Epoch, Workload

NEEDS = ("gluonts",)


def prepare(folder: Path, workload: Workload) -> None:
    """Nothing: the series is given as an array."""


def _load(windows_a_pass: float, folder: Path, workload: Workload) -> Epoch:
    import pandas as pd
    from gluonts.dataset.loader import TrainDataLoader
    from gluonts.torch.batchify import batchify
    from gluonts.transform import ExpectedNumInstanceSampler, InstanceSplitter

    series = [{"start": pd.Period("2020-01-01 00:00", freq="min"), "item_id": "a", "target": workload.values(folder).T}]
    splitter = InstanceSplitter(
        target_field="target",
        is_pad_field="is_pad",
        start_field="start",
        forecast_start_field="forecast_start",
        instance_sampler=ExpectedNumInstanceSampler(num_instances=windows_a_pass, min_past=workload.length, min_future=1),
        past_length=workload.length,
        future_length=1,
    )
    batches = -(-workload.num_samples // workload.batch_size)
    loader = TrainDataLoader(
        series, transform=splitter, batch_size=workload.batch_size, stack_fn=batchify, num_batches_per_epoch=batches
    )

    def epoch(number: int) -> Iterator[Any]:
        return (torch.as_tensor(batch["past_target"], dtype=torch.float32) for batch in loader)

    return epoch


def _one(folder: Path, workload: Workload, workers: int) -> Epoch:
    return _load(1.0, folder, workload)


def _many(folder: Path, workload: Workload, workers: int) -> Epoch:
    return _load(min(2000.0, workload.num_samples / 2), folder, workload)


CASES = (
    Case(name="InstanceSplitter, 1 window a pass (default)", workload="windows", open=_one, remark="drawn at random: no epochs"),
    Case(name="InstanceSplitter, 2000 windows a pass", workload="windows", open=_many, remark="drawn at random, in order of time"),
)
