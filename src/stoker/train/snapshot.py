"""Snapshot: everything that a step changes, kept aside and put back bit for bit, so that steps can be tried out."""

from __future__ import annotations

import torch
from torch import nn

from stoker.train import rng


class Snapshot:
    """Weights, buffers, `others`, the optimizer's state and all random numbers, as they are now."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *others: torch.Tensor) -> None:
        self._optimizer = optimizer
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in [*model.parameters(), *model.buffers(), *others]]
        self._state = {
            parameter: {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
            for parameter, state in optimizer.state.items()
        }
        self._random = rng.capture()

    @torch.no_grad()
    def restore(self, *, for_graph: bool = False) -> None:
        """Put it back. Tensors stay the ones they are; state that an optimizer did not have is gone again.

        A graph knows tensors by their address, so `for_graph` leaves such state there as zeros, which is how the optimizers
        that graphs are made of begin.
        """
        for tensor, kept in self._tensors:
            tensor.copy_(kept)
        for parameter, state in list(self._optimizer.state.items()):
            before = self._state.get(parameter)
            if before is None and not for_graph:
                del self._optimizer.state[parameter]
                continue
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    value.zero_() if before is None else value.copy_(before[name])
                elif before is not None:
                    state[name] = before[name]
        rng.restore(self._random)
