"""cuDNN: let it measure which of its convolutions is the fastest."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stoker.diagnose.tries.fix import Fix


class Cudnn(Fix):
    """`torch.backends.cudnn.benchmark = True`."""

    cuda_only = True
    nothing = "the model has no convolution, or cuDNN measures already"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """After the program has set its own."""
        kinds = (torch.nn.modules.conv._ConvNd,)
        convolves = any(isinstance(part, kinds) for module in roots for part in module.modules())
        self.used = convolves and not torch.backends.cudnn.benchmark
        if self.used:
            self.replace(torch.backends.cudnn, "benchmark", True)
