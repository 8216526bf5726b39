"""Rare steps: a few that take far longer than the others (a checkpoint, a validation, an upload), and their share of all time.

A median does not see them, but the wall clock does. So a measurement window of T in which one is seen goes on until several were,
and what a step takes by the wall clock is the mean over whole periods, from one rare step to the next: a window that ends where a
rare step has ended would have one too many of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stoker.clock import now_ns

SLOW = 1.5
"""Times the median: steps that take longer may be rare ones. Steps of the suite of verdicts reach 2.7 on a quiet machine, but then
they hold little of the time."""
OFTEN = 1 / 3
"""Of all steps: slow ones that are more than these are not rare."""
WORTH_SEEING = 0.05
"""Of all time: windows go on for rare steps that hold more."""
HOLDS = 0.15
"""Of all time: rare steps that hold more are the verdict."""
LEAST_OF_A_LEVEL = 8
"""Steps of a window whose median says how fast the machine was."""
SPANNED = 0.3
"""Of a window, from the first of its slow steps to the last: at least a third where they come at equal distances."""
PERIODS = 3
"""From one rare step to the next, that are waited for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """The slow steps of a window."""

    at: list[int]
    """Which steps they are."""
    share: float
    """Of all time: what they take longer than the others."""
    seconds: float
    """Of one of them."""
    others: float
    """Of one of the others."""
    every: float | None
    """Steps from one to the next; None where there is only one."""
    mean: float
    """Seconds of a step: over whole periods where there is one, else over all steps."""


def slow_of(seconds: Sequence[float]) -> Slow | None:
    """The slow ones among steps in a row; None where there are none, or so many that they are not rare."""
    limit = _limit(seconds)
    at = [number for number, one in enumerate(seconds) if one > limit]
    if not at or len(at) > OFTEN * len(seconds):
        return None
    others = statistics.fmean(one for one in seconds if one <= limit)
    # Whole periods: behind the first slow step, up to the last one; but slow steps in a row are a burst, and have no period.
    span = at[-1] - at[0]
    periodic = span >= SPANNED * len(seconds) and OFTEN * span >= len(at) - 1
    whole = seconds[at[0] + 1 : at[-1] + 1] if periodic else seconds
    mean = statistics.fmean(whole)
    longer = sum(one - others for one in whole if one > limit)
    return Slow(
        at=at,
        share=longer / sum(whole),
        seconds=statistics.fmean(seconds[number] for number in at),
        others=others,
        every=span / (len(at) - 1) if periodic else len(seconds) / len(at) if len(at) > 1 else None,
        mean=mean,
    )


def slow_of_windows(windows: Sequence[Sequence[float]]) -> Slow | None:
    """The slow steps of several windows: those of the one in which they took most time, but with no more of it than in all windows.

    A neighbour that came and went makes slow steps in one window, and a machine that changes its speed makes a slow window.
    """
    best = max((slow for window in windows if (slow := slow_of(window))), key=_longer, default=None)
    if best is None:
        return None
    usual = statistics.median(one for window in windows for one in window)
    levels = [statistics.median(window) if len(window) >= LEAST_OF_A_LEVEL else usual for window in windows]
    scaled = [one * usual / level for window, level in zip(windows, levels, strict=True) for one in window if level > 0]
    longer = [one - best.others for one in scaled if one > max(SLOW * usual, (best.others + best.seconds) / 2)]
    share = sum(longer) / sum(scaled)
    if share >= best.share:
        return best
    return replace(best, share=share, mean=statistics.fmean(one for window in windows for one in window))


def _longer(slow: Slow) -> float:
    """Seconds that slow steps of a window took longer than others."""
    return len(slow.at) * (slow.seconds - slow.others)


def _limit(seconds: Sequence[float]) -> float:
    """Seconds from which on a step is slow: a third of what those take that hold the time, because steps of a busy machine vary."""
    usual = statistics.median(seconds) if seconds else 0.0
    longer = [one - usual for one in seconds if one > SLOW * usual]
    holding = sum(one * one for one in longer) / sum(longer) if longer else 0.0
    return max(SLOW * usual, usual + holding / 3)


class Periods:
    """Whether a window goes on, because rare steps were seen in it and not often enough."""

    def __init__(self, *, until_ns: int, expected: bool = False) -> None:
        self._until_ns = until_ns
        self._expected = expected
        """Whether some were seen elsewhere, so that the first one is waited for."""
        self._middle: float | None = None
        self._number = 0

    def go_on(self, last: float, steps: Callable[[], list[float]]) -> bool:
        """Asked behind each step, with its seconds, once the window has lasted its time."""
        if now_ns() >= self._until_ns:
            return False
        if self._middle is None or last > SLOW * self._middle:
            seconds = steps()
            self._middle = statistics.median(seconds)
            slow = slow_of(seconds)
            self._number = len(slow.at) if slow is not None and slow.share >= WORTH_SEEING else 0
        return self._number <= PERIODS and (self._number > 0 or self._expected)
