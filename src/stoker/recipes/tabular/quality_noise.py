"""Noise: what a measure would read for two real samples, and the verdict that follows.

A measure is a distance between two samples of subjects, 0 for equal ones. Its noise is the distance between random halves of the real
subjects, brought to the sizes of the samples that are compared: a distance falls with a power of the number of subjects, at most the
square root, less where cells are nearly empty. Quarters against quarters measure that power.

The subjects are drawn, never the events, because events of one subject depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array

Verdict = Literal["same", "close", "differs"]
NUM_SPLITS = 16
_SETS = 3 * NUM_SPLITS
SPREADS = 6.0
"""A score that exceeds the noise by more than this many spreads of the halves is not noise. Raised from 5 after one false alarm in 340
measures of two real samples; with 6 there was none in 1,343 measures of 79 other pairs (1,000 + 400 real subjects, 700 others)."""
OUTLIER_SPREADS = 8.0
"""The same for a single column, of which there are many."""
LEAST_RATE, MOST_RATE = 0.05, 0.5


class ColumnScore(NamedTuple):
    """Score, noise and limit of one column."""

    score: float
    noise: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number of the report: a distance of real and synthetic data, beside that of two real samples."""

    name: str
    title: str
    score: float
    noise: float
    limit: float
    """The largest score that two real samples would have."""
    tolerance: float
    """A score up to this one is small, even if more data than usual prove it."""
    columns: Mapping[str, ColumnScore] = field(default_factory=dict)
    """The same for each column, or combination of columns."""

    @property
    def outliers(self) -> list[str]:
        """Columns that differ by themselves; the mean of many columns would hide them."""
        return [name for name, one in self.columns.items() if one.score > max(one.limit, self.tolerance)]

    @property
    def ratio(self) -> float:
        """The score as a multiple of the noise."""
        if self.score == self.noise:
            return 1.0
        return self.score / self.noise if self.noise > 0 else math.inf

    @property
    def verdict(self) -> Verdict:
        """`same`: two real samples differ as much. `close`: they do not, but the difference is small. `differs`: neither."""
        if self.outliers:
            return "differs"
        if self.score <= self.limit:
            return "same"
        return "close" if self.score <= self.tolerance else "differs"


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Random sets of subjects: 16 halves, and for each two quarters that do not overlap."""

    masks: Array
    """A bit per set, for each subject."""
    num_real: int
    num_synthetic: int

    def scale(self, rate: float) -> float:
        """From the noise of halves to that of the samples that are compared."""
        size = 2 / (1 / self.num_real + 1 / self.num_synthetic)
        return float((self.num_real / 2 / size) ** rate)

    def take(self, subjects: Array) -> Splits:
        """For measures of some subjects."""
        share = len(subjects) / max(len(self.masks), 1)
        return Splits(
            masks=self.masks[subjects],
            num_real=max(round(self.num_real * share), 1),
            num_synthetic=max(round(self.num_synthetic * share), 1),
        )


def make_splits(num_real: int, num_synthetic: int, rng: np.random.Generator) -> Splits:
    """The sets for tables with these numbers of subjects."""
    masks = np.zeros(num_real, dtype=np.uint64)
    for number in range(NUM_SPLITS):
        shuffled = rng.permutation(num_real)
        half, quarter = num_real // 2, num_real // 4
        for part, subjects in enumerate((shuffled[:half], shuffled[:quarter], shuffled[half : half + quarter])):
            masks[subjects] |= np.uint64(1) << np.uint64(part * NUM_SPLITS + number)
    return Splits(masks=masks, num_real=num_real, num_synthetic=num_synthetic)


@dataclass(frozen=True, kw_only=True)
class Distances:
    """The distance of real and synthetic data, and those of real halves and quarters."""

    score: float
    halves: Array
    quarters: Array

    def noise(self, splits: Splits, *, smooth: bool = False) -> tuple[float, float]:
        """Mean and spread of what two real samples would have; `smooth` for differences of averages."""
        mean, small = float(np.mean(self.halves)), float(np.mean(self.quarters))
        if mean <= 0 or not math.isfinite(mean):
            return 0.0, 0.0
        rate = MOST_RATE if smooth or small <= 0 else min(max(math.log2(small / mean), LEAST_RATE), MOST_RATE)
        return mean * splits.scale(rate), float(np.std(self.halves, ddof=1)) * splits.scale(rate)


def average(several: Sequence[Distances]) -> Distances:
    """The mean of several, split by split."""
    return Distances(
        score=float(np.mean([one.score for one in several])),
        halves=np.mean([one.halves for one in several], axis=0),
        quarters=np.mean([one.quarters for one in several], axis=0),
    )


def measure(
    name: str, title: str, several: Mapping[str, Distances], splits: Splits, *, tolerance: float, smooth: bool = False
) -> Measure | None:
    """The mean over columns with its noise; None without a column."""
    if not several:
        return None
    whole = average(list(several.values()))
    noise, spread = whole.noise(splits, smooth=smooth)
    details = {}
    for column, one in several.items():
        mean, deviation = one.noise(splits, smooth=smooth)
        details[column] = ColumnScore(one.score, mean, mean + OUTLIER_SPREADS * deviation)
    return Measure(
        name=name, title=title, score=whole.score, noise=noise, limit=noise + SPREADS * spread, tolerance=tolerance, columns=details
    )


# ---- counts of cells ----

Distance = Callable[[Array, Array], Array]


def total_variation(one: Array, other: Array) -> Array:
    """Half the sum of the differences of shares, over the last axis."""
    return np.asarray(0.5 * np.abs(_shares(one) - _shares(other)).sum(axis=-1))


def largest_gap(one: Array, other: Array) -> Array:
    """The Kolmogorov-Smirnov distance, for cells in the order of values."""
    return np.asarray(np.abs(np.cumsum(_shares(one), axis=-1) - np.cumsum(_shares(other), axis=-1)).max(axis=-1))


def _shares(counts: Array) -> Array:
    return np.asarray(counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1))


def count_distances(
    real: tuple[Array, Array], synthetic: Array, num_cells: int, splits: Splits, *, distance: Distance = total_variation
) -> Distances:
    """The distance of counts of cells.

    Args:
        real: The cell of each event, and its subject.
        synthetic: The cell of each synthetic event.
        num_cells: How many cells there are.
        splits: Sets of the real subjects.
        distance: What compares counts, over the last axis.
    """
    cells, owner = real
    found = np.zeros((num_cells, _SETS), dtype=np.int32)
    _count_sets(np.ascontiguousarray(cells, dtype=np.int32), np.ascontiguousarray(owner, dtype=np.int32), splits.masks, found)
    total = np.bincount(cells, minlength=num_cells)
    halves, first, second = found.T.reshape(3, NUM_SPLITS, num_cells)
    return Distances(
        score=float(distance(total, np.bincount(synthetic, minlength=num_cells))),
        halves=distance(halves, total - halves),
        quarters=distance(first, second),
    )


@kernel
def _count_sets(cells: Array, owner: Array, masks: Array, found: Array) -> None:
    """Counts of cells in each set; the inner loop has a fixed length, so that it becomes a few vector operations."""
    for row in range(cells.shape[0]):
        mask = masks[owner[row]]
        counts = found[cells[row]]
        for number in range(_SETS):
            counts[number] += np.int32((mask >> np.uint64(number)) & np.uint64(1))


# ---- averages over subjects ----


def sum_distances(real: Array, synthetic: Array, splits: Splits, statistic: Callable[[Array], Array]) -> Distances:
    """The absolute difference of a statistic of sums: `real` and `synthetic` have one row of sums per subject."""
    bits = (splits.masks[None, :] >> np.arange(_SETS, dtype=np.uint64)[:, None]) & np.uint64(1)
    found = bits.astype(np.float64) @ real
    total = real.sum(axis=0)
    halves, first, second = found.reshape(3, NUM_SPLITS, -1)
    return Distances(
        score=float(np.abs(statistic(total) - statistic(synthetic.sum(axis=0)))),
        halves=np.abs(statistic(halves) - statistic(total - halves)),
        quarters=np.abs(statistic(first) - statistic(second)),
    )
