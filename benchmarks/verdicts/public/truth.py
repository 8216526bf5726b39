"""Which verdicts an ablation accepts: the rule of `stoker diagnose --thresholds`, on shares that were measured without the tool."""

from __future__ import annotations

from collections.abc import Mapping

WASTE = ("data", "host", "oversubscribed")
WORK = ("compute", "memory", "kernel")
WASTE_FIRST, OPTIMIZER_FIRST, DISPATCH_FIRST = 0.10, 0.40, 0.50
WASTE_MARGIN, WORK_MARGIN = 0.04, 0.12
"""How near to a limit a measured share must be for both sides of it to be accepted."""


def accepted(shares: Mapping[str, float]) -> set[str]:
    """The verdicts that the shares of an ablation allow; more than one where a share is near a limit of the rule."""
    causes: set[str] = set()
    waste = max(WASTE, key=lambda cause: shares.get(cause, 0.0))
    most = shares.get(waste, 0.0)
    causes |= {cause for cause in WASTE if shares.get(cause, 0.0) >= max(WASTE_FIRST - WASTE_MARGIN, most - WASTE_MARGIN)}
    if shares.get("oversubscribed", 0.0) >= WASTE_FIRST:  # batches that are served again give their workers' cores back, too
        causes.add("oversubscribed")
    if most >= WASTE_FIRST + WASTE_MARGIN:
        return causes
    work = sum(shares.get(cause, 0.0) for cause in ("optimizer", "dispatch", "work"))
    parts = {cause: shares.get(cause, 0.0) / work for cause in ("optimizer", "dispatch")} if work else {}
    limits = {"optimizer": OPTIMIZER_FIRST, "dispatch": DISPATCH_FIRST}
    causes |= {cause for cause, part in parts.items() if part >= limits[cause] - WORK_MARGIN}
    if all(part < limits[cause] + WORK_MARGIN for cause, part in parts.items()):
        causes |= {*WORK, "dispatch"} if "dispatch" not in shares else set(WORK)  # without a larger batch both are one
    return causes
