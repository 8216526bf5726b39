"""What a loader serves: the numbers of the samples in each batch, for the quality of its shuffle and its determinism."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.peers.workload import Array, Workload


@dataclass(frozen=True)
class Served:
    """The sample numbers of each batch of an epoch, and whether it came to its end in time."""

    numbers: list[Array]
    whole: bool

    def quality(self, workload: Workload) -> dict[str, Any]:
        """The spread of sample numbers within a batch over that of a uniform draw, and how often a sample was served."""
        full = [batch for batch in self.numbers if len(batch) == workload.batch_size]
        seen = np.concatenate(self.numbers)
        spread = float(np.mean([batch.std() for batch in full])) / (workload.num_samples / np.sqrt(12))
        count = f"{len(seen)} of {workload.num_samples}, {len(np.unique(seen))} different"
        return {"in-batch spread": round(spread, 2), "samples served": count if self.whole else f"{count}; broken off"}

    def same_as(self, other: Served) -> str:
        """How many batches hold the same samples in the same order, of those that both came to."""
        equal = sum(np.array_equal(a, b) for a, b in zip(self.numbers, other.numbers, strict=False))
        count = (max if self.whole and other.whole else min)(len(self.numbers), len(other.numbers))
        return f"{equal} of {count}"


def look(batches: Iterator[torch.Tensor], workload: Workload, seconds: float) -> Served:
    """One epoch, or what of it `seconds` allow; every batch is held against the shape and the values that it should have."""
    start = time.perf_counter()
    numbers: list[Array] = []
    for batch in batches:
        if batch.shape[1:] != workload.shape or batch.dtype != torch.float32:
            raise ValueError(f"samples are {tuple(batch.shape[1:])} {batch.dtype}, not {workload.shape} float32")
        rows = batch.reshape(len(batch), workload.length, workload.width)[:, :, 0]
        if not torch.equal(rows - rows[:, :1], torch.arange(workload.length).expand(len(batch), -1).float()):
            raise ValueError("a batch has windows whose rows do not follow one another")
        numbers.append(rows[:, 0].long().numpy())
        if time.perf_counter() - start > seconds:
            return Served(numbers, whole=False)
    return Served(numbers, whole=True)
