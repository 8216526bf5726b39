"""Compiled kernels of sequences: numbering of keys, and a counting sort of rows into their cells.

    context of each row ──► lengths of the sequences ──► where each begins ──► cell of each row ──► values in their cells

The numbers of the contexts and of the cells share one array of 4 bytes per row; nothing else is as long as the table. Kernels move
words of 1, 2, 4 or 8 bytes, so they are compiled at most four times, whatever the types of the columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.extend import Array, kernel, prefetch

MAX_NARROW = 2**31 - 1
NO_STARTS = np.empty(0, dtype=np.int32)


@kernel
def count_rows(contexts: Array, limit: int, lengths: Array) -> None:
    """Add the rows of each context to `lengths`, up to `limit`."""
    for i in range(len(contexts)):
        context = contexts[i]
        if context >= 0 and lengths[context] < limit:
            lengths[context] += 1


@kernel
def _place(contexts: Array, limit: int, starts: Array, steps: int, filled: Array, places: Array) -> None:
    """`places` may be `contexts` itself. Sequences begin at `starts`, or every `steps` where that is empty."""
    even = len(starts) == 0
    for i in range(len(contexts)):
        context = np.int64(contexts[i])
        place = np.int64(-1)
        if context >= 0 and filled[context] < limit:
            place = (context * steps if even else np.int64(starts[context])) + filled[context]
            filled[context] += 1
        places[i] = place


@kernel
def _put(places: Array, values: Array, target: Array) -> None:
    for i in range(len(places)):
        if places[i] >= 0:
            target[places[i]] = values[i]


def start_steps(lengths: Array, end_steps: int) -> Array:
    """Where each sequence begins if all are end to end, each followed by `end_steps`; and the end of the last."""
    num_cells = int(lengths.sum(dtype=np.int64)) + end_steps * len(lengths)
    starts = np.zeros(len(lengths) + 1, dtype=np.int32 if num_cells <= MAX_NARROW else np.int64)
    np.add(lengths, end_steps, out=starts[1:])
    np.cumsum(starts, out=starts)
    return starts


def place_rows(contexts: Array, lengths: Array, limit: int, *, starts: Array | None, steps: int, num_cells: int) -> Array:
    """The cell of each row. `contexts` is overwritten: it becomes the cells, unless they do not fit into it."""
    places = contexts if num_cells <= MAX_NARROW else np.empty(len(contexts), dtype=np.int64)
    lengths[:] = 0  # counted again by the kernel, which saves a second array
    begins = NO_STARTS if starts is None else starts
    _place(contexts, min(limit, MAX_NARROW), begins, steps, lengths, places)
    return places


def put_values(places: Array, values: Array, target: Array) -> None:
    """Write values to their cells of a flat target of the same type, byte by byte."""
    word = np.dtype(f"u{target.dtype.itemsize}")
    plain = values.view(word)
    plain.flags.writeable = False  # kernels are compiled for each kind of array: always pass read-only ones
    _put(places, plain, target.view(word))


@kernel
def put_positions(lengths: Array, starts: Array, steps: int, divisor: int, forward: Array, length: Array, backward: Array) -> None:
    """Write for each step of a sequence, and the one after it, its position from the start, the length, and from the end.

    With a divisor of 1, 10, 100, …, that decimal digit of each number is written; with 0, the number itself. `starts` and `steps`
    as for `_place`.
    """
    even = len(starts) == 0
    for i in range(len(lengths)):
        count = np.int64(lengths[i])
        first = i * steps if even else np.int64(starts[i])
        for step in range(count + 1):
            back = count - step
            forward[first + step] = step if divisor == 0 else step // divisor % 10
            length[first + step] = count if divisor == 0 else count // divisor % 10
            backward[first + step] = back if divisor == 0 else back // divisor % 10


# ---- numbering: int64 keys become 0, 1, 2, … in order of first appearance, or as they are listed ----
# Keys that lie close together have a plain table; others a hash table that is asked for 32 keys at a time, so that their memory
# accesses overlap. Nothing is sorted (benchmarks/tabular/bench_sequences.py).

_FIRST_ROOM = 1 << 12
_AHEAD = 32
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


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
    """Number keys from `first` on by a hash table. Returns how many are known, and where it ran out of room."""
    mask = len(table) - 1
    asked = np.empty(_AHEAD, dtype=np.int64)
    while first < len(keys):
        num_asked = min(_AHEAD, len(keys) - first)
        for j in range(num_asked):
            asked[j] = np.int64(_mix(np.uint64(keys[first + j])) & np.uint64(mask))
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
        slot = np.int64(_mix(np.uint64(known[i])) & np.uint64(mask))
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = i


@kernel
def _mix(word: Any) -> Any:
    """A hash of 64 bits: the finalizer of splitmix64."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


class Numbering:
    """Numbers keys in order of first appearance: at most `num_keys`, from `low` to `high`."""

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
        keys.flags.writeable = False  # kernels are compiled for each kind of array: always pass read-only ones
        if self._close:
            self._count = _number_close(keys, self._low, self._high, self._table, self._known, self._count, frozen, numbers)
            return
        first = 0
        while first < len(keys):
            self._count, first = _number_far(keys, first, self._table, self._known, self._count, frozen, numbers)
            if first < len(keys):
                self._grow()

    def _grow(self) -> None:
        """Four times the room. The table is at most half full, so a key is found within a step or two."""
        known = np.empty(4 * len(self._known), dtype=np.int64)
        known[: self._count] = self._known
        self._known = known
        del self._table  # before the next is made: both together would set the peak of memory
        self._table = np.full(2 * len(known), -1, dtype=np.int32)
        _fill_far(known, self._count, self._table)

    @property
    def keys(self) -> Array:
        """All keys by their numbers; nothing can be added afterwards."""
        return self._known if self._count == len(self._known) else self._known[: self._count].copy()
