"""Grain: a map-style source over the memory map, shuffled without an index, read by threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.workload import SEED, Array, Case, Epoch, Workload

NEEDS = ("grain",)


class Samples:
    """A source as Grain asks for one: a length, and a sample a call."""

    def __init__(self, values: Array, length: int) -> None:
        self._values, self._length = values, length

    def __len__(self) -> int:
        return len(self._values) - self._length + 1

    def __getitem__(self, index: int) -> Array:
        return self._values[index] if self._length == 1 else self._values[index : index + self._length]


def prepare(folder: Path, workload: Workload) -> None:
    """Nothing: the memory map is the source."""


def _open(folder: Path, workload: Workload, threads: int) -> Epoch:
    import grain

    source: Any = Samples(workload.values(folder), workload.length)
    # Batched before it is read, and few batches ahead: up to 16 times faster than batches of what the threads read singly.
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(4, threads) if threads else 0)

    def epoch(number: int) -> Iterator[torch.Tensor]:
        batches = grain.MapDataset.source(source).seed(SEED + number).shuffle().batch(workload.batch_size)
        return map(torch.from_numpy, batches.to_iter_dataset(options))

    return epoch


CASES = (
    Case(name="MapDataset.shuffle over a memmap", workload="segments", open=_open, workers=(0, 2, 16), kind="threads"),
    Case(name="MapDataset.shuffle over a memmap", workload="windows", open=_open, workers=(0, 2, 16), kind="threads"),
)
