"""The fix `pinned`: batches in pinned memory, which are copied to the GPU while it computes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from stoker.diagnose.experiments.base import UPLOADS, LoaderFix
from stoker.diagnose.hooks import leaves

MAX_PINNED_BYTES = 1 << 30


class Pinned(LoaderFix):
    """`pin_memory=True`, and `non_blocking=True` for what comes from such memory.

    Batches that no DataLoader makes are pinned when the loop gets them: once where they are the same objects in each epoch.
    """

    cuda_only = True
    changes_batches = True
    unused_reason = "no batch lies in plain memory of the host"

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._pinned: dict[
            int, tuple[Any, Any]
        ] = {}  # by the id of a batch: itself, so that no other one gets its id, and the pinned one
        self._bytes = 0

    def install(self) -> None:
        super().install()
        self._unblock()

    def _unblock(self) -> None:
        for name in UPLOADS:
            self.replace(torch.Tensor, name, unblocked(getattr(torch.Tensor, name)))

    def _change(self, options: dict[str, Any]) -> None:
        options["pin_memory"] = True
        self.used = True

    def batch(self, value: Any) -> Any:
        if id(value) in self._pinned:
            return self._pinned[id(value)][1]
        tensors = [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"]
        if all(leaf.is_pinned() for leaf in tensors):
            return value
        self.used = True
        pinned = tree_map_only(torch.Tensor, lambda leaf: leaf.pin_memory() if leaf.device.type == "cpu" else leaf, value)
        self._bytes += sum(leaf.nbytes for leaf in tensors)
        if self._bytes <= MAX_PINNED_BYTES:
            self._pinned[id(value)] = (value, pinned)
        return pinned

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Return batches that are pinned already; loaders stay as they are."""
        self._unblock()
        return [self.batch(batch) for batch in batches]


def unblocked(original: Any) -> Any:
    """Return a method that does not wait for copies from pinned memory."""

    @functools.wraps(original)
    def copied(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "cpu" and len(args) < 2 and tensor.is_pinned():
            kwargs.setdefault("non_blocking", True)
        return original(tensor, *args, **kwargs)

    return copied
