"""Intervals and p values of a speed-up or a metric, from a few paired differences, by the signed-rank test.

Nothing is assumed of their distribution but symmetry around the effect: under the null hypothesis that two versions are equal, each
difference of a pair is as likely to have the other sign (Wilcoxon, 1945). Single differences that are far away, as those of runs that other
programs have disturbed, count little. The interval holds all effects that this test does not reject (Hodges and Lehmann, 1963).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEAST_FOR_95 = 6
"""Pairs from which on an interval of 95 % is finite: with fewer, even differences of one sign have p > 0.05."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The typical difference, its interval of 95 %, and p of the hypothesis that it is zero."""

    center: float
    """The pseudo-median: the median of the means of two differences."""
    low: float
    high: float
    p: float
    pairs: int


def effect_of(differences: Sequence[float]) -> Effect:
    """Return the typical difference with its interval and p."""
    values = np.asarray(differences, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        return Effect(center=math.nan, low=-math.inf, high=math.inf, p=1.0, pairs=len(values))
    means = _pair_means(values)
    rejected = int(np.sum(_shares_of_rank_sums(len(values)) <= 0.05 / 2))
    low, high = (means[rejected - 1], means[-rejected]) if rejected else (-math.inf, math.inf)
    return Effect(center=float(np.median(means)), low=float(low), high=float(high), p=_p(values[values != 0]), pairs=len(values))


def _pair_means(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the means of two differences, sorted; a difference itself is the mean of a pair, too."""
    first, second = np.triu_indices(len(values))
    means: npt.NDArray[np.float64] = np.sort((values[first] + values[second]) / 2)
    return means


def _p(values: npt.NDArray[np.float64]) -> float:
    """Return how likely the sum of the positive ranks is at least as far from its mean: it is the number of positive means of two."""
    means = _pair_means(values)
    positive = np.sum(means > 0) + np.sum(means == 0) / 2
    return min(1.0, 2 * float(_shares_of_rank_sums(len(values))[math.ceil(min(positive, len(means) - positive))]))


@functools.lru_cache
def _shares_of_rank_sums(number: int) -> npt.NDArray[np.float64]:
    """The share of all choices of signs in which the sum of the positive ranks is at most 0, 1, 2, ..."""
    shares = np.ones(1)
    for rank in range(1, number + 1):
        shares = (np.pad(shares, (0, rank)) + np.pad(shares, (rank, 0))) / 2
    return np.cumsum(shares)


def pairs_needed(differences: Sequence[float], effect: float) -> int | None:
    """Return how many pairs would show an effect of this size in four of five comparisons; None if their scatter is not known."""
    if len(differences) < 2 or not effect:
        return None
    scatter = statistics.stdev(differences)
    return max(LEAST_FOR_95, math.ceil(((1.96 + 0.84) * scatter / abs(effect)) ** 2))
