"""A trial: one configuration that was tried, with everything that is needed to repeat it alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

State = Literal["complete", "pruned", "failed", "running", "waiting"]
FINISHED = ("complete", "pruned", "failed")
RECORD = "stoker"
"""The user attribute of an Optuna trial that holds what Optuna has no field for."""


@dataclass(frozen=True, kw_only=True)
class StudyTrial:
    """One configuration that was tried.

    Args:
        number: Its number in the study, from 0.
        params: The configuration.
        state: `"complete"`, `"pruned"`, `"failed"`, `"running"`, or `"waiting"` to be run again after its process ended.
        value: The score; None unless it is complete.
        seed: The seed that the objective got.
        steps: Scores that were reported on the way, by step or number of updates.
        seconds: How long it took.
        repeat_of: The number of the trial that it repeats with another seed.
        error: Why it failed.

    Example:
        >>> trial = StudyTrial(number=3, params={"lr": 0.1}, state="complete", value=0.5)
        >>> trial.score
        0.5
    """

    number: int
    params: Mapping[str, Any]
    state: State
    value: float | None = None
    seed: int = 0
    steps: Mapping[int, float] = field(default_factory=dict)
    seconds: float | None = None
    repeat_of: int | None = None
    error: str | None = None
    distributions: Mapping[str, BaseDistribution] = field(default_factory=dict, repr=False, compare=False)

    @property
    def score(self) -> float | None:
        """The value, or the last score that was reported."""
        return self.value if self.value is not None else self.steps[max(self.steps)] if self.steps else None


def ranked(trials: Iterable[StudyTrial], *, sign: float) -> list[StudyTrial]:
    """Trials that have a score, the best first: complete ones, then those that were pruned late, then those pruned early."""
    found = [one for one in trials if one.state in ("complete", "pruned") and one.score is not None and math.isfinite(one.score)]

    def key(one: StudyTrial) -> tuple[bool, int, float]:
        score = one.score if one.score is not None else math.inf
        return one.state != "complete", -max(one.steps, default=0) if one.state == "pruned" else 0, sign * score

    return sorted(found, key=key)


def as_direction(direction: str | None) -> Literal["minimize", "maximize"]:
    """The direction of a study, by default to minimize."""
    return "maximize" if direction == "maximize" else "minimize"


def record_of(trial: StudyTrial) -> dict[str, Any]:
    """What the user attribute holds."""
    kept = {"seed": trial.seed, "seconds": trial.seconds, "repeat_of": trial.repeat_of, "error": trial.error}
    return {name: value for name, value in kept.items() if value is not None}


def from_optuna(frozen: FrozenTrial) -> StudyTrial:
    """A trial of an Optuna study, made by Stoker or not."""
    record = frozen.user_attrs.get(RECORD)
    kept = {name: record.get(name) for name in ("seconds", "repeat_of", "error")} if isinstance(record, dict) else {}
    began, ended = frozen.datetime_start, frozen.datetime_complete
    if kept.get("seconds") is None and began is not None and ended is not None:
        kept["seconds"] = (ended - began).total_seconds()
    states: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "WAITING": "waiting"}
    value = frozen.values[0] if frozen.values else None
    return StudyTrial(
        number=frozen.number,
        params=dict(frozen.params),
        state=states.get(frozen.state.name, "running"),
        value=value if frozen.state.name == "COMPLETE" else None,
        seed=record.get("seed", 0) if isinstance(record, dict) else 0,
        steps=dict(frozen.intermediate_values),
        distributions=dict(frozen.distributions),
        **kept,
    )


def to_optuna(trial: StudyTrial) -> FrozenTrial | None:
    """The finished trial for an Optuna study; None for one that Optuna could not hold."""
    import optuna

    states = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
    if trial.state not in states:
        return None
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState[states[trial.state]],
        value=trial.value,
        params=dict(trial.params),
        distributions=dict(trial.distributions),
        intermediate_values=dict(trial.steps),
        user_attrs={RECORD: record_of(trial)},
    )
