"""Replicas: each rank has all weights, and gradients become means over the ranks during the backward pass (torch's DDP).

The loss function is called within DDP, so it gets the model itself. Gradients of the first update are reduced by hand: then it is
known which weights take part, and DDP need not look for the others in each step. So are those that an epoch has left over.

With two ranks no sum depends on how DDP groups gradients, so a run that goes on is the same to the last bit. With more, DDP groups
them anew in the second update after each start, and sums may be rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from stoker.errors import TrainError
from stoker.train.loss import LossFunction
from stoker.train.ranks import Ranks


class Replicas:
    """What a step asks of the ranks where each has all weights."""

    def __init__(self, ranks: Ranks, model: nn.Module, loss: LossFunction, *, accumulate: int) -> None:
        self._ranks = ranks
        self._objective = _Objective(model, loss)
        self._accumulate = accumulate
        self._reducing: DistributedDataParallel | None = None
        self._pending = 0

    def loss(self, model: nn.Module, batch: Any) -> Any:
        """What the user's loss says; its backward pass reduces gradients if it is the last one before an update."""
        self._pending += 1
        batch = with_a_sample(batch)
        if self._reducing is None:
            return self._objective(batch)
        self._reducing.require_backward_grad_sync = self._pending == self._accumulate
        try:
            return self._reducing(batch)
        except RuntimeError as error:
            if "finished reduction in the prior iteration" not in str(error):
                raise
            raise TrainError(
                "a weight had a gradient in the first update, but not in each one since, so ranks cannot add it up. Let the loss "
                "depend on it each time: add 0 * weight.sum()."
            ) from error

    def join(self, parameters: Sequence[torch.Tensor]) -> None:
        """Reduce what no backward pass has reduced."""
        is_done = self._reducing is not None and self._pending == self._accumulate
        self._pending = 0
        if is_done:
            return
        used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
        used = torch.tensor(self._ranks.most(used.tolist()))
        gradients = []
        for parameter, is_used in zip(parameters, used.tolist(), strict=True):
            if is_used:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients.append(parameter.grad)
        if not gradients:
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self._ranks.mean(flat)
        for gradient, part in zip(gradients, flat.split_with_sizes([one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        if self._reducing is None:
            self._reducing = self._reduce(has_unused=not all(used.tolist()))

    def _reduce(self, *, has_unused: bool) -> DistributedDataParallel:
        statistics = {
            id(buffer)
            for layer in self._objective.modules()
            if isinstance(layer, _NormBase)
            for buffer in layer.buffers(recurse=False)
        }
        reducing = DistributedDataParallel(
            self._objective, find_unused_parameters=has_unused, gradient_as_bucket_view=True, init_sync=False
        )
        # Statistics are joined after each update; what else a model keeps is that of the first rank.
        reducing.broadcast_buffers = any(id(buffer) not in statistics for buffer in self._objective.buffers())
        return reducing

    def mean(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its mean over all ranks."""
        self._ranks.mean(tensor)

    def raise_flag(self, flag: torch.Tensor) -> None:
        """Each rank has the whole gradient, so it sees what the others see."""

    def norm(self, norm: torch.Tensor) -> torch.Tensor:
        """That of the gradient is that of the whole."""
        return norm

    def most(self, number: int) -> int:
        """The largest number of all ranks."""
        return self._ranks.most([number])[0]


class _Objective(nn.Module):
    """The loss as a module: what DDP wraps."""

    def __init__(self, model: nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Any:
        return self._loss(self.model, batch)


def with_a_sample(batch: Any) -> Any:
    """The batch; where none of its rows is a sample, as at the end of an epoch, the first one poses as one.

    Its weight in the update is nothing all the same, but a mean over no row would be no number.
    """
    valid = batch.get("valid") if isinstance(batch, dict) else None
    if not isinstance(valid, torch.Tensor) or valid.dim() != 1 or not len(valid):
        return batch
    poses = valid.clone()
    poses[0] |= ~valid.any()
    return {**batch, "valid": poses}
