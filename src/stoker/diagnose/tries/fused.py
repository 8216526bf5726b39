"""Fused: one kernel for the update of all weights."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from stoker.diagnose.tries.fix import Fix
from stoker.train.optimizer import FUSED, set_fused


class Fused(Fix):
    """The fused implementation of each optimizer that has one, from its next step on."""

    nothing = "the optimizer has no fused implementation, or uses it already"

    def install(self) -> None:
        """Change optimizers when they are about to step for the first time."""
        seen: set[int] = set()

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if id(optimizer) not in seen:
                seen.add(id(optimizer))
                self._change(optimizer)

        self._undo.append(register_optimizer_step_pre_hook(before).remove)

    def _change(self, optimizer: Optimizer) -> None:
        groups = optimizer.param_groups
        gradients = [weight.grad for group in groups for weight in group["params"] if weight.grad is not None]
        if not isinstance(optimizer, FUSED) or groups[0].get("fused") or any(one.is_sparse for one in gradients):
            return
        given = [{name: group.get(name) for name in ("foreach", "fused")} for group in groups]
        for group in groups:
            group["foreach"] = False
        set_fused(optimizer, True)
        self.used = True

        def back() -> None:
            set_fused(optimizer, False)
            for group, before in zip(groups, given, strict=True):
                group.update(before)
                if group.get("capturable"):  # such an optimizer counts its steps where its weights are
                    for weight in group["params"]:
                        state = optimizer.state.get(weight, {})
                        if "step" in state:
                            state["step"] = state["step"].to(weight.device)

        self._undo.append(back)
