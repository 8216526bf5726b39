"""TF32: products of float32 with the shorter mantissa that GPUs have for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stoker.diagnose.tries.fix import REDUCED, Fix


class Tf32(Fix):
    """`torch.set_float32_matmul_precision("high")`, also for convolutions."""

    tolerance = REDUCED
    cuda_only = True
    nothing = "products of float32 may use TF32 already"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """After the program has set its own."""
        given = torch.get_float32_matmul_precision()
        self.used = given == "highest" or not torch.backends.cudnn.allow_tf32
        if self.used:
            torch.set_float32_matmul_precision("high")
            self._undo.append(lambda: torch.set_float32_matmul_precision(given))
            self.replace(torch.backends.cudnn, "allow_tf32", True)
