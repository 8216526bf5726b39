"""The fix `compile`: the forward pass by torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stoker.diagnose.experiments.base import ModuleFix


class Compile(ModuleFix):
    """The forward pass through `torch.compile`; with a value in `mode="reduce-overhead"`. Hooks of the module stay outside."""

    may_fail = True
    starts_slowly = True

    def _forward_of(self, module: torch.nn.Module) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(module.forward, mode="reduce-overhead" if self.value else None)
        return compiled
