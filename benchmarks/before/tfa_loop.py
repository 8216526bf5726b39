"""The way the TFA trainer trains today: windows cut in Python, a pageable copy, float32, and a loss that is read after each step.

Rewritten after its authors' trainer, for `stoker bench tfa` and the benchmarks to compare with. The model is the trainer's own:
a linear layer, an encoder without positions, and the last row's logit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import IterableDataset

Array = npt.NDArray[np.float32]
Sample = tuple[torch.Tensor, torch.Tensor]


class SeqWindows(IterableDataset[Sample]):
    """The trainer's loop: whole batches, copied window by window into one buffer that the next batch overwrites.

    As it was run, each worker of a `DataLoader` serves every window, and the buffer is overwritten while it is being sent.
    """

    def __init__(self, x: Array, y: Array, *, length: int, start: int, end: int, batch: int, order: Sequence[int] | None = None):
        super().__init__()
        self._x, self._y = x, y
        self._length, self._batch = length, batch
        self._rows = range(max(start, length - 1), end + 1) if order is None else order

    def __iter__(self) -> Iterator[Sample]:
        xs = np.empty((self._batch, self._length, self._x.shape[1]), dtype=np.float32)
        ys = np.empty((self._batch, 1), dtype=np.float32)
        for first in range(0, len(self._rows), self._batch):
            rows = self._rows[first : first + self._batch]
            for k, row in enumerate(rows):
                xs[k] = self._x[row - self._length + 1 : row + 1]
                ys[k, 0] = self._y[row, 0]
            yield torch.from_numpy(xs[: len(rows)]), torch.from_numpy(ys[: len(rows)])


class Tfa(nn.Module):
    """The trainer's transformer: 404,737 weights at its own sizes."""

    mean: torch.Tensor
    inv_std: torch.Tensor

    def __init__(
        self, mean: torch.Tensor, std: torch.Tensor, *, width: int = 128, heads: int = 8, layers: int = 3, hidden: int = 256
    ):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("inv_std", 1 / std)
        self.inp = nn.Linear(len(mean), width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of windows."""
        z: torch.Tensor = self.encoder(self.inp((x - self.mean) * self.inv_std))
        out: torch.Tensor = self.head(z[:, -1])
        return out


def train(
    model: nn.Module, x: Array, y: Array, *, pos_weight: float, batch: int, length: int, num_steps: int, device: str
) -> list[float]:
    """A number of steps of the trainer's loop; returns the loss of each, as the loop reads it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, foreach=True)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([pos_weight], device=device))
    windows = SeqWindows(x, y, length=length, start=length - 1, end=len(x) - 1, batch=batch)
    losses: list[float] = []
    while True:
        for xb, yb in windows:
            xb, yb = xb.to(device, non_blocking=True), yb.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(xb), yb)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == num_steps:
                return losses
