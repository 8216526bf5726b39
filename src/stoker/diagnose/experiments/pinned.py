"""The fix `pinned`: batches in pinned memory, which are copied to the GPU while it computes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from stoker.diagnose.experiments.base import UPLOADS, LoaderFix
from stoker.diagnose.experiments.data import KeptBatches
from stoker.diagnose.hooks import leaves


class Pinned(LoaderFix):
    """`pin_memory=True`, and `non_blocking=True` for what comes from such memory.

    Batches that no DataLoader makes are pinned when the loop gets them: once where they are the same objects in each epoch.
    """

    cuda_only = True
    changes_batches = True
    unused_reason = "no batch lies in plain memory of the host"

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._pinned = KeptBatches()

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
        return self._pinned.get(self._pin, value)

    def _pin(self, value: Any) -> Any:
        if not any(isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and not leaf.is_pinned() for leaf in leaves(value)):
            return value
        self.used = True
        return tree_map_only(torch.Tensor, lambda leaf: leaf.pin_memory() if leaf.device.type == "cpu" else leaf, value)

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
