"""Sketch: the quantiles of more values than are kept, from a part of them that stands for all.

Values come in blocks of a fixed number of values, the last one open. A full block is sorted and every 16th value is kept, the
middle one of its group, with weight 16. Two sets of equal weight become one of twice the weight: they are merged and every
second value is kept. So there is at most one set a level, and the number of values alone says which.

The bound, which holds for any values in any order, joined in any way. Where values are replaced by the middle of their
group, only the one group that a number x falls into is counted wrongly in "how many values are at most x": by at most 8 for a
block, and by at most the weight w for two sets of weight w. For b full blocks that sums up to

    error = 8 b + sum over i of floor(b / 2**(i + 1)) * 16 * 2**i

ranks. With blocks of 2**20 values: 0.0054 % of 67 million values, 0.008 % of a billion, 0.016 % of 10**12, always less
than a step between two of a thousand quantiles. The smallest and largest value are kept apart and exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.statistics.keys import Keys
from stoker.encode.statistics.runs import Run

Array = npt.NDArray[Any]

GROUP = 16
"""Values of a full block that one kept value stands for."""


def rank_error(num_values: int, block: int) -> int:
    """How far the rank of a value from a sketch may be from the rank asked for, in values."""
    num_blocks = num_values // block
    error, weight = num_blocks * (GROUP // 2), GROUP
    while num_blocks := num_blocks // 2:
        error += num_blocks * weight
        weight *= 2
    return error


class Sketch:
    """Values as an open block (all of them) and levels: level i holds block / 16 keys of weight 16 * 2**i, or none."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.open = Run.empty()
        self.levels: list[Keys | None] = []

    @property
    def num_blocks(self) -> int:
        """How many full blocks there were."""
        return sum(1 << i for i, level in enumerate(self.levels) if level is not None)

    @property
    def num_values(self) -> int:
        """How many values were taken in."""
        return self.num_blocks * self.block + self.open.num_values

    def add(self, run: Run) -> None:
        """Take in values."""
        together = self.open.merge(run)
        num_blocks, num_open = divmod(together.num_values, self.block)
        start = 0
        # Neighbours in order go together: blocks of one run make a level at once, and lose less than one by one.
        for level in reversed(range(num_blocks.bit_length())):
            if num_blocks >> level & 1:
                weight = GROUP << level
                stop = start + (self.block << level)
                self._carry(level, together.at(np.arange(start + weight // 2 - 1, stop, weight)))
                start = stop
        self.open = together.cut(start, start + num_open)

    def merge(self, other: Sketch) -> None:
        """Take in the values of another sketch with the same block."""
        for i in reversed(range(len(other.levels))):
            level = other.levels[i]
            if level is not None:
                self._carry(i, level)
        self.add(other.open)

    def weighted(self) -> Run:
        """All that is kept, as keys with weights."""
        kept = self.open
        for i, level in enumerate(self.levels):
            if level is not None:
                run = Run.of(level.copy())
                kept = kept.merge(Run(run.keys, run.counts * (GROUP << i)))
        return kept

    def _carry(self, i: int, keys: Keys) -> None:
        """Put a set at its level; where one is already, both go one level up."""
        while True:
            self.levels.extend([None] * (i + 1 - len(self.levels)))
            present = self.levels[i]
            if present is None:
                self.levels[i] = keys
                return
            # The first of each pair, then the second the next time: what one loses the other makes good.
            later = self.num_blocks >> (i + 1) & 1
            both = np.concatenate([present, keys])
            both.sort(kind="stable")  # two sorted halves, which this kind of sort merges
            self.levels[i] = None
            keys, i = both[later::2].copy(), i + 1
