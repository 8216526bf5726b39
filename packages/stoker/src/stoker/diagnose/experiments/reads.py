"""The suspect `reads`: values that the host reads from the GPU, and waits for."""

from __future__ import annotations

from typing import Any

import torch

from stoker.diagnose.experiments.base import StaleCalls
from stoker.diagnose.measurements import Sync

READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")


class WithoutReads(StaleCalls):
    """Values that are read from the GPU are those of the same call one step before: the host does not wait for them."""

    methods = (*READS, "to")
    device = "cuda"
    unused_reason = "the loop reads no value of the GPU"

    def lines(self) -> list[Sync]:
        """Return the user's lines that read values of the GPU, with the number of reads per step, the most frequent first."""
        return [Sync(place=place, count=float(number)) for place, number in self.places.most_common()]

    def install(self) -> None:
        super().install()
        self.replace(torch.cuda, "synchronize", self._no_wait)

    def _no_wait(self, *args: Any, **kwargs: Any) -> None:
        self.used = True
