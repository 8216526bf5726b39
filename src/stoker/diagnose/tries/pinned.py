"""Pinned: batches in memory that the GPU reads by itself, and copies that the host does not wait for."""

from __future__ import annotations

import functools
from typing import Any

import torch

from stoker.diagnose.tries.loaders import LoaderFix


class Pinned(LoaderFix):
    """`pin_memory=True`, and `non_blocking=True` for what comes from such memory."""

    cuda_only = True

    def install(self) -> None:
        """Change loaders and copies."""
        super().install()
        for name in ("to", "cuda"):
            self.replace(torch.Tensor, name, _unblocked(getattr(torch.Tensor, name)))

    def change(self, options: dict[str, Any]) -> None:
        """Pin."""
        options["pin_memory"] = True
        self.used = True


def _unblocked(original: Any) -> Any:
    @functools.wraps(original)
    def copied(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "cpu" and len(args) < 2 and tensor.is_pinned():
            kwargs.setdefault("non_blocking", True)
        return original(tensor, *args, **kwargs)

    return copied
