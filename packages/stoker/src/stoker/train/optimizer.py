"""The optimizer: its implementation (one kernel for all weights, where it has one), a learning rate that graphs can follow, and Muon's
iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from stoker.errors import OptionError

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""Optimizers of torch that have a fused implementation."""
_FRAME = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__


def check_optimizer(optimizer: Any, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer; a function of the parameters is called."""
    if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer([parameter for parameter in parameters if parameter.requires_grad])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptionError(
            f"optimizer is {optimizer!r}; expected one of torch.optim, or a function that makes one of the parameters, such as "
            f"functools.partial(torch.optim.AdamW, lr=1e-3).",
            parameter="optimizer",
        )
    return optimizer


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether one kernel updates all weights."""
    return all(group.get("fused") for group in optimizer.param_groups)


def may_be_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether there is a choice: the optimizer has a fused implementation, and the user has not said which to take."""
    return refuses_fused(optimizer) is None and all(
        group.get("fused") is None and group.get("foreach") is None for group in optimizer.param_groups
    )


def refuses_fused(optimizer: torch.optim.Optimizer) -> str | None:
    """Why the optimizer cannot be fused; None where it can."""
    groups = optimizer.param_groups
    if is_fused(optimizer):
        return None
    if type(optimizer) not in FUSED:
        return f"{type(optimizer).__name__} has no fused implementation; {', '.join(kind.__name__ for kind in FUSED)} have one"
    for name in ("foreach", "differentiable"):
        if any(group.get(name) for group in groups):
            return f"the optimizer was made with {name}=True, which cannot be fused"
    if not all(torch.is_floating_point(weight) and not weight.is_sparse for group in groups for weight in group["params"]):
        return "some weights are not dense floating point tensors"
    return None


def set_fused(optimizer: torch.optim.Optimizer, fused: bool, *, otherwise: Sequence[bool | None] | None = None) -> None:
    """Take the fused implementation, or leave the choice to torch; `otherwise` is what each group then says of `fused`."""
    for group, other in zip(optimizer.param_groups, otherwise or [None] * len(optimizer.param_groups), strict=True):
        group["fused"] = True if fused else other
    optimizer._step_supports_amp_scaling = fused  # type: ignore[attr-defined]
    optimizer._need_device_dtype_check_for_fused = fused  # type: ignore[attr-defined]
    for group in optimizer.param_groups:
        for weight in group["params"]:
            state = optimizer.state.get(weight, {})
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(weight.device if fused or group.get("capturable") else "cpu")


def bare_step(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """The optimizer's step without the frame that torch puts around it for hooks and the profiler, as long as there are none.

    The frame opens a range of the profiler at each step, which takes a third of the time of a small fused step.
    """
    framed: Any = type(optimizer).step
    if getattr(framed, "__code__", None) is not _FRAME:  # somebody else's step, or another torch
        return optimizer.step
    bare, own = framed.__wrapped__, vars(optimizer)
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    is_profiled = torch.autograd._profiler_enabled  # type: ignore[attr-defined]

    def step() -> Any:
        if any(hooks) or is_profiled() or "step" in own:
            return optimizer.step()
        return bare(optimizer)

    return step


class LearningRate:
    """The learning rate of each group: what the user set, times what a schedule says."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._given: list[dict[str, Any]] = [
            {name: group[name] for name in ("lr", "capturable") if name in group} for group in self._groups
        ]
        self._rates = [float(group["lr"]) for group in self._groups]
        self._on_device = False
        self._tensors: list[torch.Tensor] = []
        self.first = self._rates[0]
        """Of the first group, as it is now."""

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups  # other ones after a state has been loaded

    def to_device(self, device: torch.device) -> None:
        """Keep it in tensors: a graph reads it from there, and would not see a number that changes."""
        for group, given in zip(self._groups, self._given, strict=True):
            if "capturable" in given:
                group["capturable"] = True
        if not self._tensors:  # the same ones always: a graph knows them by their address
            self._tensors = [torch.full((), rate, device=device) for rate in self._rates]
        for group, tensor, rate in zip(self._groups, self._tensors, self._rates, strict=True):
            group["lr"] = tensor.fill_(rate)
        self._on_device = True

    def set(self, factor: float) -> None:
        """Let the next update use this multiple of what the user set."""
        self.first = self._rates[0] * factor
        for group, rate in zip(self._groups, self._rates, strict=True):
            if self._on_device:
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

    def restore(self) -> None:
        """Give the groups back as the user made them."""
        for group, given in zip(self._groups, self._given, strict=True):
            group.update(given)
        self._on_device = False


# The Newton-Schulz iteration of Muon, for stacked matrices.


# The coefficients of the quintic iteration of torch.optim.Muon.
MUON_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
MUON_STEPS = 5
MUON_EPS = 1e-7


def orthogonalize(matrices: torch.Tensor, *, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Bring all singular values of matrices near 1, all matrices in one call.

    Args:
        matrices: [K, A, B].
        dtype: The type of the iteration. `torch.optim.Muon` has bfloat16, which is slow on a CPU.

    Returns:
        [K, A, B] in `dtype`.

    Example:
        >>> found = orthogonalize(torch.diag(torch.tensor([3.0, 2.0, 1.0]))[None], dtype=torch.float32)
        >>> torch.linalg.svdvals(found).round(decimals=1)
        tensor([[1.1000, 0.7000, 0.7000]])
    """
    a, b, c = MUON_COEFFICIENTS
    x = matrices.to(dtype)
    is_tall = matrices.shape[1] > matrices.shape[2]
    if is_tall:
        x = x.mT
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=MUON_EPS)
    for _ in range(MUON_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x
