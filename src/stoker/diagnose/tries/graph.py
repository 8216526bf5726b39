"""Graph: forward and backward of the model as CUDA graphs, and the optimizer's update as one kernel.

A whole step of a program that nobody may change cannot be captured: its loop runs each step anew, reads batches, and may look at
the loss. What is replayed is what torch can put in place of the model's call; the loss and the loop stay as they are.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from stoker.diagnose.tries.fix import ModuleFix
from stoker.diagnose.tries.fused import Fused
from stoker.errors import TrainError


class Graph(ModuleFix):
    """The model through `torch.cuda.make_graphed_callables`, captured at its next call; and a fused optimizer."""

    cuda_only = True
    may_fail = True

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Change the model, and the optimizer at its next step."""
        super().begin(roots, optimizer)
        fused = Fused()
        fused.install()
        self._undo.append(fused.remove)

    def change(self, module: torch.nn.Module) -> None:
        """Capture when arguments are at hand."""
        forward = module.forward
        graphed: dict[Any, Any] = {}

        def capturing(*args: Any, **kwargs: Any) -> Any:
            if kwargs or not all(isinstance(one, torch.Tensor) for one in args):
                raise TrainError("the model is not called with tensors alone, by position: a graph of it cannot be captured.")
            if not (torch.is_grad_enabled() and module.training):
                return forward(*args)
            shapes = tuple((one.shape, one.dtype) for one in args)
            if not graphed:
                graphed[shapes] = _capture(module, forward, args)
                module.forward = capturing
            return graphed.get(shapes, forward)(*args)  # of one shape only: others, such as a last batch, run as before

        self.replace(module, "forward", capturing)


def _capture(module: torch.nn.Module, forward: Any, args: tuple[torch.Tensor, ...]) -> Any:
    # torch refuses modules with hooks; those that watch the module are called outside of its forward pass anyway.
    hooks, module._forward_pre_hooks = module._forward_pre_hooks, OrderedDict()
    module.forward = forward
    try:
        samples = tuple(one.detach().clone().requires_grad_(one.requires_grad) for one in args)
        with warnings.catch_warnings():
            # Capturing uses a stream of its own, other than that of earlier steps. Losses are compared afterwards.
            warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
            torch.cuda.make_graphed_callables(module, samples)
        return module.forward
    finally:
        module._forward_pre_hooks = hooks
