"""Losses of two versions, step by step: equal bits, a difference that rounding explains, or a change.

What rounding explains is measured. The yardstick is BEFORE compared with itself after each initial weight was changed by one rounding
error, and with further runs of itself, which may differ where operations are not deterministic. Training amplifies such differences from
step to step, so a difference is compared with that of the yardstick at about the same step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

LossVerdict = Literal["equal", "rounding", "tolerance", "changed", "unknown"]
FACTOR = 64.0
"""A version with other kernels rounds in each operation, the yardstick once per weight: up to this factor while differences are small."""
SMALL, SMALL_AVERAGE = 0.01, 0.002
"""Relative differences of single losses and of averages that are small. Above them, training has amplified the yardstick as well."""
LARGE_FACTOR = 4.0
ROUNDINGS = 64.0
"""Rounding errors, in units of the computation's precision, that a single loss may have: sums over a batch."""
WINDOW = 10  # parts of a run in which losses are averaged for a tolerance


class LossComparison(msgspec.Struct, frozen=True, kw_only=True):
    """How the losses of two versions differ."""

    verdict: LossVerdict
    steps: int = 0
    """Steps that both have made."""
    first: int | None = None
    """The first step, from 1, whose losses are not the same bits."""
    before: float | None = None
    after: float | None = None
    """The losses of the step that decides: the first beyond rounding if they changed, else the one that differs most."""
    at: int | None = None
    start: float = 0.0
    """The relative difference of the first step."""
    largest: float = 0.0
    """The largest relative difference of a step."""
    yardstick: float | None = None
    """The largest relative difference of BEFORE from itself under rounding."""
    grows: bool = False
    """Whether the difference of averaged losses is larger in the last quarter than in the first."""
    why: str = ""


def relative(a: float, b: float) -> float:
    """Return the relative difference of two losses; infinite where only one of them is finite."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return the relative difference of each step."""
    return [relative(x, y) for x, y in zip(a, b, strict=False)]


def largest_difference(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the largest relative difference of a step; the faster run may have made more steps."""
    return max(differences(a, b), default=0.0)


def first_difference(a: Sequence[float], b: Sequence[float]) -> int | None:
    """Return the first step, from 1, at which losses are not the same bits."""
    return next((step for step, difference in enumerate(differences(a, b), 1) if difference), None)


def compare_losses(
    before: Sequence[float],
    after: Sequence[float],
    *,
    yardsticks: Sequence[Sequence[float]] = (),
    epsilon: float = 2.0**-23,
    tolerance: float | None = None,
) -> LossComparison:
    """Compare the losses of two versions.

    `yardsticks` are losses of BEFORE under rounding. `epsilon` is the precision that both compute in. Averaged losses may differ by
    `tolerance`, relative to BEFORE.
    """
    steps = min(len(before), len(after))
    if not steps:
        return LossComparison(verdict="unknown", why="no loss was seen: no backward pass started from a single number")
    apart = differences(before, after)
    first = first_difference(before, after)
    if first is None:
        return LossComparison(verdict="equal", steps=steps)
    allowed = allowances([differences(before, other) for other in yardsticks], steps=steps, epsilon=epsilon, small=SMALL)
    beyond = next((step for step in range(steps) if not apart[step] <= allowed[step]), None)
    if beyond is None:
        beyond = _drift(before, after, yardsticks, epsilon)
    step = max(range(steps), key=lambda number: apart[number]) if beyond is None else beyond
    within = tolerance is not None and largest_of_averages(before, after) <= tolerance
    return LossComparison(
        verdict="rounding" if beyond is None else "tolerance" if within else "changed",
        steps=steps,
        first=first,
        at=step + 1,
        before=before[step],
        after=after[step],
        start=apart[0],
        largest=max(apart),
        yardstick=max((largest_difference(before, other) for other in yardsticks), default=None),
        grows=grows(before, after),
    )


def allowances(yardsticks: Sequence[Sequence[float]], *, steps: int, epsilon: float, small: float) -> list[float]:
    """Return the relative difference that rounding explains at each step, from those of the yardsticks."""
    seen = [max((values[step] for values in yardsticks if step < len(values)), default=0.0) for step in range(steps)]
    allowed, largest, horizon = [], 0.0, 0
    for step in range(steps):
        # Another rounding may be amplified sooner: the yardstick of somewhat later steps counts.
        while horizon < min(steps, step + 8 + step // 4):
            largest = max(largest, seen[horizon])
            horizon += 1
        limit = LARGE_FACTOR * largest if math.isfinite(largest) else 0.0
        allowed.append(max(ROUNDINGS * epsilon, min(FACTOR * largest, small), limit))
    return allowed


def _drift(before: Sequence[float], after: Sequence[float], yardsticks: Sequence[Sequence[float]], epsilon: float) -> int | None:
    """Return the step from which on averaged losses differ by more than rounding explains, though no single one does."""
    apart = _apart(before, after)
    known = [_apart(before, other) for other in yardsticks]
    allowed = allowances(known, steps=len(apart), epsilon=epsilon, small=SMALL_AVERAGE)
    part = next((part for part in range(len(apart)) if not apart[part] <= allowed[part]), None)
    return None if part is None else part * max(1, min(len(before), len(after)) // WINDOW)


def _apart(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Relative differences of averaged losses."""
    return differences(averages(before, after), averages(after, before))


def largest_of_averages(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the largest relative difference of losses averaged over parts of a run: single steps scatter."""
    return max(_apart(before, after), default=math.inf)


def averages(losses: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the mean loss of each part of the steps that both versions have made."""
    steps = min(len(losses), len(other))
    size = max(1, steps // WINDOW)
    return [statistics.fmean(losses[start : start + size]) for start in range(0, steps, size)]


def grows(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether averaged losses differ more at the end than at the start: twice as much, and by 1 %."""
    apart = _apart(before, after)
    quarter = max(1, len(apart) // 4)
    start, end = statistics.fmean(apart[:quarter]), statistics.fmean(apart[-quarter:])
    return len(apart) >= 4 and end > 0.01 and end > 2 * start
