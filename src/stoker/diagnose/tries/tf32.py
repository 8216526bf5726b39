"""TF32: products of float32 with the shorter mantissa that GPUs have for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stoker.diagnose.tries.fix import REDUCED, Fix


class Tf32(Fix):
    """`torch.set_float32_matmul_precision("high")`, also for convolutions."""

    tolerance = REDUCED
    cuda_only = True

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """After the program has set its own."""
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        self.used = True
