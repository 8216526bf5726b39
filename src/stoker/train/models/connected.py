"""Fully connected models: all steps of a sample at once. With no hidden layer it is the linear baseline.

Padded steps are zero, so they add nothing. Where every step predicts, each step sees itself alone.
"""

from __future__ import annotations

import torch
from torch import nn

from stoker.train.models.task import Task


class Mlp(nn.Module):
    """Hidden layers of `width`, each with GELU; none for a linear model."""

    def __init__(self, task: Task, *, width: int = 256, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self._task = task
        size = task.num_features * (1 if task.every_step else task.length)
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(size, width), nn.GELU(), nn.Dropout(dropout)]
            size = width
        outputs = task.outputs * (1 if task.every_step else task.steps)
        self.layers = nn.Sequential(*parts, nn.Linear(size, outputs))

    def forward(self, x_btf: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The prediction: [b, s, outputs]."""
        if self._task.every_step:
            each: torch.Tensor = self.layers(x_btf)
            return each
        missing = self._task.length - x_btf.shape[1]
        if missing:  # a batch of a narrower bucket
            x_btf = nn.functional.pad(x_btf, (0, 0, 0, missing))
        prediction: torch.Tensor = self.layers(x_btf.flatten(1))
        return prediction.reshape(-1, self._task.steps, self._task.outputs)
