"""Threads: another number of them within an operation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stoker.diagnose.tries.fix import Fix


class Threads(Fix):
    """`torch.set_num_threads`."""

    with_data = True

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """After the program has set its own."""
        given = torch.get_num_threads()
        torch.set_num_threads(self.value or 1)
        self._undo.append(lambda: torch.set_num_threads(given))
        self.used = True
