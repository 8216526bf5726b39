"""Epochs: what passes between one and the next, and whose it is. Between the raw times of the ledger and what is measured.

A step at whose begin an epoch ended is another kind of step. What it waits longer for its batch than others (workers that start,
the first batch) is the loader's, and each step has its part of it. What else passes there (a validation, a checkpoint) is in none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from stoker.diagnose.boundaries import NEXT, REST, Times
from stoker.diagnose.rare import SLOW

LEAST_EPOCHS = 12
"""So many, and one can be looked at as if it were a step."""


class End(NamedTuple):
    """A step at whose begin an epoch ended."""

    at: int
    """How many steps of its list lie before it."""
    stretch: int
    times: Times
    ours: bool = False
    """Whether the next epoch was begun by the diagnosis, so that nothing of the program lies between."""
    on_device: float | None = None
    """Seconds of it on a GPU's timeline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """Steps that were counted in stretches, and those at which epochs ended."""

    steps: list[Times]
    ends: list[End]
    on_device: list[float] | None
    """Seconds of the steps on a GPU's timeline, as far as there are marks on it; None without a GPU."""

    def extra_waits(self) -> list[float]:
        """Seconds that each end waited longer for its batch than other steps."""
        if not self.steps or self.on_device == []:
            return []
        if self.on_device is not None:  # its host runs ahead of it, and waits while the GPU still works
            usual = statistics.median(self.on_device)
            return [max(0.0, end.on_device - usual) for end in self.ends if end.on_device is not None and end.ours]
        usual = statistics.median(_waited(one) for one in self.steps)
        return [max(0.0, _waited(end.times) - usual) for end in self.ends]

    def extra_rests(self) -> list[float]:
        """Seconds of what else passed there, also within the step itself where it took far longer than others."""
        usual = statistics.median(one.without_data for one in self.steps) if self.steps and self.on_device is None else math.inf
        return [end.times.between_ns / 1e9 + _longer(end.times, usual) for end in self.ends if not end.ours]

    def lengths(self) -> list[int]:
        """Steps of each epoch that was seen from its begin to its end."""
        return [after.at - before.at + 1 for before, after in pairwise(self.ends) if before.stretch == after.stretch]

    def epochs(self, stretches: int) -> list[list[Times]]:
        """The mean step of each such epoch, by stretch, without what else passed at its begin."""
        found = [list[Times]() for _ in range(stretches)]
        for before, after in pairwise(self.ends):
            others = self.steps[before.at : after.at]
            if before.stretch == after.stretch < stretches and others:
                first = list(before.times.phases_ns)
                first[REST] -= before.times.between_ns
                if first[REST] < 0:  # a validation with gradients looks like a step
                    first = [first[NEXT], *mean(others).phases_ns[1:]]
                found[before.stretch].append(mean([Times(tuple(first), False), *others]))
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Between:
    """What passes between two epochs, as seconds of each step."""

    loader: float
    other: float
    steps: float
    """Of an epoch."""


def between(courses: Sequence[Course], length: float | None) -> Between | None:
    """What is known of it; None where no epoch was seen to end, or not how long one is, as `length` may tell in steps."""
    lengths = [one for course in courses for one in course.lengths()]
    waits = [one for course in courses for one in course.extra_waits()]
    rests = [one for course in courses for one in course.extra_rests()]
    steps = statistics.median(lengths) if lengths else length
    if not steps or not (waits or rests):
        return None
    # A validation may come every few epochs only; what a loader takes to begin is the same each time.
    return Between(loader=statistics.median(waits or [0.0]) / steps, other=statistics.fmean(rests or [0.0]) / steps, steps=steps)


def mean(steps: list[Times]) -> Times:
    """Of steps in a row."""
    return Times(tuple(round(statistics.fmean(spent)) for spent in zip(*(one.phases_ns for one in steps), strict=True)), False)


def _longer(times: Times, usual: float) -> float:
    own = times.without_data - times.between_ns / 1e9
    return own - usual if own > SLOW * usual else 0.0


def _waited(times: Times) -> float:
    return times.phases_ns[NEXT] / 1e9
