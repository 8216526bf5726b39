"""Runs: keys in ascending order, each once, with how often it occurs. All statistics of numbers and dates are read off runs.

Sorting goes byte by byte, the lowest first, and leaves out bytes in which all keys agree: a fourth of the time of a sort by
comparison, whatever the values (bench_statistics). Law: a run depends only on which keys it holds how often, so runs of parts
merge into the run of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stoker._types import Array
from stoker.encode.statistics.columns import Keys, compiled

_BYTE = np.uint64(255)


@dataclass(frozen=True, eq=False)
class Run:
    """Different keys in ascending order, and the count of each (int64, at least 1)."""

    keys: Keys
    counts: npt.NDArray[np.int64]

    @staticmethod
    def empty() -> Run:
        """No keys."""
        return Run(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))

    @staticmethod
    def of(keys: Keys) -> Run:
        """Sort and count; what `keys` holds afterwards is not defined."""
        kernels = compiled(len(keys))
        if kernels is None:
            found, counts = np.unique(keys, return_counts=True)
            return Run(found, counts.astype(np.int64, copy=False))
        if not len(keys):
            return Run.empty()
        scratch = np.empty_like(keys)
        if kernels.sort_keys(keys, scratch):
            keys, scratch = scratch, keys
        ends = scratch.view(np.int64)
        size = kernels.find_runs(keys, ends)
        kernels.ends_to_counts(ends[:size])
        return Run(keys, ends) if size == len(keys) else Run(keys[:size].copy(), ends[:size].copy())

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def num_values(self) -> int:
        """All counts together."""
        return int(self.counts.sum())

    @property
    def once(self) -> bool:
        """Whether no key occurs twice."""
        return self.num_values == len(self.keys)

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        return np.cumsum(self.counts, dtype=np.int64)

    def before(self, places: Array) -> npt.NDArray[np.int64]:
        """How many values come before the key at each place; behind the last key, all of them."""
        return places if self.once else np.where(places > 0, self._ends[np.maximum(places, 1) - 1], 0)

    def merge(self, other: Run) -> Run:
        """The run of both."""
        if not len(self) or not len(other):
            return self if len(self) else other
        kernels = compiled(len(self) + len(other))
        if kernels is None:
            keys, places = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
            counts = np.zeros(len(keys), dtype=np.int64)
            np.add.at(counts, places, np.concatenate([self.counts, other.counts]))
            return Run(keys, counts)
        keys = np.empty(len(self) + len(other), dtype=np.uint64)
        counts = np.empty(len(keys), dtype=np.int64)
        size = kernels.merge_runs(self.keys, self.counts, other.keys, other.counts, keys, counts)
        return Run(keys, counts) if size == len(keys) else Run(keys[:size].copy(), counts[:size].copy())

    def at(self, positions: Array) -> Keys:
        """The keys at positions from 0 on, in the sorted sequence of all values."""
        return self.keys[positions if self.once else np.searchsorted(self._ends, positions, side="right")]

    def cut(self, start: int, stop: int) -> Run:
        """The part of the sorted sequence from position `start` up to `stop`."""
        if start >= stop:
            return Run.empty()
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        counts = self.counts[first : last + 1].copy()
        counts[0] = self._ends[first] - start
        counts[-1] -= self._ends[last] - stop
        return Run(self.keys[first : last + 1].copy(), counts)


def sort_keys(keys: Array, scratch: Array) -> bool:
    """Sort; returns whether the sorted keys are in `scratch` rather than in `keys`. Both are overwritten."""
    size = len(keys)
    places = np.zeros((8, 256), dtype=np.int64)
    for i in range(size):
        key = keys[i]
        for byte in range(8):
            places[byte, np.int64((key >> np.uint64(8 * byte)) & _BYTE)] += 1
    swapped = False
    source, target = keys, scratch
    for byte in range(8):
        shift = np.uint64(8 * byte)
        place = places[byte]
        if place[np.int64((source[0] >> shift) & _BYTE)] == size:
            continue
        total = 0
        for value in range(256):
            count = place[value]
            place[value] = total
            total += count
        for i in range(size):
            key = source[i]
            byte_of_key = np.int64((key >> shift) & _BYTE)
            target[place[byte_of_key]] = key
            place[byte_of_key] += 1
        source, target = target, source
        swapped = not swapped
    return swapped


def find_runs(keys: Array, ends: Array) -> int:
    """Move the different keys of a sorted array to its front and write where each ends; returns how many there are."""
    count = 0
    before = ~keys[0]
    for i in range(len(keys)):
        key = keys[i]
        # Written always, and a step further where the key is new: nothing to guess for the processor.
        count += key != before
        keys[count - 1] = key
        ends[count - 1] = i + 1
        before = key
    return count


def ends_to_counts(ends: Array) -> None:
    """Replace where each run ends by how long it is."""
    before = 0
    for i in range(len(ends)):
        end = ends[i]
        ends[i] = end - before
        before = end


def merge_runs(keys: Array, counts: Array, other_keys: Array, other_counts: Array, to_keys: Array, to_counts: Array) -> int:
    """Merge two runs into arrays that hold both; returns how many keys there are."""
    i, j, size = 0, 0, 0
    while i < len(keys) and j < len(other_keys):
        one, other = keys[i], other_keys[j]
        to_keys[size] = min(one, other)
        to_counts[size] = (counts[i] if one <= other else 0) + (other_counts[j] if other <= one else 0)
        i += one <= other
        j += other <= one
        size += 1
    while i < len(keys):
        to_keys[size], to_counts[size] = keys[i], counts[i]
        i += 1
        size += 1
    while j < len(other_keys):
        to_keys[size], to_counts[size] = other_keys[j], other_counts[j]
        j += 1
        size += 1
    return size


# Sketch: the quantiles of more values than are kept, from a part of them that stands for all.
#
# Values come in blocks of a fixed number of values, the last one open. A full block is sorted and every 16th value is kept, the
# middle one of its group, with weight 16. Two sets of equal weight become one of twice the weight: they are merged and every
# second value is kept. So there is at most one set a level, and the number of values alone says which.
#
# The bound, which holds for any values in any order, joined in any way. Where values are replaced by the middle of their
# group, only the one group that a number x falls into is counted wrongly in "how many values are at most x": by at most 8 for a
# block, and by at most the weight w for two sets of weight w. For b full blocks that sums up to
#
#     error = 8 b + sum over i of floor(b / 2**(i + 1)) * 16 * 2**i
#
# ranks. With blocks of 2**20 values: 0.0054 % of 67 million values, 0.008 % of a billion, 0.016 % of 10**12, always less
# than a step between two of a thousand quantiles. The smallest and largest value are kept apart and exact.

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


# Quantiles: a thousand of them, exact while a column has at most so many different values, and from a sketch beyond.
#
# The value of a quantile is one that occurs, that of NumPy's `closest_observation`. Law: exact or not depends only on the
# values, not on how they were cut into parts; where exact, so is every quantile; beyond, `rank_error` bounds how far a quantile's
# rank may be from its own.

NUM_QUANTILES = 1001


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
