"""Graph: forward and backward of the model as CUDA graphs, captured at the next call with the shapes of its arguments."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from stoker.diagnose.tries.fix import ModuleFix
from stoker.errors import TrainError


class Graph(ModuleFix):
    """The model through `torch.cuda.make_graphed_callables`."""

    cuda_only = True

    def change(self, module: torch.nn.Module) -> None:
        """Capture when arguments are at hand."""
        forward = module.forward

        def capturing(*args: Any, **kwargs: Any) -> Any:
            if kwargs or not all(isinstance(one, torch.Tensor) for one in args):
                raise TrainError("the model is not called with tensors alone, by position: a graph of it cannot be captured.")
            module.forward = forward
            _capture(module, args)
            return module.forward(*args)

        module.forward = capturing


def _capture(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    # torch refuses modules with hooks; those that watch the module are called outside of its forward pass anyway.
    hooks, module._forward_pre_hooks = module._forward_pre_hooks, OrderedDict()
    try:
        samples = tuple(one.detach().clone().requires_grad_(one.requires_grad) for one in args)
        torch.cuda.make_graphed_callables(module, samples)
    finally:
        module._forward_pre_hooks = hooks
