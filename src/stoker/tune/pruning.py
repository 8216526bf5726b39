"""Pruning: which trials of a search continue, and which are stopped early.

Rungs               of trials that run one by one: after a sixteenth, an eighth, a quarter and half of a trial the better half continues
best_of_group       of a group that trains together: the best quarter continues at each rung of its objective
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stoker.tune.trial import StudyTrial

REDUCTION = 4
"""Of this many configurations of a group one continues at each rung."""
HALVINGS = 4
"""Rungs of trials that run one by one. What is good after a sixteenth of the time need not be good in the end, so only half is decided
there, and the next half after twice the time."""


@dataclass
class Rungs:
    """Scores of all trials by step, and the rule for pruning."""

    sign: float
    enabled: bool = True
    scores: dict[int, list[float]] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)
    full: int = 0
    """Reports of a complete trial; 0 while none is known."""

    def add(self, trial: StudyTrial) -> None:
        """Count the scores of a finished trial, once. Repeats of a good configuration would raise the bar for the others."""
        if trial.number in self.counted or trial.repeat_of is not None:
            return
        self.counted.add(trial.number)
        if trial.state == "complete":
            self.full = max(self.full, len(trial.steps))
        for step, score in trial.steps.items():
            self.scores.setdefault(step, []).append(self.sign * score)

    def stops(self, steps: Mapping[int, float]) -> bool:
        """Whether a trial with these scores is to end: at a rung, unless it is in the better half there."""
        if not self.enabled or not self.is_rung(len(steps)):
            return False
        step = max(steps)
        others = self.scores.get(step, [])
        better = sum(other < self.sign * steps[step] for other in others)
        return bool(others) and better >= math.ceil((len(others) + 1) / 2)

    def is_rung(self, count: int) -> bool:
        """Whether trials are compared after this many reports: 1, 2, 4, …, or shares of a full trial once one is known."""
        if not self.full:
            return count & (count - 1) == 0
        return count in {max(1, self.full >> halving) for halving in range(1, HALVINGS + 1)}


def best_of_group(scores: Sequence[float], *, sign: float, count: int | None = None) -> list[int]:
    """Positions of the members of a group that continue.

    Args:
        scores: Of all members at a rung.
        sign: 1 where low scores are good, -1 where high ones are.
        count: How many continue; by default one of `REDUCTION`, at least one.
    """
    count = max(1, math.ceil(len(scores) / REDUCTION)) if count is None else count
    return sorted(sorted(range(len(scores)), key=lambda position: sign * scores[position])[:count])
