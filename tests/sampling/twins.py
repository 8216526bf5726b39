"""Slow, obvious twins: permutations one number at a time in plain integers, samples found by walking over the series, and mixtures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stoker.sampling.orders import Plan
from stoker.sampling.permutation import NUM_ROUNDS
from stoker.sampling.views import Lengths, Segments, Windows

WORD = 2**64


def mix(word: int) -> int:
    """The finalizer of splitmix64."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


def derive(key: int, word: int) -> int:
    return mix((key + 0x9E3779B97F4A7C15 * (word + 1)) % WORD)


def epoch_key(seed: int, epoch: int, purpose: int = 0) -> int:
    return derive(derive(derive(0, seed), epoch), purpose)


def shift(digit: int, key: int, base: int) -> int:
    word = (digit ^ key) * 0xD6E8FEB86659FD93 % WORD
    word = (word ^ (word >> 32)) * 0xD6E8FEB86659FD93 % WORD
    return (word >> 32) * base >> 32


def bases(size: int) -> tuple[int, int]:
    """Two digits, the first of an even base of at least the root."""
    high = next(high for high in range(max(0, int(size**0.5) - 2), size + 3) if high % 2 == 0 and high * high >= size)
    return high, -(-size // high)


def permute(number: int, size: int, key: int) -> int:
    """Where the permutation of numbers below `size` sends a number."""
    high, low = bases(size)
    keys = [derive(key, i) for i in range(NUM_ROUNDS)]
    while True:
        h, r = divmod(number, low)
        for i in range(0, NUM_ROUNDS, 2):
            h = (h + shift(r, keys[i], high)) % high
            r = (r + shift(h, keys[i + 1], low)) % low
        number = h * low + r
        if number < size:
            return number


Sample = tuple[int, int, int]
"""Series, first step in the flat column, number of steps."""


def ragged(lengths: Sequence[int]) -> Lengths:
    """Series of these lengths, with offsets."""
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)
    return Lengths(num_series=len(lengths), num_steps=int(offsets[-1]), offsets=offsets, name="prices")


def uniform(length: int, num_series: int) -> Lengths:
    """Equally long series, without offsets."""
    return Lengths(num_series=num_series, num_steps=length * num_series, length=length, name="prices")


def window_starts(view: Windows, num_steps: int) -> Iterator[int]:
    """Where the windows of one series begin, by walking along it."""
    seen = start = 0
    while start + view.span <= num_steps:
        yield start
        seen, start = start + view.span, start + view.stride
    first_target = view.length if view.horizon else view.shift
    if view.tail == "keep" and seen < num_steps and start + first_target < num_steps:
        yield start


def list_windows(view: Windows | Segments, lengths: Sequence[int]) -> list[Sample]:
    """Every window of every series."""
    view = view.windows if isinstance(view, Segments) else view
    samples, first = [], 0
    for series, num_steps in enumerate(lengths):
        for start in window_starts(view, num_steps):
            samples.append((series, first + start, min(view.span, num_steps - start)))
        first += num_steps
    return samples


def count_left_over(view: Windows | Segments, lengths: Sequence[int]) -> int:
    """Steps that are in no window."""
    seen = {step for _, start, count in list_windows(view, lengths) for step in range(start, start + count)}
    return sum(lengths) - len(seen)


def list_due(plans: Sequence[Plan], sizes: Sequence[int], weights: Sequence[float] | None, *, epochs: int) -> list[list[int]]:
    """All samples of a mixture with the time at which they are due, sorted; epochs cut from one store's samples after the other."""
    total = sum(sizes)
    shares = np.asarray(weights, dtype=np.float64) / np.sum(weights) if weights else np.asarray(sizes, dtype=np.float64)
    due = sorted(((k + 0.5) * (1.0 / share), s) for s, share in enumerate(shares) for k in range(total + 1))[:total]
    read, bases, result = [0] * len(sizes), np.cumsum([0, *sizes]), []
    for _ in range(epochs):
        numbers = []
        for _, s in due:
            epoch, place = divmod(read[s], sizes[s])
            numbers.append(int(bases[s] + plans[s].numbers(epoch, place, place + 1)[0]))
            read[s] += 1
        result.append(numbers)
    return result
