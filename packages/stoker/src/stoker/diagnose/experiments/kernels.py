"""The fixes `sdpa` and `cudnn`: faster kernels of libraries, for attention and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stoker.diagnose.experiments.base import Fix


class FusedAttention(Fix):
    """`nn.MultiheadAttention` with `need_weights=False`, which uses scaled_dot_product_attention."""

    unused_reason = "no nn.MultiheadAttention of the program asks for its weights"

    def install(self) -> None:
        self.change_calls(torch.nn.MultiheadAttention, "forward", self._without_weights)

    def _without_weights(self, options: dict[str, Any]) -> None:
        if options.get("need_weights", True):
            self.used = True
            options["need_weights"] = False


class Cudnn(Fix):
    """`torch.backends.cudnn.benchmark = True`: cuDNN measures which of its convolutions is the fastest."""

    cuda_only = True
    unused_reason = "the model has no convolution, or cuDNN measures already"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        convolves = any(isinstance(part, torch.nn.modules.conv._ConvNd) for module in roots for part in module.modules())
        self.used = convolves and not torch.backends.cudnn.benchmark
        if self.used:
            self.replace(torch.backends.cudnn, "benchmark", True)
