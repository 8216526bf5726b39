"""All suspects together: what is left is the step itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stoker.diagnose.experiments.base import Experiment
from stoker.diagnose.experiments.callbacks import WithoutCallbacks
from stoker.diagnose.experiments.copies import WithoutCopies
from stoker.diagnose.experiments.reads import WithoutReads
from stoker.diagnose.hooks import compiled


class WithoutAll(Experiment):
    """Callbacks, copies and reads are removed together, on cached batches."""

    cuda_only = True  # elsewhere, cached batches and callbacks are all
    with_data = False

    def __init__(self, steps: Callable[[], int]) -> None:
        super().__init__(steps)
        kinds = (WithoutCallbacks, WithoutCopies, WithoutReads)
        self._parts = [kind(steps) for kind in kinds if kind.keeps_compiled_code or not compiled()]

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        for part in self._parts:
            self._undo.callback(part.remove)
            part.on(roots, optimizer, [])
        self.used = True  # cached batches alone remove the data
