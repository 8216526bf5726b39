"""Precision, and the loss scale of fp16.

fp32 is plain float32; tf32 lets a GPU multiply float32 with shorter mantissas; bf16 and fp16 are autocast. Weights, gradients and
the optimizer stay in float32. fp16 needs a loss scale, which lives on the device, so that the host never waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal, cast, get_args

import torch

from stoker.errors import OptionError

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

FIRST_SCALE = 2.0**16
GROWTH, BACKOFF, GROWTH_STEPS = 2.0, 0.5, 2000


def check_precision(precision: str, device: torch.device) -> Precision | Literal["auto"]:
    """Refuse what the device cannot do. "auto" is fp32, unless `speed="measured"` finds something faster."""
    known = ("auto", *get_args(Precision))
    if precision not in known:
        raise OptionError(f"precision is {precision!r}; expected one of {', '.join(known)}.")
    if precision in ("tf32", "fp16") and device.type != "cuda":
        raise OptionError(f"precision {precision!r} needs a GPU, but the model is on {device.type}. Use 'fp32' or 'bf16'.")
    return cast(Precision, precision)


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The context that a forward pass runs in."""
    if precision in ("fp32", "tf32"):
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if precision == "bf16" else torch.float16)


@contextlib.contextmanager
def kept_matmul_flags() -> Iterator[None]:
    """Put the flags of float32 matmuls back to what they are now, after the block."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def set_matmul_flags(precision: Precision) -> None:
    """With autocast, what autocast leaves in float32 stays exact."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


class Scale:
    """The loss scale of fp16: halved when gradients overflow, doubled after many steps in which none did."""

    def __init__(self, device: torch.device) -> None:
        self.value = torch.full((), FIRST_SCALE, device=device)
        self._growth = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, overflow: torch.Tensor) -> None:
        """Take in whether gradients overflowed (a float32 scalar on the device)."""
        torch._amp_update_scale_(self.value, self._growth, overflow, GROWTH, BACKOFF, GROWTH_STEPS)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The scale, and for how many steps it has been right."""
        return {"value": self.value, "growth": self._growth}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Continue with a saved scale."""
        self.value.copy_(state["value"])
        self._growth.copy_(state["growth"])
