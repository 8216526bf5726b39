"""Batch: twice as many samples a step. What is compared is samples a second; the training itself is another one."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from stoker.diagnose.tries.loaders import LoaderFix


class Batch(LoaderFix):
    """`batch_size` doubled, also within a sampler of batches."""

    tolerance = None
    samples_a_step = 2.0

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._doubled: list[Any] = []
        """Samplers of batches that are twice as large already: other libraries make loaders of the parts of loaders."""

    def change(self, options: dict[str, Any]) -> None:
        """Double the batch."""
        sampler = options.get("batch_sampler") or options.get("sampler")
        if isinstance(sampler, BatchSampler):
            if not any(sampler is one for one in self._doubled):
                sampler.batch_size *= 2
                self._doubled.append(sampler)
            self.used = True
        elif options.get("batch_size", 1) is not None and options.get("batch_sampler") is None:
            options["batch_size"] = 2 * options.get("batch_size", 1)
            self.used = True
        else:
            self.nothing = "the program makes its batches itself"

    def made(self, loader: DataLoader[Any]) -> None:
        """Remember the sampler of a loader that is twice as large."""
        if loader.batch_sampler is not None:
            self._doubled.append(loader.batch_sampler)
