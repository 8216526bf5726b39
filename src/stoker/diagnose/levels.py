"""Levels: times of stretches that a machine ran at different speeds, brought to one speed.

Processors change their speed for seconds at a time: clocks rise and fall, and who has the other half of a core takes a third of it.
A stretch that lies between two of the loop as it is was run at their speed, so it is told at the speed that the loop mostly had.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")
CHANGED = 0.15
"""Speeds before and after a stretch that differ by more say little of the speed within it."""
LEAST_ROUNDS = 2


def split(values: Sequence[T], starts: Sequence[int]) -> list[list[T]]:
    """Values in the pieces that begin at `starts`; one piece where nothing is known of them."""
    edges = [*(starts or [0]), len(values)]
    return [list(values[begin:end]) for begin, end in pairwise(edges)]


def at_one_level(rounds: Sequence[Sequence[float]], loop: Sequence[Sequence[float]]) -> list[list[float]]:
    """The values of rounds at one speed; round i lies between the pieces i and i + 1 of the loop."""
    medians = [statistics.median(piece) for piece in loop if piece]
    common = statistics.median([seconds for piece in loop for seconds in piece]) if medians else 0.0
    if not common or min(medians) <= 0:
        return [list(values) for values in rounds]
    factors, steady = [], []
    for number in range(len(rounds)):
        before, after = medians[min(number, len(medians) - 1)], medians[min(number + 1, len(medians) - 1)]
        factors.append(2 * common / (before + after))
        steady.append(abs(before - after) <= CHANGED * (before + after) / 2 and bool(rounds[number]))
    kept = range(len(rounds)) if sum(steady) < LEAST_ROUNDS else [number for number, is_steady in enumerate(steady) if is_steady]
    return [[value * factors[number] for value in rounds[number]] for number in kept]
