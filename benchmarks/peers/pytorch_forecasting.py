"""pytorch-forecasting: `TimeSeriesDataSet` over one series of real columns, without scaling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.peers.workload import Case, Epoch, Workload

NEEDS = ("pytorch_forecasting",)


def prepare(folder: Path, workload: Workload) -> None:
    """Nothing: the series is given as a table in memory."""


def _open(folder: Path, workload: Workload, workers: int) -> Epoch:
    import pandas as pd
    from pytorch_forecasting import TimeSeriesDataSet

    names = [f"x{column}" for column in range(workload.width)]
    table = pd.DataFrame(workload.values(folder), columns=names).assign(series="a", step=range(workload.rows))
    dataset = TimeSeriesDataSet(
        table,
        time_idx="step",
        target=names[-1],
        group_ids=["series"],
        max_encoder_length=workload.length,
        max_prediction_length=1,
        time_varying_unknown_reals=names,
        target_normalizer=None,
        scalers=dict.fromkeys(names[:-1]),
        add_encoder_length=False,
    )
    loader = dataset.to_dataloader(
        train=True, batch_size=workload.batch_size, num_workers=workers, persistent_workers=workers > 0, drop_last=False
    )

    def epoch(number: int) -> Iterator[torch.Tensor]:
        return (x["encoder_cont"] for x, _ in loader)

    return epoch


CASES = (Case(name="TimeSeriesDataSet and its loader", workload="windows", open=_open, workers=(0, 2)),)
