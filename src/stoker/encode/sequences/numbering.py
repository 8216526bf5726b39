"""Numbering: int64 keys become 0, 1, 2, … as they first appear, or as they are listed.

Keys that lie close together have a plain table; others a hash table that is asked for 32 keys at a time, so that memory answers
all of them at once. No key is compared with more than a few others, and nothing is sorted (benchmarks/bench_sequences.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.kernel import kernel
from stoker.memory import prefetch
from stoker.order.keys import mix

Array = npt.NDArray[Any]

_FIRST_ROOM = 1 << 12
_AHEAD = 32


@kernel
def _number_close(keys: Array, low: int, high: int, table: Array, known: Array, count: int, frozen: bool, numbers: Array) -> Any:
    """Number keys by a table of all keys from `low` to `high`. Returns how many are known."""
    for i in range(len(keys)):
        key = keys[i]
        number = np.int32(-1)
        if low <= key <= high:
            number = table[key - low]
            if number < 0 and not frozen:
                number = np.int32(count)
                table[key - low] = number
                known[count] = key
                count += 1
        numbers[i] = number
    return count


@kernel
def _number_far(keys: Array, first: int, table: Array, known: Array, count: int, frozen: bool, numbers: Array) -> Any:
    """Number keys from the one at `first` on by a hash table. Returns how many are known, and where there was no more room."""
    mask = len(table) - 1
    asked = np.empty(_AHEAD, dtype=np.int64)
    while first < len(keys):
        num_asked = min(_AHEAD, len(keys) - first)
        for j in range(num_asked):
            asked[j] = np.int64(mix(np.uint64(keys[first + j])) & np.uint64(mask))
            prefetch(table, asked[j] * 4)
        for j in range(num_asked):
            seen = np.int64(table[asked[j]])
            prefetch(known, (seen if seen > 0 else 0) * 8)
        for j in range(num_asked):
            key, slot = keys[first + j], asked[j]
            number = table[slot]
            while number >= 0 and known[number] != key:
                slot = (slot + 1) & mask
                number = table[slot]
            if number < 0 and not frozen:
                if count == len(known):
                    return count, first + j
                number = np.int32(count)
                table[slot] = number
                known[count] = key
                count += 1
            numbers[first + j] = number
        first += num_asked
    return count, first


@kernel
def _fill_far(known: Array, count: int, table: Array) -> None:
    mask = len(table) - 1
    for i in range(count):
        slot = np.int64(mix(np.uint64(known[i])) & np.uint64(mask))
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = i


class Numbering:
    """Numbers keys as they come: at most `num_keys`, from `low` to `high`."""

    def __init__(self, low: int, high: int, num_keys: int) -> None:
        self._low, self._high = low, high
        width = high - low + 1
        self._close = width <= max(num_keys, _FIRST_ROOM)
        self._known = np.empty(min(width, num_keys) if self._close else _FIRST_ROOM, dtype=np.int64)
        self._table = np.full(width if self._close else 2 * _FIRST_ROOM, -1, dtype=np.int32)
        self._count = 0

    def add(self, keys: Array, numbers: Array, *, frozen: bool = False) -> None:
        """Write the number of each key to `numbers`; with `frozen`, keys that are not known yet are -1."""
        keys = keys.view()
        keys.flags.writeable = False  # kernels are compiled for each kind of array: this makes it one
        if self._close:
            self._count = _number_close(keys, self._low, self._high, self._table, self._known, self._count, frozen, numbers)
            return
        first = 0
        while first < len(keys):
            self._count, first = _number_far(keys, first, self._table, self._known, self._count, frozen, numbers)
            if first < len(keys):
                self._grow()

    def _grow(self) -> None:
        """Four times the room. The table is at most half full, so that a key is found within a step or two."""
        known = np.empty(4 * len(self._known), dtype=np.int64)
        known[: self._count] = self._known
        self._known = known
        del self._table  # before the next: both together would be the largest thing in memory
        self._table = np.full(2 * len(known), -1, dtype=np.int32)
        _fill_far(known, self._count, self._table)

    @property
    def keys(self) -> Array:
        """All keys, by their numbers. Nothing can be added once they were asked for."""
        return self._known if self._count == len(self._known) else self._known[: self._count].copy()
