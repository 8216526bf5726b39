"""Rounds: a baseline and a changed program in fresh processes, which measure windows in turn until their ratio is sure.

One process of the baseline stays, and waits while the other one has its turn. Where two cannot run at once (each needs more than half
of the memory, or the same port), they run one after the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Protocol

from stoker._clock import now_ns
from stoker.diagnose import wording
from stoker.diagnose.comparison import SURE_ROUNDS, BaselineRuns, Comparison, ratio_of
from stoker.diagnose.measurements import Stretch
from stoker.diagnose.thresholds import RULE

WINDOWS = 4  # of `seconds`: short ones in turn, because processors change their speed
MOST_ROUNDS = 16
LEAST_STEPS = 8  # of a window on a GPU, with those that do not count


class TimedProcess(Protocol):
    """A process that warms up, and then measures a window whenever it is asked for one."""

    losses: list[float]  # so far
    peak_bytes: int | None  # of memory; known at the end
    error: str | None  # why it ended before it was told to, or changed nothing; known at the end

    def is_ready(self) -> bool:
        """Wait until it has warmed up; False if it has ended."""

    def stretch(self, seconds: float) -> Stretch | None:
        """Measure steps for `seconds`; None if it has ended."""

    def end(self) -> None:
        """End it."""


class Rounds:
    """A baseline, and programs that are compared with it one after the other; a context manager.

    `start` starts a process of the baseline. Steps of each comparison are measured for `seconds`; after `at_most` seconds none starts.
    """

    def __init__(self, start: Callable[[], TimedProcess], *, seconds: float, at_most: float | None = None) -> None:
        self.baseline = BaselineRuns()
        self._start, self._seconds = start, seconds
        self._until_ns = None if at_most is None else now_ns() + int(at_most * 1e9)
        self._error: str | None = None  # why the baseline cannot be measured
        self._base: TimedProcess | None = None
        self._windows: list[Stretch] = []  # of the last process of the baseline, if two cannot run at once

    def __enter__(self) -> Rounds:
        base = self._hold()
        if self._base is None:
            base.end()
            self._error = wording.TRIAL["baseline_failed"].format(error=base.error)
            return self
        again = alternate(base, self._start(), self._seconds)
        if again.error is None and again.base and again.tried:
            self.baseline.difference = abs(math.log(ratio_of(again.base, again.tried)[0]))
            self.baseline.losses.append(again.losses)
        else:
            self._end_base()
            self._windows = alone(self._start(), self._seconds).tried
        return self

    def __exit__(self, *_: object) -> None:
        self._end_base()

    def compare(self, start: Callable[[], TimedProcess]) -> Comparison:
        """Compare the program that `start` starts with the baseline."""
        if self._error is not None:
            return Comparison(error=self._error)
        if self._until_ns is not None and now_ns() > self._until_ns:
            return Comparison(error=wording.TRIAL["no_time"])
        if self._base is None:
            compared, after = alone(start(), self._seconds), alone(self._start(), self._seconds)
            compared.base, self._windows = [*self._windows, *after.tried], after.tried
            self.baseline.losses.append(after.losses)
            return compared
        compared = alternate(self._base, start(), self._seconds)
        if len(compared.base) < len(compared.tried):  # the baseline has come to its end
            self._end_base()
            self._hold()
        return compared

    def _hold(self) -> TimedProcess:
        """Start a process of the baseline that stays, if it can be measured."""
        base = self._start()
        if base.is_ready():
            self._base = base
            self.baseline.losses.append(base.losses)
        return base

    def _end_base(self) -> None:
        if self._base is not None:
            self._base.end()
            self._base = None


def alternate(base: TimedProcess, tried: TimedProcess, seconds: float) -> Comparison:
    """Measure windows of both in turn, each as often before the other as after it, until their ratio is sure."""
    before: list[Stretch] = []
    after: list[Stretch] = []
    sides = ((base, before), (tried, after))
    most = MOST_ROUNDS if tried.is_ready() else 0
    for number in itertools.count():
        paired = len(before) == len(after) == number  # else a program has come to its end
        if number >= most or not paired or (number >= SURE_ROUNDS and ratio_of(before, after)[1] <= RULE.trial_sure):
            break
        for side, windows in sides if number % 2 == 0 else sides[::-1]:
            stretch = side.stretch(seconds / WINDOWS)
            if stretch is not None and stretch.seconds:
                windows.append(stretch)
        if before and number == 0:  # fewer rounds where steps are long
            window = max(seconds / WINDOWS, LEAST_STEPS * before[0].median)
            most = max(WINDOWS, int(MOST_ROUNDS * seconds / WINDOWS / window))
    return _ended(tried, Comparison(base=before, tried=after))


def alone(tried: TimedProcess, seconds: float) -> Comparison:
    """Measure windows of one process."""
    stretches = [tried.stretch(seconds / WINDOWS) for _ in range(SURE_ROUNDS)] if tried.is_ready() else []
    return _ended(tried, Comparison(tried=[window for window in stretches if window is not None and window.seconds]))


def _ended(tried: TimedProcess, compared: Comparison) -> Comparison:
    tried.end()
    compared.losses, compared.peak_bytes, compared.error = tried.losses, tried.peak_bytes, tried.error
    return compared
