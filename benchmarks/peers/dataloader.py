"""torch's `DataLoader` over a memory map: one sample a call, and whole batches by `__getitems__`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.before.tfa_windows import EfficientSeqWindows, SeqWindows, WindowDataset
from benchmarks.peers.workload import SEED, Case, Epoch, Workload, every_epoch

NEEDS = ("torch",)


class Rows(Dataset[torch.Tensor]):
    """One row a call."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._values = workload.values(folder)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._values[index])


class Batches(Dataset[torch.Tensor]):
    """A whole batch a call, rows or windows: the ten lines that serve this well."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._samples = workload.samples(folder)
        self._shape = workload.shape

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._samples[index].view(self._shape)

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.index_select(self._samples, 0, torch.tensor(indices)).view(len(indices), *self._shape)


def prepare(folder: Path, workload: Workload) -> None:
    """Nothing: `data.npy` is read as it is."""


def first(batch: Any) -> torch.Tensor:
    """The x of a batch of x and y; the labels are made, and not used."""
    x: torch.Tensor = batch[0] if isinstance(batch, list | tuple) else batch
    return x


def load(dataset: Dataset[Any], workload: Workload, workers: int, **options: Any) -> Epoch:
    """Shuffled; workers stay from epoch to epoch."""
    loader = DataLoader(
        dataset,
        batch_size=workload.batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(SEED),
        **options,
    )
    return every_epoch(lambda: map(first, loader))


def _rows(folder: Path, workload: Workload, workers: int) -> Epoch:
    return load(Rows(folder, workload), workload, workers)


def _batches(folder: Path, workload: Workload, workers: int) -> Epoch:
    return load(Batches(folder, workload), workload, workers, collate_fn=_as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch


def _tensors(folder: Path, workload: Workload, workers: int) -> Epoch:
    return load(TensorDataset(torch.from_numpy(np.array(workload.values(folder)))), workload, workers)


def _windows(folder: Path, workload: Workload, workers: int) -> Epoch:
    values = workload.values(folder)
    return load(WindowDataset(values, values[:, -1:], length=workload.length), workload, workers)


def _view(folder: Path, workload: Workload, workers: int) -> Epoch:
    values = workload.values(folder)
    dataset = EfficientSeqWindows(values, values[:, -1:], length=workload.length, start=0, end=len(values) - 1)
    return load(dataset, workload, workers)


def _loop(folder: Path, workload: Workload, workers: int) -> Epoch:
    values = workload.values(folder)

    def epoch(number: int) -> Iterator[torch.Tensor]:
        order = np.random.default_rng([SEED, number]).permutation(workload.num_samples) + workload.length - 1
        options = {"length": workload.length, "start": 0, "end": len(values) - 1, "batch": workload.batch_size}
        return map(first, SeqWindows(values, values[:, -1:], order=order.tolist(), **options))

    return epoch


CASES = (
    Case(name="DataLoader, one sample a call", workload="segments", open=_rows, workers=(0, 2)),
    Case(name="DataLoader, __getitems__ with index_select", workload="segments", open=_batches, workers=(0, 2)),
    Case(name="DataLoader, TensorDataset in memory", workload="segments", open=_tensors),
    Case(name="DataLoader, one window a call", workload="windows", open=_windows, workers=(0, 2)),
    Case(name="DataLoader, __getitems__ with index_select", workload="windows", open=_batches, workers=(0, 2)),
    Case(name="TFA's EfficientSeqWindows", workload="windows", open=_view),
    Case(
        name="TFA's SeqWindows loop, permuted", workload="windows", open=_loop, remark="one buffer, overwritten by the next batch"
    ),
)
