"""A recurrent network over the steps of a sample. Axes: b rows, t steps, f features, d width."""

from __future__ import annotations

import torch
from torch import nn

from stoker.train.models.head import Head
from stoker.train.models.task import Task, at_last


class Gru(nn.Module):
    """Gated recurrent units; the state at the last step predicts, or that at each."""

    def __init__(self, task: Task, *, width: int = 128, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self._task = task
        # torch warns of dropout that nothing is between.
        self.steps = nn.GRU(task.num_features, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.head = Head(task, width)

    def forward(self, x_btf: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The prediction: [b, s, outputs]."""
        x_btd, _ = self.steps(x_btf)
        prediction: torch.Tensor = self.head(x_btd if self._task.every_step else at_last(x_btd, mask))
        return prediction
