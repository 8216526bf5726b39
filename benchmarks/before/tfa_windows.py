"""How the TFA trainer cuts windows today: a loop into a reused buffer, its repair with a strided view, and what most people write.

All three serve `x` of T rows that end at row i, and `y` of row i, for every i from `start` to `end` (both included).
Nothing but the order is added: the loop takes one, so that it can be compared with loaders that shuffle.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.lib.stride_tricks import as_strided
from torch.utils.data import DataLoader, Dataset

from benchmarks.before.tfa_loop import Array, Sample, SeqWindows

__all__ = ["Array", "EfficientSeqWindows", "Sample", "SeqWindows", "WindowDataset", "loader"]


class EfficientSeqWindows(Dataset[Sample]):
    """The trainer's repair: a view of all windows without a copy, one sample a call, stacked by the default collator."""

    def __init__(self, x: Array, y: Array, *, length: int, start: int, end: int):
        self._start = max(start, length - 1)
        self._num_windows = end - self._start + 1
        self._length = length
        rows, columns = x.strides
        self._windows = as_strided(x, shape=(len(x) - length + 1, length, x.shape[1]), strides=(rows, rows, columns))
        self._y = y

    def __len__(self) -> int:
        return self._num_windows

    def __getitem__(self, index: int) -> Sample:
        row = self._start + index
        return torch.from_numpy(self._windows[row - self._length + 1]), torch.from_numpy(self._y[row])


class WindowDataset(Dataset[Sample]):
    """What most people write: tensors, sliced in `__getitem__`."""

    def __init__(self, x: Array, y: Array, *, length: int):
        self._x, self._y = torch.from_numpy(x), torch.from_numpy(y)
        self._length = length

    def __len__(self) -> int:
        return len(self._x) - self._length + 1

    def __getitem__(self, index: int) -> Sample:
        return self._x[index : index + self._length], self._y[index + self._length - 1]


def loader(dataset: Dataset[Sample], *, batch_size: int, num_workers: int = 0) -> DataLoader[Any]:
    """The usual `DataLoader`: shuffled, the default collator, workers that stay."""
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0)
