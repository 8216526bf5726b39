"""The fix `threads`: another number of threads of torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stoker.diagnose.experiments.base import Fix


class Threads(Fix):
    """`torch.set_num_threads`."""

    with_data = True

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        self._undo.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(self.value or 1)
        self.used = True
