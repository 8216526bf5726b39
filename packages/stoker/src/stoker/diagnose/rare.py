"""Rare steps: a few that take far longer than the others (a checkpoint, a validation, a shard of data). Pure functions.

A median does not see them, the wall clock does. `slow_of` finds them in one window, `slow_of_windows` in several, and `Periods` keeps a
window open until several were seen. `verdict_of` says whether they wait for data or are code of the loop.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stoker._clock import now_ns
from stoker.diagnose.measurements import Loader, RareSteps, Verdict
from stoker.diagnose.thresholds import RULE


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """The slow steps of a window."""

    at: list[int]  # which steps they are
    share: float  # share of all time: what they take longer than the others
    seconds: float  # seconds of one of them
    others: float  # seconds of one of the others
    every: float | None  # steps from one to the next; None where there is only one
    mean: float  # seconds of a step: over whole periods where there is one, else over all steps


def slow_of(seconds: Sequence[float]) -> Slow | None:
    """Return the slow steps of one window; None where there are none, or too many to be rare."""
    limit = _limit(seconds)
    at = [number for number, spent in enumerate(seconds) if spent > limit]
    if not at or len(at) > RULE.max_slow_fraction * len(seconds):
        return None
    others = statistics.fmean(spent for spent in seconds if spent <= limit)
    # Whole periods: after the first slow step, up to the last one. Slow steps in a row are a burst, without a period.
    span = at[-1] - at[0]
    periodic = span >= RULE.rare_min_span * len(seconds) and RULE.max_slow_fraction * span >= len(at) - 1
    whole = seconds[at[0] + 1 : at[-1] + 1] if periodic else seconds
    longer = sum(spent - others for spent in whole if spent > limit)
    return Slow(
        at=at,
        share=longer / sum(whole),
        seconds=statistics.fmean(seconds[number] for number in at),
        others=others,
        every=span / (len(at) - 1) if periodic else len(seconds) / len(at) if len(at) > 1 else None,
        mean=statistics.fmean(whole),
    )


def slow_of_windows(windows: Sequence[Sequence[float]]) -> Slow | None:
    """Return the slow steps of the window in which they took most time, with at most their share over all windows."""
    # Another program that came and went makes slow steps in one window. A machine that changes its speed makes a slow window.
    slow_windows = [slow for window in windows if (slow := slow_of(window))]
    best = max(slow_windows, key=lambda slow: len(slow.at) * (slow.seconds - slow.others), default=None)
    if best is None:
        return None
    usual = statistics.median(spent for window in windows for spent in window)
    levels = [statistics.median(window) if len(window) >= RULE.level_min_steps else usual for window in windows]
    scaled = [spent * usual / level for window, level in zip(windows, levels, strict=True) for spent in window if level > 0]
    longer = [spent - best.others for spent in scaled if spent > max(RULE.slow_step * usual, (best.others + best.seconds) / 2)]
    share = sum(longer) / sum(scaled)
    if share >= best.share:
        return best
    return replace(best, share=share, mean=statistics.fmean(spent for window in windows for spent in window))


def _limit(seconds: Sequence[float]) -> float:
    """Return the seconds above which a step is slow: a third of the excess of those that hold the time."""
    # A third, because steps of a busy machine vary.
    usual = statistics.median(seconds) if seconds else 0.0
    longer = [spent - usual for spent in seconds if spent > RULE.slow_step * usual]
    holding = sum(spent * spent for spent in longer) / sum(longer) if longer else 0.0
    return max(RULE.slow_step * usual, usual + holding / 3)


class Periods:
    """Keeps a window open while rare steps were seen in it, but not often enough."""

    def __init__(self, *, until_ns: int, expected: bool = False) -> None:
        self._until_ns = until_ns
        self._expected = expected  # whether some were seen elsewhere, so that the window waits for the first one
        self._middle: float | None = None
        self._number = 0

    def go_on(self, last: float, steps: Callable[[], list[float]]) -> bool:
        """Say whether to continue. Called after each step with its seconds, once the window has lasted its time."""
        if now_ns() >= self._until_ns:
            return False
        if self._middle is None or last > RULE.slow_step * self._middle:
            seconds = steps()
            self._middle = statistics.median(seconds)
            slow = slow_of(seconds)
            self._number = len(slow.at) if slow is not None and slow.share >= RULE.rare_min_share else 0
        return self._number <= RULE.rare_periods and (self._number > 0 or self._expected)


def verdict_of(rare: RareSteps, loader: Loader) -> Verdict | None:
    """Return the cause of rare steps; None where it is not known."""
    if rare.between_epochs:  # at the line of the loop itself, a loader ends its workers and starts others
        return "data" if rare.in_outer_loop or (loader.place is not None and rare.place == loader.place) else "host"
    if rare.every is None:
        return None
    if rare.recompiles:
        return "host"
    if not (rare.alone or rare.seconds >= RULE.rare_clear_ratio * rare.others):
        return None  # steps of a busy machine vary as much
    # Between batch and model, a loop makes its batches if no iterable does; else a line that only rare steps run is its own.
    if rare.phase == "next" or (rare.phase == "prepare" and (loader.kind == "loop" or not rare.alone)):
        return "data"
    return "host" if rare.alone or rare.phase == "rest" else None
