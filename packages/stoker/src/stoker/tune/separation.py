"""Whether an objective can separate configurations at all: it is not constant, and differences are larger than its noise.

A validation set of a few samples gives every configuration the same accuracy, and a search then returns its first candidate. Where
seeds matter more than parameters, it returns the luckiest one. Both are found from the scores themselves.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from stoker.tune.trial import ranked, repeat_of, scored

ENOUGH_TRIALS = 10
"""With fewer trials, equal scores may be chance."""
F_LIMIT = 0.05
"""The chance that configurations without any difference pass as separated."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How far scores of one configuration are apart with other seeds, and those of different configurations.

    Args:
        noise: Standard deviation over seeds, pooled over the configurations that were repeated.
        spread: Standard deviation over configurations, with one seed.
        num_repeated: Configurations that were repeated.
        num_seeds: Their scores.
        num_configs: Scores of different configurations.
        step: The step or number of updates at which they are compared; None for final values.

    Example:
        >>> Noise(noise=0.1, spread=0.5, num_repeated=3, num_seeds=6, num_configs=20, step=None).separates
        True
    """

    noise: float
    spread: float
    num_repeated: int
    num_seeds: int
    num_configs: int
    step: int | None

    @property
    def separates(self) -> bool:
        """Whether configurations differ by more than seeds do, by an F test at 5 %."""
        if self.spread == 0.0:
            return False
        return self.noise == 0.0 or (self.spread / self.noise) ** 2 > f_limit(
            self.num_configs - 1, self.num_seeds - self.num_repeated
        )

    def __str__(self) -> str:
        at = "" if self.step is None else f" after {self.step:,} steps"
        return (
            f"scores of {self.num_configs} configurations differ by {self.spread:.3g} (standard deviation){at}, those of the same "
            f"configuration with other seeds by {self.noise:.3g} ({self.num_seeds} scores of {self.num_repeated} configurations)"
        )


def repeats_of(trials: Iterable[FrozenTrial], *, sign: float, count: int, seed: int) -> list[tuple[FrozenTrial, int]]:
    """Return trials to repeat, each with another seed: half of them the best one, the others one each of the better half.

    The best alone would not do: it may be more or less noisy than others. Fewer than 4 leave it out.
    """
    order = ranked(trials, sign=sign)
    if not order or not count:
        return []
    num_best = count // 2 if count >= 4 or len(order) < 3 else 0
    better = order[1 : max(2, math.ceil(len(order) / 2))]
    others = random.Random(seed).sample(better, min(count - num_best, len(better)))
    return [*[(order[0], seed + 1 + i) for i in range(count - len(others))], *[(trial, seed + 1) for trial in others]]


def measure_noise(trials: Iterable[FrozenTrial]) -> Noise | None:
    """Return the noise of repeated trials against the spread of the others; None where nothing was repeated."""
    trials = scored(trials, repeats=True)
    firsts = {trial.number: trial for trial in trials if repeat_of(trial) is None}
    repeats: dict[int, list[FrozenTrial]] = {}
    for trial in trials:
        if (number := repeat_of(trial)) is not None:
            repeats.setdefault(number, []).append(trial)
    # Where trials were pruned, all are compared where the first of them ended: later scores are those of the best alone.
    is_pruned = any(trial.state == TrialState.PRUNED for trial in firsts.values())
    step = min((min(trial.intermediate_values) for trial in firsts.values() if trial.intermediate_values), default=None)
    step = step if is_pruned else None

    def scores(some: Iterable[FrozenTrial]) -> list[float]:
        values = [trial.value if step is None else trial.intermediate_values.get(step) for trial in some]
        return [value for value in values if value is not None and math.isfinite(value)]

    # The first score of the best configuration is the luckiest of all, so it does not count; it is the one with several repeats. One
    # drawn from the better half is as far from its repeat as any: there, luck makes the mean square of a score neither larger nor smaller.
    within = [scores(some if len(some) > 1 else [*some, firsts[number]]) for number, some in repeats.items() if number in firsts]
    within = [some for some in within if len(some) > 1]
    between = scores(firsts.values())
    if len(between) < 3 or not within:
        return None
    num_seeds = sum(map(len, within))
    squares = sum((len(some) - 1) * statistics.variance(some) for some in within)
    return Noise(
        noise=math.sqrt(squares / (num_seeds - len(within))),
        spread=statistics.stdev(between),
        num_repeated=len(within),
        num_seeds=num_seeds,
        num_configs=len(between),
        step=step,
    )


def constant_score(trials: Iterable[FrozenTrial]) -> tuple[float, int] | None:
    """Return the score that all trials have, and their number; None where they differ or are too few."""
    trials = scored(trials)
    scores = {trial.value for trial in trials}
    if len(trials) < ENOUGH_TRIALS or len(scores) > 1 or sum(trial.state == TrialState.COMPLETE for trial in trials) < 2:
        return None
    [score] = scores
    return score or 0.0, len(trials)


@functools.cache
def f_limit(above: int, below: int) -> float:
    """Return the 95 % quantile of the F distribution, of a million draws."""
    return float(np.quantile(np.random.default_rng(0).f(above, below, 1_000_000), 1 - F_LIMIT))
