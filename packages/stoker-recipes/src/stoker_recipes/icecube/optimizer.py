"""Muon for the matrices of the layers and AdamW for all else, in one optimizer that a CUDA graph can hold, with cycled momentum.

Muon: matrices of equal shape are stacked and orthogonalised by one batched call. Both follow the one-cycle rule: while the learning
rate rises, momentum (AdamW's beta1) falls from 0.95 to 0.85, and climbs back while it falls. The learning rate is the trainer's
(`stoker.train.OneCycle`); momentum is a function of the number of the update, which is counted on the device.

Nothing here waits for the device. Where the trainer's flag `found_inf` is raised, an update changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

import stoker
from stoker.train import orthogonalize

START, END = 1 / 25, 1 / 25_000  # of the learning rate: factors of the first and the last update
SLOW, FAST = 0.95, 0.85  # momentum at both ends, and where the learning rate is highest
WARMUP_SHARE = 0.3  # of all updates that the warm-up takes at most


def one_cycle(*, warmup: int, total: int) -> stoker.train.OneCycle:
    """The schedule of the learning rate: as `torch.optim.lr_scheduler.OneCycleLR` with `final_div_factor=1000`.

    Args:
        warmup: Updates of the rise.
        total: Updates of the run.

    Example:
        >>> schedule = one_cycle(warmup=2000, total=317_390)
        >>> [round(0.005 * schedule(step, 317_390), 9) for step in (0, 1000, 1999, 317_389)]
        [0.0002, 0.002601886, 0.005, 2e-07]
    """
    return stoker.train.OneCycle(warmup=warmup if warmup <= WARMUP_SHARE * total else WARMUP_SHARE, start=START, end=END)


def cycled_momentum(step: Tensor, *, warmup: float, total: int) -> Tensor:
    """Momentum at an update, in float64.

    Args:
        step: Updates before this one.
        warmup: Updates of the rise of the learning rate.
        total: Updates of the run.

    Example:
        >>> [round(float(cycled_momentum(torch.tensor(step), warmup=2000, total=317_390)), 7) for step in (0, 1000, 1999, 317_389)]
        [0.95, 0.8999607, 0.85, 0.95]
    """
    top = max(0.0, min(warmup, WARMUP_SHARE * total) - 1)
    now = step.double()
    rising = now / top if top else torch.ones_like(now)
    falling = ((now - top) / max(total - 1 - top, 1e-9)).clamp(max=1)
    low, high = FAST, SLOW
    # Half a cosine from high to low, and one back.
    return torch.where(
        now <= top,
        low + (high - low) * (1 + torch.cos(math.pi * rising)) / 2,
        high + (low - high) * (1 + torch.cos(math.pi * falling)) / 2,
    )


class MuonAdamW(torch.optim.Optimizer):
    """Muon and AdamW with cycled momentum.

    Args:
        matrices: What Muon trains: two-dimensional weights.
        others: What AdamW trains.
        lr: Learning rate of Muon.
        side_lr: Learning rate of AdamW.
        weight_decay: Of all weights, decoupled.
        warmup: Updates until momentum is lowest.
        total: Updates of the run.

    Example:
        >>> weight, bias = torch.nn.Parameter(torch.eye(3)), torch.nn.Parameter(torch.zeros(3))
        >>> optimizer = MuonAdamW([weight], [bias], lr=0.1, side_lr=0.1, warmup=3, total=10)
        >>> (weight.sum() + bias.sum()).backward()
        >>> optimizer.step()
        >>> bool((bias < 0).all())
        True
    """

    def __init__(
        self, matrices: Iterable[Tensor], others: Iterable[Tensor], *,
        lr: float = 0.005, side_lr: float = 3e-4, weight_decay: float = 0.01, warmup: int = 2000, total: int,
        beta2: float = 0.999, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        groups: list[dict[str, Any]] = [
            {"params": list(matrices), "lr": lr, "muon": True},
            {"params": list(others), "lr": side_lr, "muon": False},
        ]
        # `fused` and `_step_supports_amp_scaling` tell the trainer that updates read its flag on the device themselves.
        defaults = {"weight_decay": weight_decay, "warmup": warmup, "total": total, "beta2": beta2, "eps": eps, "fused": True}
        super().__init__(groups, defaults)
        self._step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update."""
        flag = getattr(self, "found_inf", None)
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            states = [self._state(weight, group) for weight in weights]
            number = states[0]["step"]
            good = torch.ones_like(number) if flag is None else (flag == 0).to(number)
            momentum = cycled_momentum(number, warmup=group["warmup"], total=group["total"])
            torch._foreach_add_([state["step"] for state in states], [good] * len(states))  # one tensor for all would be read back
            rate = good.double() * group["lr"]
            update = _muon if group["muon"] else _adamw
            update(group, weights, states, momentum, rate, good)

    def _state(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), device=weight.device)
            for name in ("momentum_buffer",) if group["muon"] else ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return state


def _gradients(weights: list[Tensor], join: Callable[[list[Tensor]], Tensor], good: Tensor) -> Tensor:
    """All gradients as one tensor; zeros where the flag is raised, as they may be NaN."""
    joined = join([weight.grad for weight in weights if weight.grad is not None])
    return torch.where(good > 0, joined, 0.0)


def _muon(
    group: dict[str, Any], weights: list[Tensor], states: list[dict[str, Tensor]], momentum: Tensor, rate: Tensor, good: Tensor
) -> None:
    shapes: dict[torch.Size, list[int]] = {}
    for i, weight in enumerate(weights):
        shapes.setdefault(weight.shape, []).append(i)
    for shape, places in shapes.items():
        here = [weights[i] for i in places]
        buffers = [states[i]["momentum_buffer"] for i in places]
        gradient = _gradients(here, torch.stack, good)
        average, kind = torch.stack(buffers), gradient.dtype
        average += ((1 - momentum) * good).to(kind) * (gradient - average)
        ahead = gradient + momentum.to(kind) * (average - gradient)
        # On a CPU bfloat16 is slow, and the iteration is done in the type of the weights.
        direction = orthogonalize(ahead, dtype=torch.bfloat16 if ahead.is_cuda else kind).to(kind)
        moved = torch.stack(here) * (1 - rate * group["weight_decay"]).to(kind)
        moved -= (rate * math.sqrt(max(1.0, shape[0] / shape[1]))).to(kind) * direction
        torch._foreach_copy_(buffers, list(average.unbind()))
        torch._foreach_copy_(here, list(moved.unbind()))


def _adamw(
    group: dict[str, Any], weights: list[Tensor], states: list[dict[str, Tensor]], momentum: Tensor, rate: Tensor, good: Tensor
) -> None:
    """As torch.optim.AdamW does it; beta1 changes."""

    def flat(tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    gradient = _gradients(weights, flat, good)
    kind = gradient.dtype
    averages, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
    average, square, number, beta2 = flat(averages), flat(squares), states[0]["step"].double(), group["beta2"]
    average += ((1 - momentum) * good).to(kind) * (gradient - average)
    square += ((1 - beta2) * good.double()).to(kind) * (gradient.square() - square)
    # A first update that the flag suppresses leaves the count at 0, and the corrections with it; nothing moves then anyway.
    number = number.clamp(min=1)
    size = (rate / (1 - momentum**number)).to(kind)
    spread = (square / (1 - beta2**number).to(kind)).sqrt() + group["eps"]
    moved = flat(list(weights)) * (1 - rate * group["weight_decay"]).to(kind) - size * average / spread
    sizes = [weight.numel() for weight in weights]
    for targets, source in ((averages, average), (squares, square), (weights, moved)):
        torch._foreach_copy_(targets, [part.view_as(target) for part, target in zip(source.split(sizes), targets, strict=True)])
