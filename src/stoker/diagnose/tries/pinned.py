"""Pinned: batches in memory that the GPU reads by itself, and copies that the host does not wait for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from stoker.diagnose.copies import leaves
from stoker.diagnose.tries.loaders import LoaderFix

LARGEST_BYTES = 2 << 30
"""Of batches that come again and again, and are pinned once."""


class Pinned(LoaderFix):
    """`pin_memory=True`, and `non_blocking=True` for what comes from such memory.

    Batches that no DataLoader makes are pinned when the loop gets them: once where they are the same objects in each epoch.
    """

    cuda_only = True
    nothing = "no batch lies in plain memory of the host"

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._pinned: dict[int, tuple[Any, Any]] = {}
        """By the id of a batch: the batch itself, so that its id stays its own, and the same pinned."""
        self._bytes = 0

    def install(self) -> None:
        """Change loaders and copies."""
        super().install()
        self._unblock()

    def _unblock(self) -> None:
        for name in ("to", "cuda"):
            self.replace(torch.Tensor, name, _unblocked(getattr(torch.Tensor, name)))

    def change(self, options: dict[str, Any]) -> None:
        """Pin."""
        options["pin_memory"] = True
        self.used = True

    def batch(self, value: Any) -> Any:
        """The same in pinned memory."""
        known = self._pinned.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        plain = [one for one in leaves(value) if isinstance(one, torch.Tensor) and one.device.type == "cpu" and not one.is_pinned()]
        if not plain:
            return value
        self.used = True
        pinned = tree_map(_pin, value)
        self._bytes += sum(one.nbytes for one in plain)
        if self._bytes <= LARGEST_BYTES:
            self._pinned[id(value)] = (value, pinned)
        return pinned

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Batches that are pinned already."""
        self._unblock()
        return [self.batch(one) for one in batches]


def _pin(value: Any) -> Any:
    return value.pin_memory() if isinstance(value, torch.Tensor) and value.device.type == "cpu" else value


def _unblocked(original: Any) -> Any:
    @functools.wraps(original)
    def copied(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "cpu" and len(args) < 2 and tensor.is_pinned():
            kwargs.setdefault("non_blocking", True)
        return original(tensor, *args, **kwargs)

    return copied
