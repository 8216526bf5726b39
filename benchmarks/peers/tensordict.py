"""tensordict: a memory-mapped TensorDict, indexed by batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import dataloader, indexing
from benchmarks.peers.workload import Case, Epoch, Workload

NEEDS = ("tensordict",)


def prepare(folder: Path, workload: Workload) -> None:
    """Its own folder of mapped tensors."""
    from tensordict import TensorDict

    values = torch.from_numpy(workload.values(folder))
    TensorDict({"x": values}, batch_size=[len(values)]).memmap(str(folder / "tensordict"))


def _mapped(folder: Path) -> Any:
    from tensordict import TensorDict

    return TensorDict.load_memmap(str(folder / "tensordict"))


def _index(folder: Path, workload: Workload, workers: int) -> Epoch:
    mapped = _mapped(folder)
    return indexing.permuted(workload, lambda index: mapped[torch.from_numpy(index)]["x"])


def _loader(folder: Path, workload: Workload, workers: int) -> Epoch:
    return dataloader.load(_mapped(folder), workload, workers, collate_fn=_column)


def _column(batch: Any) -> torch.Tensor:
    return torch.as_tensor(batch["x"])


CASES = (
    Case(name="memmap[index]", workload="segments", open=_index),
    Case(name="DataLoader(memmap)", workload="segments", open=_loader, workers=(0, 2)),
)
