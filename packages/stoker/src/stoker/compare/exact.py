"""Exact statistics of a few paired differences: nothing is assumed of their distribution but symmetry around the effect.

Under the null hypothesis that two versions are equal, each difference of a pair is as likely to have the other sign. So the p value is
the share of all 2^n choices of signs whose mean is at least as far from zero as the mean that was seen. The interval holds all effects
that this test does not reject.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST_EXACT = 16
"""Differences up to which all choices of signs are counted. Of more, these many random choices are: their error is below 0.001."""
RANDOM_SIGNS = 1 << 17
LEAST_FOR_95 = 6
"""Pairs from which on an interval of 95 % is finite: with fewer, even differences of one sign have p > 0.05."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The mean of paired differences, its interval of 95 %, and p of the hypothesis that it is zero."""

    mean: float
    low: float
    high: float
    p: float
    pairs: int


def effect_of(differences: Sequence[float]) -> Effect:
    """Return the mean of differences with its interval and p."""
    values = np.asarray(differences, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        return Effect(mean=math.nan, low=-math.inf, high=math.inf, p=1.0, pairs=len(values))
    signs = _signs(len(values))
    low, high = _interval(values, signs)
    return Effect(mean=float(values.mean()), low=low, high=high, p=_p(values, signs), pairs=len(values))


def _signs(number: int) -> npt.NDArray[np.float64]:
    """Rows of signs: all of them, or random ones with that of the data itself."""
    if number <= MOST_EXACT:
        bits = np.arange(1 << number)[:, None] >> np.arange(number) & 1
    else:
        bits = np.random.default_rng(number).integers(0, 2, (RANDOM_SIGNS, number))
        bits[0] = 1
    return bits * 2.0 - 1.0


def _p(values: npt.NDArray[np.float64], signs: npt.NDArray[np.float64]) -> float:
    means = np.abs(signs @ values)
    seen = abs(float(values.sum()))
    return float(np.mean(means >= seen - 1e-12 * np.abs(values).sum()))


def _interval(values: npt.NDArray[np.float64], signs: npt.NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """The effects that are not rejected, by bisection: p falls on both sides of the mean."""
    if 2 / len(signs) > 1 - level:
        return -math.inf, math.inf
    mean, reach = float(values.mean()), float(np.ptp(values))
    ends = []
    for side in (-1, 1):
        inside, outside = mean, mean + side * (reach + 1e-300)
        for _ in range(40):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if _p(values - middle, signs) > 1 - level else (inside, middle)
        ends.append(outside)
    return ends[0], ends[1]


def pairs_needed(differences: Sequence[float], effect: float) -> int | None:
    """Return how many pairs would show an effect of this size in four of five comparisons; None if their scatter is not known."""
    if len(differences) < 2 or not effect:
        return None
    scatter = statistics.stdev(differences)
    return max(LEAST_FOR_95, math.ceil(((1.96 + 0.84) * scatter / abs(effect)) ** 2))
