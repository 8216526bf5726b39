"""Numerics of a step: its precision, the loss scale of fp16, and the NaN guard.

fp32 is plain float32; tf32 lets a GPU multiply float32 with shorter mantissas; bf16 and fp16 are autocast. Weights, gradients and
the optimizer stay in float32. fp16 needs a loss scale, which lives on the device, so that the host never waits for it.

The NaN guard keeps NaN and Inf from the weights, the EMA and the buffers of the model. It is a flag on the device. One kernel checks the
loss, the gradients and the buffers that a step changes, and raises it. Where the optimizer's own kernel takes such a flag (fused Adam,
AdamW, SGD, Adagrad), the kernel leaves the weights as they are, and the host learns of it later. Elsewhere the host reads the flag before
it updates, which needs no synchronization on a CPU and one per step on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch
from torch import nn

from stoker.errors import OptionError
from stoker.train.distributed import Joint, is_shard, others_than_statistics, statistics_of

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

FIRST_SCALE = 2.0**16
GROWTH, BACKOFF, GROWTH_STEPS = 2.0, 0.5, 2000


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse what the device cannot do."""
    if precision in ("tf32", "fp16") and device.type != "cuda":
        raise OptionError(
            f"precision {precision!r} needs a GPU, but the model is on {device.type}. Use 'fp32' or 'bf16'.", parameter="precision"
        )


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


# The NaN guard.

LARGE_BYTES = 256 << 20
"""A buffer above this size is copied only once it has changed: it may be a data set."""
CHECKED_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class NanGuard:
    """The flag of a step, who reads it, and what restores buffers where an update was skipped.

    With a flag that is never cleared all later updates are skipped too, so that the weights stay the last good ones until the host
    learns of it. With `clears`, each step is judged alone.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, *, clears: bool) -> None:
        self._optimizer = optimizer
        self._clears = clears
        self.flag = torch.zeros((), device=device)
        self._one = torch.ones((), device=device)
        self.statistics = RunningStatistics(model, device)
        self.gated = device.type == "cuda" and takes_flag(optimizer)
        """Whether the optimizer's kernel reads the flag, and the host need not."""
        self.is_good = True
        """Whether the last update took place, as far as the host knows."""

    def bind(self) -> None:
        """Let the optimizer read the flag, or none."""
        self._optimizer.grad_scale = None  # type: ignore[attr-defined]
        self._optimizer.found_inf = self.flag if self.gated else None  # type: ignore[attr-defined]

    @property
    def device_flag(self) -> torch.Tensor | None:
        """The flag, where the device decides; None where the host has."""
        return self.flag if self.gated else None

    def check(self, gradients: list[torch.Tensor], loss: torch.Tensor, *, inverse: torch.Tensor | None) -> None:
        """Multiply the gradients by `inverse`, and raise the flag where one of them, the loss or a buffer is not finite."""
        if self._clears:
            self.flag.zero_()
        others = [loss, *self.statistics.checked()]
        if inverse is None:  # nothing changes by it, so all can be checked in the same call
            self.check_finite([*gradients, *others])
        else:
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, self.flag, inverse)
            self.check_finite(others)

    def check_finite(self, values: list[torch.Tensor]) -> None:
        """Raise the flag where a value is not finite."""
        torch._amp_foreach_non_finite_check_and_unscale_(values, self.flag, self._one)

    def decide(self) -> bool:
        """Whether the host takes the update; where the device decides, it always does."""
        self.is_good = self.gated or not self.flag.item()
        return self.is_good

    def settle(self) -> None:
        """After an update: put buffers back where it did not take place."""
        self.statistics.settle(self.device_flag, is_good=self.is_good)


class RunningStatistics:
    """Buffers that steps change, such as running statistics, which a bad batch reaches in the forward pass already.

    Those of normalisation layers are known. Others are found when they change, as torch counts the changes of each tensor; until
    then a copy of them is at hand, which is as good as new, unless they are large.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._normal, self._rest = statistics_of(model), others_than_statistics(model)
        self._copies = [None if buffer.nbytes > LARGE_BYTES else buffer.detach().clone() for buffer in self._rest]
        self._versions = [buffer._version for buffer in self._rest]
        self.changing = list(self._normal)
        self._kept = [buffer.clone() for buffer in self.changing]
        floats = [buffer for buffer in model.buffers() if buffer.dtype in CHECKED_TYPES and buffer.device == device]
        finite = torch.stack([buffer.isfinite().all() for buffer in floats]).tolist() if floats else []
        # One that begins with an infinity, such as a running minimum, may keep it.
        self._checkable = {id(buffer) for buffer, is_finite in zip(floats, finite, strict=True) if is_finite}
        self._checked = [buffer for buffer in self._normal if id(buffer) in self._checkable]
        self._is_kept = False

    @torch.no_grad()
    def keep(self) -> None:
        """Remember them as they are before the first micro-batch of an update."""
        if self._is_kept:
            return
        self._is_kept = True
        if self.changing:
            torch._foreach_copy_(self._kept, self.changing)
        for i, (buffer, copied) in enumerate(zip(self._rest, self._copies, strict=True)):
            if buffer._version != self._versions[i]:  # by something else than a step: a state that was loaded
                self._versions[i] = buffer._version
                if copied is not None:
                    copied.copy_(buffer)

    def ignore_rest(self) -> None:
        """Leave alone what is not a statistic: a graph of each micro-batch does not know the first one, before which copies are made."""
        self._rest, self._copies, self._versions = [], [], []

    def checked(self) -> list[torch.Tensor]:
        """Buffers of floats that this update may have made non-finite."""
        for i in reversed([i for i, buffer in enumerate(self._rest) if buffer._version != self._versions[i]]):
            buffer, copy = self._rest.pop(i), self._copies.pop(i)
            del self._versions[i]
            self.changing.append(buffer)
            self._kept.append(buffer.detach().clone() if copy is None else copy)
            if id(buffer) in self._checkable:
                self._checked.append(buffer)
        return self._checked

    @torch.no_grad()
    def settle(self, flag: torch.Tensor | None, *, is_good: bool) -> None:
        """After an update: put them back where it did not take place."""
        self._is_kept = False
        if not self.changing:
            return
        if flag is not None:
            for buffer, kept in zip(self.changing, self._kept, strict=True):
                buffer.copy_(torch.where(flag > 0, kept, buffer))
        elif not is_good:
            torch._foreach_copy_(self.changing, self._kept)

    @torch.no_grad()
    def join(self, joint: Joint) -> None:
        """Let them be the means of all ranks, which have seen as many batches."""
        joint.ranks.mean_each([buffer for buffer in self._normal if buffer.is_floating_point()])


def takes_flag(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer's kernel takes a flag, on the device, to leave the weights alone; of sharded ones it cannot."""
    groups = optimizer.param_groups
    is_sharded = any(is_shard(parameter) for group in groups for parameter in group["params"])
    is_fused = all(group.get("fused") for group in groups)
    return not is_sharded and is_fused and bool(getattr(optimizer, "_step_supports_amp_scaling", False))
