"""Autocast: products of the model in bfloat16; what it gives to the loss is float32 again."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_map

from stoker.diagnose.tries.fix import REDUCED, ModuleFix


class Autocast(ModuleFix):
    """The forward pass under `torch.autocast`."""

    tolerance = REDUCED
    may_fail = True

    def change(self, module: torch.nn.Module) -> None:
        """Wrap the forward pass."""
        forward = module.forward
        weight = next(module.parameters())

        @functools.wraps(forward)
        def within(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(weight.device.type, torch.bfloat16):
                out = forward(*args, **kwargs)
            return tree_map(_widened, out)

        self.replace(module, "forward", within)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16 else value
