"""Snapshot: everything that a step changes, kept aside and put back bit for bit, so that steps can be tried out."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import xxhash
from torch import nn

from stoker.train import rng


class Snapshot:
    """Weights, buffers, numbers that modules count in attributes, `others`, the optimizer's state and all random numbers.

    `model` may come with further modules that a step changes, such as a loss with buffers.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *others: torch.Tensor | nn.Module) -> None:
        self._optimizer = optimizer
        modules = [model, *(one for one in others if isinstance(one, nn.Module))]
        tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        tensors += [one for one in others if isinstance(one, torch.Tensor)]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._counted = [
            (layer, {name: value for name, value in vars(layer).items() if _is_plain(name, value)})
            for module in modules
            for layer in module.modules()
        ]
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
        for layer, plain in self._counted:
            vars(layer).update(plain)
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

    def digest(self) -> str:
        """A hash of the present bits of all that a step changes, random numbers apart."""
        hasher = xxhash.xxh3_128()
        for value in self._present():
            if isinstance(value, torch.Tensor):
                hasher.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
            else:
                hasher.update(repr(value).encode())
        return hasher.hexdigest()

    def _present(self) -> Iterator[object]:
        yield from (tensor for tensor, _ in self._tensors)
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                yield from self._optimizer.state.get(parameter, {}).values()


def _is_plain(name: str, value: object) -> bool:
    """Whether an attribute of a module is a number or a word, which a forward pass may count up or set."""
    return name != "training" and (value is None or isinstance(value, bool | int | float | str))
