"""Chance: how many rows may look like a sample that was read and yet be another, where only some samples were read.

Contents that are all different in a part of the data need not be so in all of it. How often two samples can be equal at most is
known from the pairs that were seen, and so is what equal samples can bring about at most. Only more than that is a fault.
"""

from __future__ import annotations

import math

import numpy as np

from stoker.feed.auditing.fingerprint import Words

SURE = 1e-5
"""Chance that a number is beyond what is called the most."""


def at_most(number: float) -> float:
    """The most that a mean can be if `number` events came, and the most that can come if the mean is `number` (Poisson)."""
    return float((math.sqrt(number) + math.sqrt(-math.log(SURE))) ** 2)


def equal_pairs(words: Words) -> int:
    """Pairs of rows with the same word."""
    counts = np.unique(words, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def most_likely_equal(num_equal: int, num_rows: int) -> float:
    """The most that the chance of two samples to be equal can be, if that many pairs of that many rows are."""
    pairs = num_rows * (num_rows - 1) / 2
    return min(at_most(num_equal) / pairs, 1.0) if pairs else 1.0
