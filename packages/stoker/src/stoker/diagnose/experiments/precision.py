"""The fixes `autocast`, `tf32` and `float32`: the same computation in a shorter type."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from stoker.diagnose.experiments.base import Fix, ModuleFix
from stoker.diagnose.thresholds import RULE


class Autocast(ModuleFix):
    """The forward pass under `torch.autocast` in bfloat16; its outputs are float32 again."""

    tolerance = RULE.loss_tolerance_reduced
    may_fail = True

    def _forward_of(self, module: torch.nn.Module) -> Callable[..., Any]:
        forward = module.forward
        weight = next(module.parameters())

        @functools.wraps(forward)
        def within(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(weight.device.type, torch.bfloat16):
                out = forward(*args, **kwargs)
            return as_float32(out, torch.bfloat16)

        return within


class Tf32(Fix):
    """`torch.set_float32_matmul_precision("high")`, also for convolutions."""

    tolerance = RULE.loss_tolerance_reduced
    cuda_only = True
    unused_reason = "float32 matmuls may use TF32 already"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        before = torch.get_float32_matmul_precision()
        self.used = before == "highest" or not torch.backends.cudnn.allow_tf32
        if self.used:
            torch.set_float32_matmul_precision("high")
            self._undo.callback(torch.set_float32_matmul_precision, before)
            self.replace(torch.backends.cudnn, "allow_tf32", True)


class Float32(Fix):
    """Weights, the state of the optimizer and batches in float32 instead of float64."""

    tolerance = RULE.loss_tolerance_reduced
    may_fail = True
    changes_batches = True
    unused_reason = "no weight is float64"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        weights = [tensor for module in roots for tensor in (*module.parameters(), *module.buffers())]
        state = [value for values in (optimizer.state.values() if optimizer is not None else ()) for value in values.values()]
        for tensor in [*weights, *(value for value in state if isinstance(value, torch.Tensor) and value.ndim)]:
            if tensor.dtype is torch.float64:
                self._undo.callback(_set_data, tensor, tensor.data)
                _set_data(tensor, tensor.data.float())
                self.used = True
        for module in roots if self.used else ():  # a loop may take its samples from a tensor by itself
            cast = module.register_forward_pre_hook(lambda _, args, kwargs: self.batch((args, kwargs)), with_kwargs=True)
            self._undo.callback(cast.remove)

    def batch(self, value: Any) -> Any:
        return as_float32(value, torch.float64)


def as_float32(value: Any, dtype: torch.dtype) -> Any:
    """Return a structure with its tensors of this type in float32."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.float() if tensor.dtype is dtype else tensor, value)


def _set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    tensor.grad = None  # of the type that it had
    tensor.data = data
