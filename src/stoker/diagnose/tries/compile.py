"""Compile: the forward pass of the model through `torch.compile`, and its backward pass with it.

With a number it is compiled for few launches (`mode="reduce-overhead"`): where it can, torch then runs it as CUDA graphs.
"""

from __future__ import annotations

import torch

from stoker.diagnose.tries.fix import ModuleFix


class Compile(ModuleFix):
    """The forward pass compiled; hooks of the module stay outside, where they cost the compiler nothing."""

    def change(self, module: torch.nn.Module) -> None:
        """Compile the forward pass at its next call."""
        compiled = torch.compile(module.forward, mode="reduce-overhead") if self.value else torch.compile(module.forward)
        self.replace(module, "forward", compiled)
