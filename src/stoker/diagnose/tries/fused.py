"""Fused: one kernel for the update of all weights."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from stoker.diagnose.tries.fix import Fix
from stoker.train.optimizer import FUSED, set_fused


class Fused(Fix):
    """The fused implementation of each optimizer that has one, from its first step on."""

    nothing = "the optimizer has no fused implementation, or uses it already"

    def install(self) -> None:
        """Change optimizers when they are about to step for the first time."""
        seen: set[int] = set()

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if id(optimizer) in seen:
                return
            seen.add(id(optimizer))
            if isinstance(optimizer, FUSED) and not optimizer.param_groups[0].get("fused"):
                for group in optimizer.param_groups:
                    group["foreach"] = False
                set_fused(optimizer, True)
                self.used = True

        self._undo.append(register_optimizer_step_pre_hook(before).remove)
