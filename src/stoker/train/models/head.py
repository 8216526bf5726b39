"""The head: from the state of steps to the prediction, for one step that predicts or for all."""

from __future__ import annotations

import torch
from torch import nn

from stoker.train.models.task import Task


class Head(nn.Module):
    """A norm and a matrix: [b, q, width] to [b, s, outputs], where q is 1 or all steps."""

    def __init__(self, task: Task, width: int) -> None:
        super().__init__()
        self._task = task
        each = 1 if task.every_step else task.steps
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, each * task.outputs)

    def forward(self, x_bqd: torch.Tensor) -> torch.Tensor:
        """The prediction."""
        given = self.output(self.norm(x_bqd))
        prediction: torch.Tensor = given if self._task.every_step else given.reshape(-1, self._task.steps, self._task.outputs)
        return prediction
