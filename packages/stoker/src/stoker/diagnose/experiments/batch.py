"""The fix `batch`: twice the samples per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import BatchSampler

from stoker.diagnose.experiments.base import LoaderFix


class Batch(LoaderFix):
    """`batch_size` doubled, also within a batch sampler; in a program that runs, two cached batches in one.

    Samples per second are compared; losses differ.
    """

    tolerance = None
    samples_per_step = 2.0
    may_fail = True
    changes_batches = True
    unused_reason = "no DataLoader makes batches"
    fits_if_unused = True  # cached batches without a row per sample cannot be doubled, but those of a loader can

    def _change(self, options: dict[str, Any]) -> None:
        sampler = options.get("batch_sampler") or options.get("sampler")
        if isinstance(sampler, BatchSampler):
            sampler.batch_size = doubled_size(sampler.batch_size)
            self.used = True
        elif options.get("batch_size", 1) is not None and options.get("batch_sampler") is None:
            options["batch_size"] = doubled_size(options.get("batch_size", 1))
            self.used = True
        else:
            self.unused_reason = "the program makes its batches itself"

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Join each batch with the one after it."""
        twice = [doubled(batch, other) for batch, other in zip(batches, [*batches[1:], *batches[:1]], strict=True)]
        self.used = bool(twice) and not any(joined is None for joined in twice)
        return twice if self.used else batches


class DoubledSize(int):
    """A batch size that is doubled already: other libraries make loaders of the parts of loaders."""


def doubled_size(size: int) -> DoubledSize:
    """Return twice this size, once."""
    return size if isinstance(size, DoubledSize) else DoubledSize(2 * size)


def doubled(batch: Any, other: Any) -> Any:
    """Return the rows of two batches in one; None where they do not have one row per sample."""
    (mine, form), (theirs, same_form) = tree_flatten(batch), tree_flatten(other)
    tensors = [*mine, *theirs]
    if form != same_form or not tensors or not all(isinstance(leaf, torch.Tensor) and leaf.ndim for leaf in tensors):
        return None
    pairs = list(zip(mine, theirs, strict=True))
    if len({len(a) for a in mine}) > 1 or any(a.shape[1:] != b.shape[1:] for a, b in pairs):
        return None
    return tree_unflatten([torch.cat(pair) for pair in pairs], form)
