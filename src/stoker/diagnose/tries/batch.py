"""Batch: twice as many samples a step. What is compared is samples a second; the training itself is another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import BatchSampler, DataLoader

from stoker.diagnose.tries.loaders import LoaderFix


class Batch(LoaderFix):
    """`batch_size` doubled, also within a sampler of batches."""

    tolerance = None
    samples_a_step = 2.0
    may_fail = True

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

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Each batch with the one after it."""
        twice = [doubled(one, other) for one, other in zip(batches, [*batches[1:], *batches[:1]], strict=True)]
        kept = [one for one in twice if one is not None]
        self.used = len(kept) == len(batches) > 0
        return kept if self.used else batches

    def made(self, loader: DataLoader[Any]) -> None:
        """Remember the sampler of a loader that is twice as large."""
        if loader.batch_sampler is not None:
            self._doubled.append(loader.batch_sampler)


def doubled(one: Any, other: Any) -> Any:
    """The rows of two batches in one; None where they do not have a row a sample."""
    (mine, form), (theirs, same) = tree_flatten(one), tree_flatten(other)
    tensors = [*mine, *theirs]
    if form != same or not tensors or not all(isinstance(leaf, torch.Tensor) and leaf.ndim for leaf in tensors):
        return None
    shapes = {(len(a), a.shape[1:] == b.shape[1:]) for a, b in zip(mine, theirs, strict=True)}
    if len(shapes) != 1 or not next(iter(shapes))[1]:
        return None
    return tree_unflatten([torch.cat(pair) for pair in zip(mine, theirs, strict=True)], form)
