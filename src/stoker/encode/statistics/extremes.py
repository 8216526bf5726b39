"""Extremes: the smallest and the largest values, a thousand of each, which rare-value protection draws its limits from."""

from __future__ import annotations

import numpy as np

from stoker.encode.statistics.keys import Keys
from stoker.encode.statistics.runs import Run

NUM_EXTREMES = 1000


class Extremes:
    """Keys in ascending order: the `smallest`, and the `largest`; a value that occurs twice is there twice."""

    def __init__(self, smallest: Keys | None = None, largest: Keys | None = None) -> None:
        none = np.empty(0, dtype=np.uint64)
        self.smallest = none if smallest is None else smallest
        self.largest = none if largest is None else largest

    @staticmethod
    def of(run: Run) -> Extremes:
        """Those of a run."""
        first = Run(run.keys[:NUM_EXTREMES], run.counts[:NUM_EXTREMES])
        last = Run(run.keys[-NUM_EXTREMES:], run.counts[-NUM_EXTREMES:])
        num_first, num_last = first.num_values, last.num_values
        return Extremes(
            first.at(np.arange(min(num_first, NUM_EXTREMES))), last.at(np.arange(max(num_last - NUM_EXTREMES, 0), num_last))
        )

    def merge(self, other: Extremes) -> None:
        """Take in other extremes."""
        self.smallest = np.sort(np.concatenate([self.smallest, other.smallest]))[:NUM_EXTREMES]
        self.largest = np.sort(np.concatenate([self.largest, other.largest]))[-NUM_EXTREMES:]
