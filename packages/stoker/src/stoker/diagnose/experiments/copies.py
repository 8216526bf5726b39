"""The suspect `copies`: uploads of batches and other values to the GPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from stoker.diagnose.experiments.base import UPLOADS, StaleCalls


class WithoutCopies(StaleCalls):
    """Uploads to the GPU take no time: each returns the tensor that the same call uploaded one step before."""

    methods = UPLOADS
    unused_reason = "the loop uploads nothing"

    def install(self) -> None:
        super().install()
        self.replace(torch.Tensor, "copy_", self._stale_copy(torch.Tensor.copy_))
        for name in ("tensor", "as_tensor"):
            self.replace(torch, name, self._stale_maker(getattr(torch, name)))

    def _stale_copy(self, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(original)
        def copy(target: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if target.device.type == "cpu" or source.device.type != "cpu" or source.requires_grad or not source.ndim:
                return original(target, source, *args, **kwargs)
            self.used = True
            return target  # what was copied there before

        return copy

    def _stale_maker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
            make = functools.partial(original, data, *args, device=device, **kwargs)
            is_upload = device is not None and torch.device(device).type != "cpu"
            if not is_upload or (isinstance(data, torch.Tensor) and data.device.type != "cpu"):
                return make()
            return self.stale_or_new(make, sys._getframe(1), len(data) if hasattr(data, "__len__") else None)

        return made
