"""NeuralForecast: the windows of a training step, as its models make them from one series with 54 exogenous columns."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.peers.workload import Case, Epoch, Workload

NEEDS = ("neuralforecast",)


def prepare(folder: Path, workload: Workload) -> None:
    """Nothing: the series is given as a table in memory."""


def _open(folder: Path, workload: Workload, workers: int) -> Epoch:
    import pandas as pd
    from neuralforecast.models import MLP
    from neuralforecast.tsdataset import TimeSeriesDataset, TimeSeriesLoader

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    names = ["y", *(f"x{column}" for column in range(1, workload.width))]
    table = pd.DataFrame(workload.values(folder), columns=names).assign(unique_id="a", ds=range(workload.rows))
    dataset, *_ = TimeSeriesDataset.from_df(table)
    model = MLP(h=1, input_size=workload.length, hist_exog_list=names[1:], windows_batch_size=workload.batch_size)
    loader = TimeSeriesLoader(dataset, batch_size=32, shuffle=True)

    def epoch(number: int) -> Iterator[torch.Tensor]:
        for _ in range(-(-workload.num_samples // workload.batch_size)):
            for batch in loader:
                windows, static, static_columns, usable, weight, columns = model._create_windows(batch, step="train")
                chosen = torch.randperm(len(usable))[: workload.batch_size]
                sample = model._sample_windows(windows, static, static_columns, columns, chosen, usable, weight)
                yield sample["temporal"][:, : workload.length, : workload.width, 0]

    return epoch


CASES = (
    Case(name="training step of a model, 1 series", workload="windows", open=_open, remark="drawn again at each step: no epochs"),
)
