"""The fix `fused`: one kernel for the update of all weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from stoker.diagnose.experiments.base import Fix
from stoker.train.optimizer import FUSED, set_fused


class Fused(Fix):
    """The fused implementation of each optimizer that has one, from its next step on."""

    unused_reason = "the optimizer has no fused implementation, or uses it already"

    def install(self) -> None:
        seen: set[int] = set()

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if id(optimizer) not in seen:
                seen.add(id(optimizer))
                self._fuse(optimizer)

        self._undo.callback(register_optimizer_step_pre_hook(before).remove)

    def _fuse(self, optimizer: Optimizer) -> None:
        groups = optimizer.param_groups
        gradients = [weight.grad for group in groups for weight in group["params"] if weight.grad is not None]
        if not isinstance(optimizer, FUSED) or groups[0].get("fused") or any(gradient.is_sparse for gradient in gradients):
            return
        if isinstance(optimizer, torch.optim.Adagrad) and any(gradient.device.type != "cpu" for gradient in gradients):
            return  # its fused implementation is for CPUs
        self._undo.callback(_unfuse, optimizer, [{name: group.get(name) for name in ("foreach", "fused")} for group in groups])
        for group in groups:
            group["foreach"] = False
        set_fused(optimizer, True)
        self.used = True


def _unfuse(optimizer: Optimizer, before: list[dict[str, Any]]) -> None:
    set_fused(optimizer, False)
    for group, options in zip(optimizer.param_groups, before, strict=True):
        group.update(options)
        if group.get("capturable"):  # such an optimizer counts its steps where its weights are
            for weight in group["params"]:
                state = optimizer.state.get(weight, {})
                if "step" in state:
                    state["step"] = state["step"].to(weight.device)
