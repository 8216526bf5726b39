"""Two versions of a program, compared by numbers alone: times of windows that ran next to each other, and losses step by step.

A speed-up is the median ratio of windows next to each other in time. Its interval includes the difference between two processes of the
baseline. Losses are compared with those of the baseline, which must first agree with itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from stoker.compare.losses import largest_difference
from stoker.diagnose import wording
from stoker.diagnose.measurements import Losses, Stretch, TrialResult
from stoker.diagnose.thresholds import RULE

NAN = float("nan")
SURE_ROUNDS = 6  # from which on the smallest and the largest ratio are the ends of an interval of 95 %


@dataclass(kw_only=True)
class BaselineRuns:
    """The unchanged program, in two processes or more."""

    difference: float = 0.0  # between two processes, as the logarithm of a ratio
    losses: list[list[float]] = field(default_factory=list)  # of each process


@dataclass(kw_only=True)
class Comparison:
    """Measurement windows of a changed program and of the baseline next to them, or why there are none."""

    base: list[Stretch] = field(default_factory=list)
    tried: list[Stretch] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    error: str | None = None


def judge(
    baseline: BaselineRuns,
    compared: Comparison,
    *,
    tolerance: float | None,
    samples_per_step: float = 1.0,
    max_error: float = RULE.trial_max_error,
) -> TrialResult:
    """Return the result of a comparison.

    Losses may differ by `tolerance`; None where they cannot be compared. `samples_per_step` is a factor on the samples of a step. Above
    `max_error`, half of the interval of the logarithm, the result is an error with a range.
    """
    error = compared.error
    if error is None and not (compared.base and compared.tried):
        error = wording.TRIAL["ended"]
    if error is not None:
        return TrialResult(speedup=NAN, low=NAN, high=NAN, losses="not compared", error=error)
    ratio, half = ratio_of(compared.base, compared.tried)
    ratio, half = ratio * samples_per_step, math.hypot(half, 2 * math.hypot(baseline.difference, RULE.trial_processes))
    low, high = ratio * math.exp(-half), ratio * math.exp(half)
    if half > max_error:
        message = wording.TRIAL["varies"].format(low=low, high=high)
        return TrialResult(speedup=NAN, low=NAN, high=NAN, losses="not compared", error=message)
    losses, difference = compare_losses(baseline.losses, compared.losses, tolerance)
    return TrialResult(
        speedup=ratio,
        low=low,
        high=high,
        losses=losses,
        largest_difference=difference,
        peak_bytes=compared.peak_bytes,
        step_seconds=statistics.median(window.median for window in compared.base),
    )


def ratio_of(base: Sequence[Stretch], tried: Sequence[Stretch]) -> tuple[float, float]:
    """Return the speed-up, and half of the 95 % interval of its logarithm: by pairs of windows, or by sides if one has more."""
    if len(base) == len(tried):
        logs = sorted(math.log(before.median / after.median) for before, after in zip(base, tried, strict=True))
        # The median of any distribution lies between these two of `number` values in 95 of 100 cases; fewer than six say less.
        number = len(logs)
        end = max(0, int((number - 1 - 1.96 * math.sqrt(number)) / 2))
        half = (logs[-1 - end] - logs[end]) / 2 * max(1.0, SURE_ROUNDS / number)
        return math.exp(statistics.median(logs)), half if number > 1 else 2 * math.hypot(base[0].error, tried[0].error)
    sides = [[math.log(window.median) for window in side] for side in (base, tried)]
    errors = [statistics.stdev(side) / math.sqrt(len(side)) if len(side) > 1 else 0.0 for side in sides]
    return math.exp(statistics.fmean(sides[0]) - statistics.fmean(sides[1])), 2 * math.hypot(*errors)


def compare_losses(base: Sequence[list[float]], tried: list[float], tolerance: float | None) -> tuple[Losses, float | None]:
    """Return how losses differ from those of the baseline, step by step, and the largest relative difference."""
    if tolerance is None or not base or not all(base) or not tried:
        return "not compared", None
    if any(largest_difference(base[0], again) > tolerance for again in base[1:]):  # the baseline differs from run to run
        return "not compared", None
    largest = largest_difference(base[0], tried)
    return ("equal" if largest == 0 else "within tolerance" if largest <= tolerance else "changed"), largest
