"""The fix `compile`: the forward pass by torch.compile."""

from __future__ import annotations

from typing import Any

import torch

from stoker.diagnose.experiments.base import ModuleFix


class Compile(ModuleFix):
    """The forward pass through `torch.compile`; with a value in `mode="reduce-overhead"`. Hooks of the module stay outside."""

    may_fail = True
    starts_slowly = True

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._compiled: dict[int, Any] = {}  # by the id of a module: so that it is compiled once

    def _change(self, module: torch.nn.Module) -> None:
        if id(module) not in self._compiled:
            self._compiled[id(module)] = torch.compile(module.forward, mode="reduce-overhead" if self.value else None)
        self.replace(module, "forward", self._compiled[id(module)])
