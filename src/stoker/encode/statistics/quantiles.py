"""Quantiles: a thousand of them, exact while a column has at most so many different values, and from a sketch beyond.

The value of a quantile is one that occurs, that of NumPy's `closest_observation`. Law: exact or not depends only on the
values, not on how they were cut into parts; where exact, so is every quantile; beyond, `rank_error` bounds how far a quantile's
rank may be from its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.statistics.keys import Keys
from stoker.encode.statistics.runs import Run
from stoker.encode.statistics.sketch import Sketch, rank_error

NUM_QUANTILES = 1001

Array = npt.NDArray[Any]


def closest_positions(num_values: int, shares: Array) -> npt.NDArray[np.int64]:
    """Positions of quantiles in the sorted values: the nearest, and of two equally near the one with the odd number."""
    wanted = num_values * shares - 1.5
    below = np.floor(wanted)
    positions = np.where((wanted == below) & (below % 2 == 1), below, below + 1)
    return np.asarray(np.clip(positions, 0, num_values - 1), dtype=np.int64)


class Distribution:
    """How values are distributed: all of them while at most `limit` are different, a sketch of them beyond."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.run = Run.empty()
        self.sketch: Sketch | None = None
        self.least: int | None = None
        self.most: int | None = None

    @property
    def num_values(self) -> int:
        """How many values were taken in."""
        return self.run.num_values if self.sketch is None else self.sketch.num_values

    @property
    def rank_error(self) -> int:
        """How far the rank of a quantile may be from its own; 0 where all values are there."""
        return 0 if self.sketch is None else rank_error(self.sketch.num_values, self.limit)

    def add(self, run: Run) -> None:
        """Take in values."""
        if not len(run):
            return
        first, last = int(run.keys[0]), int(run.keys[-1])
        self.least = first if self.least is None else min(first, self.least)
        self.most = last if self.most is None else max(last, self.most)
        if self.sketch is not None:
            self.sketch.add(run)
            return
        self.run = self.run.merge(run)
        if len(self.run) > self.limit:
            self.sketch = Sketch(self.limit)
            self.sketch.add(self.run)
            self.run = Run.empty()

    def merge(self, other: Distribution) -> None:
        """Take in the values of another one with the same limit."""
        if other.sketch is None:
            self.add(other.run)
            return
        if self.sketch is None:
            self.sketch = Sketch(self.limit)
            self.sketch.add(self.run)
            self.run = Run.empty()
        self.sketch.merge(other.sketch)
        self.least = min(one for one in (self.least, other.least) if one is not None)
        self.most = max(one for one in (self.most, other.most) if one is not None)

    def quantiles(self, shares: Array | None = None) -> Keys:
        """The keys of quantiles (by default 0, 0.001, ... 1); none where there are no values."""
        shares = np.linspace(0, 1, NUM_QUANTILES) if shares is None else shares
        num_values = self.num_values
        if not num_values:
            return np.empty(0, dtype=np.uint64)
        positions = closest_positions(num_values, shares)
        if self.sketch is None:
            return self.run.at(positions)
        keys = self.sketch.weighted().at(positions)
        if self.least is not None and self.most is not None:
            keys[positions == 0] = self.least
            keys[positions == num_values - 1] = self.most
        return keys
