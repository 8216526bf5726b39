"""Heads: from hidden states to the next points, and the loss of all horizons at once.

The label of (position t, step k) is `y[t + k]`: labels of a horizon are a view of `y` that overlaps itself, never a copy. What
lies behind the end of a row, or in another series, or is masked, counts nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from stoker.recipes.time_moe.sizes import Size

DELTA = 2.0
"""Up to here the loss is a parabola, from here on a line."""
ALIGNED = 8


class Heads(nn.Module):
    """One matrix for all horizons, one below the other."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.horizons = size.horizons
        self.shares = (1.0,) * len(size.horizons)
        """How much the loss of each horizon counts, relative to the others."""
        self.weight = nn.Parameter(torch.empty(sum(size.horizons), size.hidden))

    def forward(self, hidden: Tensor, y: Tensor, mask: Tensor | None, begins: Tensor | None) -> Tensor:
        """Mean over the horizons, weighted by `shares`, of the mean Huber loss over labels that count.

        `mask` [b, l] says which labels count, `begins` [b, l] where the series of each position begins, in packed rows.
        """
        weight = F.pad(self.weight, (0, 0, 0, -len(self.weight) % ALIGNED)).to(hidden.dtype)
        every = F.linear(hidden, weight)
        valid = torch.ones_like(y, dtype=torch.bool) if mask is None else mask != 0
        total, begin = y.new_zeros(()), 0
        for horizon, share in zip(self.horizons, self.shares, strict=True):
            prediction = every[..., begin : begin + horizon].to(y.dtype)
            counts = ahead(valid, horizon)
            if begins is not None:
                counts = counts & (ahead(begins, horizon) == begins.unsqueeze(-1))
            apart = torch.where(counts, prediction - ahead(y, horizon), 0)  # before the loss: a label may be no number
            total = total + share * (huber(apart).sum() / counts.sum().clamp(min=1))
            begin += horizon
        return total / sum(self.shares)

    def predict(self, hidden: Tensor, horizon: int) -> Tensor:
        """The next points after each position, by the head of this horizon."""
        begin = sum(other for other in self.horizons if other < horizon)
        return F.linear(hidden, self.weight[begin : begin + horizon].to(hidden.dtype))


def huber(apart: Tensor) -> Tensor:
    """A parabola near 0, a line beyond `DELTA`."""
    size = apart.abs()
    return torch.where(size <= DELTA, 0.5 * apart.square(), DELTA * (size - 0.5 * DELTA))


def ahead(values: Tensor, horizon: int) -> Tensor:
    """`values[b, t + k]` for k below the horizon, [b, l, horizon]; 0 behind the end."""
    return F.pad(values, (0, horizon - 1)).unfold(1, horizon, 1)
