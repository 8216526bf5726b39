"""Losses by name: a sample's loss is the mean over its targets that count, a batch's the mean over its samples.

So batches of different fill can be joined by their number of samples, which is how accumulation and ranks weigh them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from stoker.errors import OptionError, TrainError
from stoker.train.models.task import Task

Each = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From predictions [b, s, k, outputs_each] and targets [b, s, k] to losses [b, s, k]."""


class TaskLoss:
    """`loss(model, batch)` of a task."""

    def __init__(self, task: Task, each: Each, *, classes: bool = False) -> None:
        self.task = task
        self._each = each
        self._classes = classes

    def __call__(self, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        """The loss, and what metrics need."""
        task = self.task
        prediction = model(batch)
        if prediction.dtype in (torch.bfloat16, torch.float16):
            prediction = prediction.float()
        target = task.target(batch)
        counts = task.weight(batch, target)
        if self._classes:
            target = target.long()
            counts = counts & (target >= 0)
        else:
            target = target.to(prediction.dtype)
        if prediction.numel() != target.numel() * task.outputs_each:
            expected = (len(target), task.steps, task.outputs)
            raise TrainError(f"the model gives {tuple(prediction.shape)}; expected [rows, predicted steps, outputs] = {expected}.")
        shaped = prediction.reshape(*target.shape, task.outputs_each)
        # Not times zero: a target that does not count may be anything, even no number.
        losses = torch.where(counts, self._each(shaped, torch.where(counts, target, 0)), 0)
        rows = losses.sum((1, 2)) / counts.sum((1, 2)).clamp(min=1)
        samples = batch["valid"].sum().clamp(min=1) if "valid" in batch else len(rows)
        shown = shaped[..., 0] if task.outputs_each == 1 else shaped
        return {"loss": rows.sum() / samples, "prediction": shown.detach(), "target": target, "valid": counts}


def mse(task: Task) -> TaskLoss:
    """Mean of squared errors."""
    return TaskLoss(task, lambda p, y: functional.mse_loss(p[..., 0], y, reduction="none"))


def mae(task: Task) -> TaskLoss:
    """Mean of absolute errors."""
    return TaskLoss(task, lambda p, y: functional.l1_loss(p[..., 0], y, reduction="none"))


def huber(task: Task, *, delta: float = 1.0) -> TaskLoss:
    """Squared for small errors, absolute for large ones."""
    return TaskLoss(task, lambda p, y: functional.huber_loss(p[..., 0], y, reduction="none", delta=delta))


def bce(task: Task, *, positive_weight: float = 1.0) -> TaskLoss:
    """Binary cross-entropy of logits."""

    def each(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        losses = functional.binary_cross_entropy_with_logits(p[..., 0], y, reduction="none")
        return losses if positive_weight == 1.0 else losses * (1 + (positive_weight - 1) * y)

    return TaskLoss(task, each)


def cross_entropy(task: Task, *, smoothing: float = 0.0) -> TaskLoss:
    """Of logits, one a class; negative classes are missing."""
    if task.outputs_each < 2:
        raise OptionError("cross_entropy: the number of classes is not known. Set loss.classes.")

    def each(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        losses = functional.cross_entropy(p.flatten(0, 2), y.flatten(), reduction="none", label_smoothing=smoothing)
        return losses.reshape(y.shape)

    return TaskLoss(task, each, classes=True)


def quantile(task: Task, *, quantiles: tuple[float, ...]) -> TaskLoss:
    """Pinball loss, the mean over the quantiles."""

    def each(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # Filled in on the device: a tensor of the list would be a copy from the host, which a graph cannot hold.
        levels = torch.cat([torch.full((1,), level, dtype=p.dtype, device=p.device) for level in quantiles])
        errors = y[..., None] - p
        return torch.maximum(levels * errors, (levels - 1) * errors).mean(-1)

    return TaskLoss(task, each)
