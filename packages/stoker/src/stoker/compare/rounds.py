"""Whole runs of two versions in alternation, and their speed: A B B A A B ..., each in a fresh process.

Each pair of runs that are next to each other in time gives one ratio, so a machine that becomes slower meets both sides alike, and
which side runs first changes from pair to pair. Rounds end when the interval of the speed-up is narrow enough, never because it excludes
1: stopping there would find speed-ups in equal programs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from stoker._clock import now_ns
from stoker.compare.intervals import effect_of

T = TypeVar("T")
LEAST_PAIRS, USUAL_PAIRS, MOST_PAIRS = 7, 14, 64
"""Pairs before rounds end: 7 differences of one sign have p = 0.016; fewer cannot show a speed-up at `DECISIVE_P`. Runs are so short that
14 have room in the budget: with as many, a few pairs that other programs have disturbed do not hide a difference."""
DECISIVE_P = 0.02
"""p of a speed-up, of both signs: with `MIN_GAIN`, less than 1 % of comparisons of equal programs are called faster."""
MIN_GAIN = 0.01
"""A smaller speed-up is not called one: two processes of the same program differ by as much."""
SAME, MOST_OF_SAME = 0.02, 0.05
"""Differences that "no difference above x %" may leave open: the larger one if the interval includes 1."""
FAR = 0.25
"""Of the distance of a speed-up from 1: an interval of this width leaves no doubt about a large one."""

SCREENED_PAIRS = 3
"""Pairs after which a version that is not faster on average is given up, where only gains are searched."""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of two versions; a speed-up above 1 means that AFTER is faster."""

    unit: str
    """`steps`, or `samples` where the versions have batches of different sizes."""
    before: float
    """Units per second."""
    after: float
    speedup: float
    low: float
    """The interval of 95 %: from 0 to infinity with fewer than 6 pairs."""
    high: float
    p: float
    pairs: int

    @property
    def known(self) -> bool:
        """Whether there are enough pairs for an interval."""
        return math.isfinite(self.high)

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, `same` (no difference above `excluded`) or `unknown`."""
        if self.p <= DECISIVE_P and self.low > 1 + MIN_GAIN:
            return "faster"
        if self.p <= DECISIVE_P and self.high < 1 / (1 + MIN_GAIN):
            return "slower"
        return "same" if self.excluded <= (MOST_OF_SAME if self.low <= 1 <= self.high else SAME) else "unknown"

    @property
    def excluded(self) -> float:
        """The difference that the interval excludes, relative to the slower version: infinite without an interval."""
        return max(self.high, 1 / self.low) - 1 if self.known else math.inf


@dataclass
class Pairs(Generic[T]):
    """Runs of both sides; those with the same number were next to each other in time."""

    before: list[T] = field(default_factory=list)
    after: list[T] = field(default_factory=list)


def alternate(
    before: Callable[[], T],
    after: Callable[[], T],
    *,
    enough: Callable[[Pairs[T]], bool],
    most: int = MOST_PAIRS,
    seconds: float = math.inf,
    clock: Callable[[], int] = now_ns,
) -> Pairs[T]:
    """Run both sides in turn until `enough` says so, for at most `most` pairs, and starting none that would end after `seconds`."""
    pairs: Pairs[T] = Pairs()
    begin = clock()
    while len(pairs.before) < most:
        spent = (clock() - begin) / 1e9
        number = len(pairs.before)
        if number and spent + spent / number > seconds:
            break
        sides = [(before, pairs.before), (after, pairs.after)]
        for run, runs in sides if number % 2 == 0 else sides[::-1]:
            runs.append(run())
        if enough(pairs):
            break
    return pairs


def speed_of(before: Sequence[float], after: Sequence[float], *, samples: tuple[float, float] | None = None) -> Speed:
    """Return the speed from the seconds per step of paired runs. `samples` are samples per step, where they differ."""
    per_step = samples or (1.0, 1.0)
    factor = math.log(per_step[1] / per_step[0])
    effect = effect_of([math.log(a / b) + factor for a, b in zip(before, after, strict=True)])
    return Speed(
        unit="steps" if samples is None else "samples",
        before=per_step[0] / statistics.median(before),
        after=per_step[1] / statistics.median(after),
        speedup=math.exp(effect.center),
        low=math.exp(effect.low),
        high=math.exp(effect.high),
        p=effect.p,
        pairs=effect.pairs,
    )


def is_narrow(speed: Speed, width: float) -> bool:
    """Return whether the interval is known and at most so wide, relative to the speed-up, or narrow beside the distance from 1."""
    if speed.pairs < LEAST_PAIRS or not speed.known:
        return False
    distance = max(speed.speedup, 1 / speed.speedup) - 1
    return speed.high / speed.low <= 1 + max(width, FAR * distance)


def shows_no_gain(speed: Speed) -> bool:
    """Return whether the first rounds show that further ones will not find a gain."""
    return speed.pairs >= SCREENED_PAIRS and speed.speedup < 1 + MIN_GAIN
