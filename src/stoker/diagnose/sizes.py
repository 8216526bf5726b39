"""Batches of different sizes: the time that a step would take with a batch of the usual size.

Sequences that are padded to the longest of a batch make steps of many lengths. They are compared like with like: the time of a step
grows with a power of the bytes of its batch, which is fitted to the steps themselves, and each step is brought to one size. That is
the size with which a step takes the mean time, so that rates stay those of the wall clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

VARIED = 1.05  # ratio of the quartiles of sizes from which batches differ in size
FITS = 0.7  # spread that a fit must leave at most, as a share of the spread before
MIN_STEPS = 8
MAX_STEPS = 400  # the last ones, to which a power is fitted
MAX_POWER = 3.0


def differ(sizes: Sequence[int]) -> bool:
    """Whether batches differ in size, not only the last one of an epoch."""
    if len(sizes) < 4 or min(sizes) <= 0:
        return False
    low, _, high = statistics.quantiles(sizes, n=4)
    return high > VARIED * low


class SizeLaw:
    """How the time of a step depends on the size of its batch, for each kind of steps: by default, it does not.

    Loaders of frameworks prefetch one batch. So a step may have the batch that was requested in the step before: whichever of the two
    sizes explains more.
    """

    def __init__(self) -> None:
        self.usual: float | None = None  # the size to which steps are brought
        self._steps: dict[bool, list[tuple[tuple[int, int], float]]] = {False: [], True: []}
        self._powers: dict[bool, float] = {}
        self._which = 0  # of the two sizes

    def factors(self, sizes: Sequence[tuple[int, int]], seconds: Sequence[float], *, cached: bool) -> list[float]:
        """Add steps, and return by what each is to be multiplied to have the usual size; `cached` steps have a power of their own."""
        known = self._steps[cached]
        known += [(both, spent) for both, spent in zip(sizes, seconds, strict=True) if spent > 0]
        del known[:-MAX_STEPS]
        fits = [fitted_power([(both[which], spent) for both, spent in known if both[which] > 0]) for which in (0, 1)]
        power, left = min(fits, key=lambda fit: fit[1])
        if left < FITS and power > 0:
            self._powers[cached] = power
            self._which = 0 if fits[0] == (power, left) else 1
        # A few cached batches may have nearly one size: then their steps grow as those of the loop do.
        power = self._powers.get(cached, self._powers.get(False, 0.0))
        if not power:
            return [1.0] * len(sizes)
        if self.usual is None:
            self.usual = statistics.fmean(float(both[self._which]) ** power for both, _ in known) ** (1 / power)
        return [(self.usual / size) ** power if (size := both[self._which]) > 0 else 1.0 for both in sizes]


def fitted_power(steps: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fit a power of sizes to times; return it, and the share of the spread that it leaves."""
    if len(steps) < MIN_STEPS:
        return 0.0, 1.0
    logs = sorted((math.log(size), math.log(spent)) for size, spent in steps)
    half = len(logs) // 2
    pairs = zip(logs[:half], logs[-half:], strict=True)
    # The median of slopes does not mind rare steps that take far longer.
    slopes = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs if after[0] > before[0]]
    power = min(MAX_POWER, statistics.median(slopes)) if slopes else 0.0
    before, after = _spread([time for _, time in logs]), _spread([time - power * size for size, time in logs])
    return power, after / before if before > 0 else 1.0


def _spread(values: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(values, n=4)
    return high - low
