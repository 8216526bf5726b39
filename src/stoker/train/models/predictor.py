"""The predictor: a batch in, a prediction out. Around a network it knows the columns, and the units of the store.

Scalers are fitted on the training samples alone, and are a part of the model: they are saved and exported with it, so whoever
uses it gives raw values and gets raw values.
"""

from __future__ import annotations

import torch
from torch import nn

from stoker.train.models.task import Batch, Task


class Predictor(nn.Module):
    """A network `network(x [b, t, f], mask [b, t] or None) -> [b, s, outputs]`, for batches of a task.

    `scaler` maps the features; `target_scaler` has an `inverse`, which maps predictions back to units of the targets.
    """

    def __init__(
        self, task: Task, network: nn.Module, *, scaler: nn.Module | None = None, target_scaler: nn.Module | None = None
    ) -> None:
        super().__init__()
        self._task = task
        self.scaler = scaler
        self.target_scaler = target_scaler
        self.network = network

    def forward(self, batch: Batch) -> torch.Tensor:
        """The prediction: [b, s, outputs]."""
        task = self._task
        x_btf = task.features(batch)
        mask = task.mask(batch)
        if self.scaler is not None:
            x_btf = self.scaler(x_btf)
            if mask is not None:  # padding stays zero
                x_btf = torch.where(mask[:, :, None], x_btf, 0)
        prediction: torch.Tensor = self.network(x_btf, mask)
        if self.target_scaler is None:
            return prediction
        each = prediction.reshape(*prediction.shape[:-1], task.num_targets, task.outputs_each).transpose(-1, -2)
        scaled: torch.Tensor = self.target_scaler.inverse(each).transpose(-1, -2).flatten(-2)  # type: ignore[operator]
        return scaled
