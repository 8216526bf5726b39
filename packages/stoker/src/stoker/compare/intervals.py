"""Intervals and p values of a speed-up or a metric, from a few paired differences.

Nothing is assumed of their distribution but symmetry around the effect.

Under the null hypothesis that two versions are equal, each difference of a pair is as likely to have the other sign. `effect_of` is for
metrics: its p value is the share of all 2^n choices of signs whose mean is at least as far from zero as the mean that was seen.
`typical_effect_of` is for times, of which a few are disturbed: it does the same with ranks. Intervals hold all effects that the test does
not reject.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST_EXACT = 12
"""Differences up to which all choices of signs are counted; of more, `RANDOM_CHOICES` of them, whose error of p is about 0.001."""
RANDOM_CHOICES = 1 << 14
LEAST_FOR_95 = 6
"""Pairs from which on an interval of 95 % is finite: with fewer, even differences of one sign have p > 0.05."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The center of paired differences, its interval of 95 %, and p of the hypothesis that it is zero."""

    center: float
    """Their mean, or their pseudo-median."""
    low: float
    high: float
    p: float
    pairs: int


def effect_of(differences: Sequence[float]) -> Effect:
    """Return the mean of differences with its interval and p."""
    values = np.asarray(differences, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        return Effect(center=math.nan, low=-math.inf, high=math.inf, p=1.0, pairs=len(values))
    flipped = _subsets(len(values))
    sums = flipped @ values
    slack = 1e-12 * float(np.abs(values).sum())
    # A choice of signs changes the sum by twice that of the flipped values.
    p = float(np.mean(np.abs(values.sum() - 2 * sums) >= abs(values.sum()) - slack))
    low, high = _interval(sums, flipped.sum(1))
    return Effect(center=float(values.mean()), low=low, high=high, p=p, pairs=len(values))


def typical_effect_of(differences: Sequence[float]) -> Effect:
    """Return the pseudo-median of differences with its interval and p: single differences that are far away move it little.

    The signed-rank test counts which means of two differences (a difference and itself included) are above zero (Wilcoxon, 1945). Effects
    that it does not reject lie between two of these means (Hodges and Lehmann, 1963).
    """
    values = np.asarray(differences, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        return Effect(center=math.nan, low=-math.inf, high=math.inf, p=1.0, pairs=len(values))
    first, second = np.triu_indices(len(values))
    means = np.sort((values[first] + values[second]) / 2)
    below = _shares_of_rank_sums(len(values))
    positive = np.sum(means > 0) + np.sum(means == 0) / 2
    p = min(1.0, 2 * float(below[int(min(positive, len(means) - positive))]))
    rejected = int(np.sum(below <= 0.05 / 2))
    low, high = (means[rejected - 1], means[-rejected]) if rejected else (-math.inf, math.inf)
    return Effect(center=float(np.median(means)), low=float(low), high=float(high), p=p, pairs=len(values))


@functools.lru_cache
def _shares_of_rank_sums(number: int) -> npt.NDArray[np.float64]:
    """The share of choices of signs in which the sum of the positive ranks is at most 0, 1, 2, ..."""
    shares = np.ones(1)
    for rank in range(1, number + 1):
        shares = (np.pad(shares, (0, rank)) + np.pad(shares, (rank, 0))) / 2
    return np.cumsum(shares)


@functools.lru_cache(2)
def _subsets(number: int) -> npt.NDArray[np.float64]:
    """Rows that mark the values whose signs are flipped: all choices, or random ones with that of no flip first."""
    if number <= MOST_EXACT:
        bits = np.arange(1 << number)[:, None] >> np.arange(number) & 1
    else:
        bits = np.random.default_rng(number).integers(0, 2, (RANDOM_CHOICES, number))
        bits[0] = 0
    return bits.astype(np.float64)


def _interval(sums: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The effects that the test does not reject.

    With an effect d below the mean, a choice of signs is as extreme as the data if and only if the mean of the flipped values is at most
    d (Hartigan, 1969). So the ends of the interval are order statistics of the means of all subsets.
    """
    rejected = int(0.05 / 2 * len(sums))
    if not rejected:
        return -math.inf, math.inf
    means = np.sort(sums[sizes > 0] / sizes[sizes > 0])
    return float(means[rejected - 1]), float(means[-rejected])


def pairs_needed(differences: Sequence[float], effect: float) -> int | None:
    """Return how many pairs would show an effect of this size in four of five comparisons; None if their scatter is not known."""
    if len(differences) < 2 or not effect:
        return None
    scatter = statistics.stdev(differences)
    return max(LEAST_FOR_95, math.ceil(((1.96 + 0.84) * scatter / abs(effect)) ** 2))
