"""Windows of many series as people cut them without a library: `unfold` and `randperm`, or a Dataset and a DataLoader.

Both get values that were scaled once, before the first epoch, which needs a second copy of the data. `scaling_loop` scales in
the loop instead, as one does where there is no room for the copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

Pair = tuple[Tensor, Tensor]


def plain_loop(values: Tensor, *, length: int, horizon: int, stride: int, batch_size: int, seed: int) -> Iterator[Pair]:
    """Inputs and targets of all windows of `values` [series, steps] in random order."""
    windows = values.unfold(1, length + horizon, stride)
    num_windows = windows.shape[1]
    order = torch.randperm(windows.shape[0] * num_windows, generator=torch.Generator().manual_seed(seed))
    for chosen in order.split(batch_size):
        rows = windows[chosen // num_windows, chosen % num_windows]
        yield rows[:, :length], rows[:, length:]


def scaling_loop(
    values: Tensor, centers: Tensor, divisors: Tensor, *, length: int, horizon: int, stride: int, batch_size: int, seed: int
) -> Iterator[Pair]:
    """The same, scaled batch by batch."""
    windows = values.unfold(1, length + horizon, stride)
    num_windows = windows.shape[1]
    order = torch.randperm(windows.shape[0] * num_windows, generator=torch.Generator().manual_seed(seed))
    for chosen in order.split(batch_size):
        series = chosen // num_windows
        rows = (windows[series, chosen % num_windows] - centers[series, None]) / divisors[series, None]
        yield rows[:, :length], rows[:, length:]


class WindowDataset(Dataset[Pair]):
    """What most people write: one slice a sample."""

    def __init__(self, values: Tensor, *, length: int, horizon: int, stride: int) -> None:
        self._values, self._length, self._span, self._stride = values, length, length + horizon, stride
        self._num_windows = (values.shape[1] - self._span) // stride + 1

    def __len__(self) -> int:
        return len(self._values) * self._num_windows

    def __getitem__(self, index: int) -> Pair:
        series, place = divmod(index, self._num_windows)
        row = self._values[series, place * self._stride : place * self._stride + self._span]
        return row[: self._length], row[self._length :]


def loader(values: Tensor, *, length: int, horizon: int, stride: int, batch_size: int, seed: int) -> DataLoader[Pair]:
    """A DataLoader over it, in this process: worker processes use more CPU time, not less."""
    dataset = WindowDataset(values, length=length, horizon=horizon, stride=stride)
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, generator=torch.Generator().manual_seed(seed))
