"""Shuffle: how an order of sample numbers compares with a uniform permutation of them.

Three measures, each with the value that chance gives: the spread of numbers inside a batch (1.0), the share of the commonest
step from one sample to the next (1 in n), and the share of neighbours that are neighbours again in the next epoch (1 in n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stoker.feed.auditing.leaves import Array

MIN_EVENTS = 12
"""Equal steps, or equal neighbours, that chance does not bring about: it brings one on average."""
MIN_SHARE = 0.1
MIN_SPREAD = 0.9
SURE = 6.0
"""Standard deviations between a measured spread and 1 before it is called different."""
GROUP = 32
"""Samples in a row that are looked at together where batches hold a single one."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What an order looks like."""

    spread: float
    """Of numbers inside a batch; 1.0 where batches are drawn from everywhere."""
    error: float
    """The standard deviation that the squared spread of a true shuffle would have."""
    step: int
    """The commonest step from one sample to the next."""
    step_share: float
    num_samples: int
    """Rows with a number of their own."""

    @property
    def stepped(self) -> bool:
        """Whether samples follow each other at a fixed distance."""
        return self.step_share >= MIN_SHARE and round(self.step_share * (self.num_samples - 1)) >= MIN_EVENTS

    @property
    def clustered(self) -> bool:
        """Whether batches are drawn from parts of the data."""
        return self.spread < MIN_SPREAD and (1 - self.spread**2) > SURE * self.error

    @property
    def judged(self) -> bool:
        """Whether a bad order would have been noticed."""
        return self.stepped or self.clustered or self.num_samples > MIN_EVENTS / MIN_SHARE or SURE * self.error < 1 - MIN_SPREAD**2


def measure(ranks: Array, starts: Array, num_samples: int) -> Order:
    """Measure one epoch, from the rank of each row's sample among `num_samples` (-1: unknown) and where batches begin."""
    known = np.flatnonzero(ranks >= 0)
    starts = np.searchsorted(known, starts)
    ranks = ranks[known]
    steps, number = np.unique(np.diff(ranks), return_counts=True)
    best = int(np.argmax(number)) if len(number) else -1
    spread, error = _spread(ranks, starts, num_samples)
    return Order(
        spread=spread,
        error=error,
        step=int(steps[best]) if best >= 0 else 0,
        step_share=float(number[best] / max(len(ranks) - 1, 1)) if best >= 0 else 0.0,
        num_samples=len(ranks),
    )


def _spread(ranks: Array, starts: Array, num_samples: int) -> tuple[float, float]:
    """The spread inside batches over that of a uniform draw, and the error of its square."""
    sizes = np.diff(starts)
    if len(sizes) and sizes.max() <= 1:
        starts = np.arange(0, len(ranks) + 1, min(GROUP, max(len(ranks), 1)))
        sizes = np.diff(starts)
    full = sizes >= 2
    begins, sizes = starts[:-1][full], sizes[full].astype(np.float64)
    if not len(sizes):
        return 1.0, math.inf
    values = ranks.astype(np.float64) - (num_samples - 1) / 2  # around zero, so that squares keep their digits
    totals = np.concatenate([[0.0], np.cumsum(values)])
    squares = np.concatenate([[0.0], np.cumsum(values**2)])
    ends = begins + sizes.astype(np.int64)
    within = (squares[ends] - squares[begins]) - (totals[ends] - totals[begins]) ** 2 / sizes
    free = sizes - 1
    uniform = num_samples * (num_samples + 1) / 12
    ratio = max(float(within.sum() / free.sum() / uniform), 0.0)
    # The variance of a sample variance of the uniform distribution, whose excess kurtosis is -1.2.
    error = math.sqrt(float((free**2 * (2 / free - 1.2 / sizes)).sum())) / float(free.sum())
    return math.sqrt(ratio), error


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """Neighbours of one epoch that are neighbours again in the next."""

    number: int
    share: float
    num_compared: int
    """Samples that came in both epochs and have a content of their own."""


def recurrence(before: Array, now: Array, counts: Array | None) -> Recurrence:
    """Compare the order of two epochs; `counts` says how many samples have an identity, None that identities are contents."""
    before, now = _distinct(before, counts), _distinct(now, counts)
    before, now = before[np.isin(before, now)], now[np.isin(now, before)]
    if len(before) < 2 or len(now) < 2:
        return Recurrence(number=0, share=0.0, num_compared=len(before))
    again = int(np.count_nonzero(np.isin(_pairs(before), _pairs(now))))
    return Recurrence(number=again, share=again / (len(before) - 1), num_compared=len(before))


def _distinct(identities: Array, counts: Array | None) -> Array:
    """The first row of each sample, without those whose content others have, too."""
    if counts is None:
        values, first, number = np.unique(identities, return_index=True, return_counts=True)
        return identities[np.sort(first[number <= np.median(number)])] if len(values) else identities
    known = identities[identities >= 0]
    _, first = np.unique(known, return_index=True)
    known = known[np.sort(first)]
    alone: Array = known[counts[known] == 1]
    return alone


def _pairs(identities: Array) -> Array:
    words = identities.astype(np.int64).view(np.uint64)
    pairs: Array = (words[:-1] * np.uint64(0x9E3779B97F4A7C15)) ^ (words[1:] * np.uint64(0xBF58476D1CE4E5B9) + np.uint64(1))
    return pairs
