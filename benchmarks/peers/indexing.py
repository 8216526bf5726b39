"""NumPy and torch without a loader: a permutation, and one indexing a batch into a new array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.workload import SEED, Array, Case, Epoch, Workload

NEEDS = ("numpy",)


def prepare(folder: Path, workload: Workload) -> None:
    """Nothing: `data.npy` is read as it is."""


def permuted(workload: Workload, take: Callable[[Array], torch.Tensor]) -> Epoch:
    """Batches of a new permutation each epoch."""

    def epoch(number: int) -> Iterator[torch.Tensor]:
        order = np.random.default_rng([SEED, number]).permutation(workload.num_samples)
        return (take(order[start : start + workload.batch_size]) for start in range(0, len(order), workload.batch_size))

    return epoch


def _rows(folder: Path, workload: Workload, workers: int) -> Epoch:
    values = workload.values(folder)
    return permuted(workload, lambda index: torch.from_numpy(values[index]))


def _fresh(folder: Path, workload: Workload, workers: int) -> Epoch:
    samples = workload.samples(folder)
    return permuted(workload, lambda index: samples.index_select(0, torch.from_numpy(index)).view(-1, *workload.shape))


def _windows(folder: Path, workload: Workload, workers: int) -> Epoch:
    values = workload.values(folder)
    view = np.lib.stride_tricks.sliding_window_view(values, (workload.length, workload.width)).squeeze(1)
    return permuted(workload, lambda index: torch.from_numpy(view[index]))


def _copies(folder: Path, workload: Workload, workers: int) -> Epoch:
    source = torch.from_numpy(workload.values(folder)).view(-1)
    size = workload.batch_size * workload.length * workload.width
    buffer = torch.empty(size)

    def epoch(number: int) -> Iterator[torch.Tensor]:
        for batch in range(-(-workload.num_samples // workload.batch_size)):
            start = batch * size % max(1, len(source) - size)
            yield buffer.copy_(source[start : start + size]).view(workload.batch_size, -1)

    return epoch


CASES = (
    Case(name="the limit: contiguous copies into one buffer", workload="segments", open=_copies, checked=False),
    Case(name="numpy memmap[index]", workload="segments", open=_rows),
    Case(name="index_select, a new tensor each", workload="segments", open=_fresh),
    Case(name="the limit: contiguous copies into one buffer", workload="windows", open=_copies, checked=False),
    Case(name="numpy sliding_window_view[index]", workload="windows", open=_windows),
    Case(name="as_strided and index_select, a new tensor each", workload="windows", open=_fresh),
)
