"""Runs: keys in ascending order, each once, with how often it occurs. All statistics of numbers and dates are read off runs.

Sorting goes byte by byte, the lowest first, and leaves out bytes in which all keys agree: a fourth of the time of a sort by
comparison, whatever the values (bench_statistics). Law: a run depends only on which keys it holds how often, so runs of parts
merge into the run of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.statistics.keys import Keys, compiled

Array = npt.NDArray[Any]

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
