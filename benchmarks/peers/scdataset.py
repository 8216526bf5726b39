"""scDataset over the memory map: blocks of 16 (its paper's choice), and single rows."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.peers.workload import SEED, Case, Epoch, Workload, every_epoch

NEEDS = ("scdataset",)


def prepare(folder: Path, workload: Workload) -> None:
    """Nothing: any array that can be indexed will do."""


def _blocks(block: int, folder: Path, workload: Workload, workers: int) -> Epoch:
    from scdataset import BlockShuffling, scDataset
    from torch.utils.data import DataLoader

    stream = scDataset(
        workload.values(folder),
        BlockShuffling(block_size=block),
        batch_size=workload.batch_size,
        fetch_factor=16,
        batch_transform=torch.from_numpy,
        seed=SEED,
    )
    loader = DataLoader(stream, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return every_epoch(lambda: iter(loader))


def _sixteen(folder: Path, workload: Workload, workers: int) -> Epoch:
    return _blocks(16, folder, workload, workers)


def _single(folder: Path, workload: Workload, workers: int) -> Epoch:
    return _blocks(1, folder, workload, workers)


CASES = (
    Case(name="BlockShuffling(16), fetch factor 16", workload="segments", open=_sixteen, workers=(0, 2)),
    Case(name="BlockShuffling(1), fetch factor 16", workload="segments", open=_single),
)
