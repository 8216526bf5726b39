"""Whether an objective can separate configurations at all: it is not constant, and differences are larger than its noise.

A validation set of a few samples gives every configuration the same accuracy, and a search then returns its first candidate. Where
seeds matter more than parameters, it returns the luckiest one. Both are found from the scores themselves.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stoker.tune.trial import StudyTrial

ENOUGH_TRIALS = 10
"""With fewer trials, equal scores may be chance."""
F_LIMIT = 0.05
"""The chance that configurations without any difference pass as separated."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How far scores of one configuration are apart with other seeds, and those of different configurations.

    Args:
        noise: Standard deviation over seeds.
        spread: Standard deviation over configurations, with one seed.
        num_seeds: Scores of repeated configurations.
        num_configs: Scores of different configurations.
        step: The step or number of updates at which they are compared; None for final values.

    Example:
        >>> Noise(noise=0.1, spread=0.5, num_seeds=4, num_configs=20, step=None).separates
        True
    """

    noise: float
    spread: float
    num_seeds: int
    num_configs: int
    step: int | None

    @property
    def separates(self) -> bool:
        """Whether configurations differ by more than seeds do, by an F test at 5 %."""
        if self.spread == 0.0:
            return False
        return self.noise == 0.0 or (self.spread / self.noise) ** 2 > f_limit(self.num_configs - 1, self.num_seeds - 1)

    def __str__(self) -> str:
        at = "" if self.step is None else f" after {self.step:,} steps"
        return (
            f"scores of {self.num_configs} configurations differ by {self.spread:.3g} (standard deviation){at}, those of one "
            f"configuration with {self.num_seeds} seeds by {self.noise:.3g}"
        )


def measure_noise(trials: Iterable[StudyTrial]) -> Noise | None:
    """The noise of repeated trials against the spread of the others; None where nothing was repeated."""
    trials = [one for one in trials if one.state in ("complete", "pruned")]
    repeats = [one for one in trials if one.repeat_of is not None]
    firsts = [one for one in trials if one.repeat_of is None]
    if len(repeats) < 2:
        return None
    # Where trials were pruned, all are compared where the first of them ended: later scores are those of the best alone.
    is_pruned = any(one.state == "pruned" for one in firsts)
    step = min((min(one.steps) for one in firsts if one.steps), default=None) if is_pruned else None

    def scores(some: Sequence[StudyTrial]) -> list[float]:
        found = [one.value if step is None else one.steps.get(step) for one in some]
        return [one for one in found if one is not None and math.isfinite(one)]

    between, within = scores(firsts), scores(repeats)
    if len(between) < 3 or len(within) < 2:
        return None
    return Noise(
        noise=statistics.stdev(within), spread=statistics.stdev(between), num_seeds=len(within), num_configs=len(between), step=step
    )


def constant_score(trials: Iterable[StudyTrial]) -> tuple[float, int] | None:
    """The score that all trials have, and their number; None where they differ or are too few."""
    trials = [one for one in trials if one.state in ("complete", "pruned") and one.repeat_of is None and one.score is not None]
    scores = {one.score for one in trials}
    if len(trials) < ENOUGH_TRIALS or len(scores) > 1 or sum(one.state == "complete" for one in trials) < 2:
        return None
    [score] = scores
    return score or 0.0, len(trials)


def f_limit(above: int, below: int) -> float:
    """The 95 % quantile of the F distribution, by bisection of the incomplete beta function (scipy is not needed for one number)."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        x = above * middle / (above * middle + below)
        low, high = (middle, high) if _beta_cdf(x, above / 2, below / 2) < 1 - F_LIMIT else (low, middle)
    return high


def _beta_cdf(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by its continued fraction (modified Lentz)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta_cdf(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1), tiny)
    total = d
    for m in range(1, 300):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / (1.0 + term * d or tiny)
            c = 1.0 + term / c or tiny
            total *= c * d
        if abs(c * d - 1.0) < 1e-12:
            break
    return front * total
