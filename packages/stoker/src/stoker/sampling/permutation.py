"""Keys and permutations: the one place where randomness is made. A key is a function of its words, equal on every machine.

No global generator is read or changed, so neither the user's random numbers nor ours depend on each other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import OptionError

MAX_SEED = 2**63 - 1

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@kernel
def mix(word: Any) -> Any:
    """Turn 64 bits into 64 others that look unrelated: the finalizer of splitmix64."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


@kernel
def derive(key: Any, word: Any) -> Any:
    """The key of one thing (an epoch, a window) under another key."""
    return mix(key + _GOLDEN * (word + np.uint64(1)))


@kernel
def fill_round_keys(key: Any, keys: Array) -> None:
    """One key for each round of a permutation."""
    for i in range(len(keys)):
        keys[i] = derive(key, np.uint64(i))


@kernel
def _epoch_key(seed: int, epoch: int, purpose: int) -> Any:
    return derive(derive(derive(np.uint64(0), np.uint64(seed)), np.uint64(epoch)), np.uint64(purpose))


def epoch_key(seed: int, epoch: int, purpose: int = 0) -> np.uint64:
    """The key of an epoch. What must be independent within an epoch takes different purposes."""
    return np.uint64(_epoch_key(seed, epoch, purpose))


@kernel
def _fill_below(key: Any, words: Array, limits: Array, drawn: Array) -> None:
    for i in range(len(words)):
        drawn[i] = np.int64(derive(key, np.uint64(words[i])) % np.uint64(limits[i]))


def draw_below(key: np.uint64, words: Array, limits: Array) -> Array:
    """For each word a random number from 0 to below its limit, which must be at most 2**48: a function of key, word and limit."""
    drawn = np.empty(len(words), dtype=np.int64)
    _fill_below(key, words, limits, drawn)
    return drawn


# Permutations: every number below n exactly once, in an order that a key decides, without a list of n numbers.
#
# A number below n is written with two digits, of base a and b, both about the square root of n. A round adds to one digit a
# hash of the other, so each round can be undone and the whole is one-to-one (a generalised Feistel network). As a * b
# exceeds n by less than a, a result of n or more is rare; it is put through again until it is below n.

MAX_SIZE = 2**62  # so that both digits fit 32 bits
NUM_ROUNDS = 16  # as many as make all orders of a handful of numbers equally likely; 6 ns a number

_ODD = np.uint64(0xD6E8FEB86659FD93)
_LOW = np.uint64(32)
_LANES = 64


@kernel
def _shift(digit: Any, key: Any, base: Any) -> Any:
    """A number below `base` that depends on all bits of `digit` and `key`."""
    word = (digit ^ key) * _ODD
    word = (word ^ (word >> _LOW)) * _ODD
    return ((word >> _LOW) * base) >> _LOW


@kernel
def split(size: Any) -> Any:
    """The bases of the two digits of numbers below `size`."""
    high = np.int64(math.ceil(math.sqrt(size)))
    while high * high < size:  # the root of a large number is rounded
        high += 1
    high += high & 1  # two odd bases would give even permutations only
    return np.uint64(high), np.uint64((size + high - 1) // high)


@kernel
def permute_one(number: Any, size: Any, high: Any, low: Any, keys: Array) -> Any:
    """Where the permutation sends one number."""
    while True:
        h = number // low
        r = number - h * low
        for i in range(0, len(keys), 2):
            h += _shift(r, keys[i], high)
            if h >= high:
                h -= high
            r += _shift(h, keys[i + 1], low)
            if r >= low:
                r -= low
        number = h * low + r
        if number < size:
            return number


@kernel
def _invert(number: int, size: int, keys: Array) -> Any:
    """Which number the permutation sends here."""
    high, low = split(size)
    place = np.uint64(number)
    while True:
        h = place // low
        r = place - h * low
        for i in range(len(keys) - 2, -1, -2):
            r += low - _shift(h, keys[i + 1], low)
            if r >= low:
                r -= low
            h += high - _shift(r, keys[i], high)
            if h >= high:
                h -= high
        place = h * low + r
        if place < np.uint64(size):
            return np.int64(place)


@kernel
def permute_range(start: int, size: int, keys: Array, out: Array) -> None:
    """`permute_one` of consecutive numbers, a round for many of them at a time, so that the compiler can use vectors."""
    high, low = split(size)
    hs = np.empty(_LANES, dtype=np.uint64)
    rs = np.empty(_LANES, dtype=np.uint64)
    for first in range(0, len(out), _LANES):
        count = min(_LANES, len(out) - first)
        h = np.uint64(start + first) // low
        r = np.uint64(start + first) - h * low
        for i in range(_LANES):
            hs[i] = h
            rs[i] = r
            r += np.uint64(1)
            if r == low:
                r = np.uint64(0)
                h += np.uint64(1)
        for k in range(0, len(keys), 2):
            for i in range(_LANES):
                h = hs[i] + _shift(rs[i], keys[k], high)
                h = h - high if h >= high else h
                r = rs[i] + _shift(h, keys[k + 1], low)
                rs[i] = r - low if r >= low else r
                hs[i] = h
        for i in range(count):
            number = hs[i] * low + rs[i]
            if number >= np.uint64(size):
                number = permute_one(number, np.uint64(size), high, low, keys)
            out[first + i] = number


class Permutation:
    """A permutation of the numbers below `size`, decided by `key`. Any part of it can be asked for, in any order."""

    def __init__(self, size: int, key: np.uint64) -> None:
        if not 0 <= size <= MAX_SIZE:
            raise OptionError(f"a permutation of {size:,} numbers was asked for; expected 0 to 2**62.", parameter="size")
        self.size = size
        self.keys = np.empty(NUM_ROUNDS, dtype=np.uint64)
        fill_round_keys(key, self.keys)

    def part(self, start: int, stop: int) -> Array:
        """The places `start` to `stop` (exclusive), int64."""
        out = np.empty(max(0, min(stop, self.size) - start), dtype=np.int64)
        permute_range(start, self.size, self.keys, out)
        return out

    def inverse(self, number: int) -> int:
        """The place where a number stands."""
        return int(_invert(number, self.size, self.keys))
