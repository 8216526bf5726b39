"""Which verdicts an ablation accepts: the rule of `stoker diagnose --thresholds`, on shares that were measured without the tool.

Some causes come before plain work: waste with a tenth of a step, an optimizer with 40 % of the work, calls of operations with half of
it. The largest of those is the truth, else it is the work. Two causes are accepted where the measured shares are too near to each other
or to a limit.
"""

from __future__ import annotations

from collections.abc import Mapping

WASTE = ("data", "host", "oversubscribed")
WORK = ("compute", "memory", "kernel")
WASTE_FIRST, OPTIMIZER_FIRST, DISPATCH_FIRST = 0.10, 0.40, 0.50
WASTE_MARGIN, WORK_MARGIN = 0.04, 0.12
"""How near to a limit a measured share must be for both sides of it to be accepted."""


def accepted(shares: Mapping[str, float]) -> set[str]:
    """The verdicts that the shares of an ablation allow."""
    if "dispatch" in shares:  # of one step, and what other causes leave of it
        left = max(0.0, 1 - sum(shares.get(cause, 0.0) for cause in ("data", "host", "optimizer")))
        shares = {**shares, "dispatch": min(shares["dispatch"], left)}
    work = sum(shares.get(cause, 0.0) for cause in ("optimizer", "dispatch", "work"))
    limits = dict.fromkeys(WASTE, WASTE_FIRST) | {"optimizer": OPTIMIZER_FIRST * work, "dispatch": DISPATCH_FIRST * work}
    margins = dict.fromkeys(WASTE, WASTE_MARGIN) | dict.fromkeys(("optimizer", "dispatch"), WORK_MARGIN * work)
    found = {cause: shares.get(cause, 0.0) for cause in limits}
    surely_first = [cause for cause in limits if found[cause] >= limits[cause] + margins[cause]]
    largest = max(surely_first, key=lambda cause: found[cause], default=None)
    causes = {
        cause
        for cause in limits
        if found[cause] >= max(limits[cause] - margins[cause], WASTE_MARGIN)
        and (largest is None or found[cause] >= found[largest] - max(margins[cause], margins[largest]))
    }
    if found["oversubscribed"] >= WASTE_FIRST:  # batches that are served again give their workers' cores back, too
        causes.add("oversubscribed")
    if largest is not None:
        return causes
    # The rule divides work into three causes, which an ablation cannot: each may be smaller than one that is half as large as all work.
    halves = {cause for cause in ("optimizer", "dispatch") if found[cause] >= shares.get("work", 0.0) / 2}
    causes |= {*WORK, *halves}
    return causes if "dispatch" in shares else causes | {"dispatch"}  # without a larger batch work and calls are one
