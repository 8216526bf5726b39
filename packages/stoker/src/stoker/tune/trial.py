"""What a search keeps with a trial of Optuna, and what it reads from trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

RECORD, ERROR = "stoker", "error"
"""User attributes: who runs a trial with which seed and what it repeats; and why it failed."""


def record_of(trial: optuna.Trial | FrozenTrial) -> dict[str, Any]:
    """Return the seed, the process, the number of attempts and the repeated trial, as far as they are known."""
    record: dict[str, Any] = trial.user_attrs.get(RECORD, {})
    return record


def seed_of(trial: optuna.Trial | FrozenTrial) -> int:
    """Return the seed that the objective got."""
    return int(record_of(trial).get("seed", 0))


def repeat_of(trial: optuna.Trial | FrozenTrial) -> int | None:
    """Return the number of the trial that this one repeats with another seed."""
    number: int | None = record_of(trial).get("repeat_of")
    return number


def ended(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return trials with a result. A trial that was given back or lost its process is not one: its repetition is."""
    return [
        trial
        for trial in trials
        if trial.state.is_finished()
        and (trial.state != TrialState.FAIL or RECORD not in trial.user_attrs or ERROR in trial.user_attrs)
    ]


def scored(trials: Iterable[FrozenTrial], *, repeats: bool = False) -> list[FrozenTrial]:
    """Return complete and pruned trials with a finite score: the last one that was reported, if pruned."""
    return [
        trial
        for trial in trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        and (repeats or repeat_of(trial) is None)
        and trial.value is not None
        and math.isfinite(trial.value)
    ]


def ranked(trials: Iterable[FrozenTrial], *, sign: float) -> list[FrozenTrial]:
    """Return trials with a score, the best first: complete ones, then those that were pruned late, then those pruned early."""

    def key(trial: FrozenTrial) -> tuple[bool, int, float, int]:
        is_pruned = trial.state == TrialState.PRUNED
        return is_pruned, -(trial.last_step or 0) if is_pruned else 0, sign * (trial.value or 0.0), trial.number

    return sorted(scored(trials), key=key)


def busy_seconds(trials: Sequence[FrozenTrial]) -> float:
    """Return the time in which at least one of these trials was running."""
    spans = [(trial.datetime_start, trial.datetime_complete) for trial in ended(trials)]
    total, until = 0.0, -math.inf
    for start, end in sorted((a.timestamp(), b.timestamp()) for a, b in spans if a is not None and b is not None):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
