"""What a search can evaluate: a function, an objective of Optuna, or something that trains many configurations at once.

evaluate        one trial of a function; errors, NaN and pruning are handled here
run_group       many trials at once, rung by rung
repeat          one trial again, from its record
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import optuna
from optuna.trial import FrozenTrial, TrialState

from stoker.errors import OptionError, shorten
from stoker.tune.storage import Claims, Ending, open_study
from stoker.tune.trial import RECORD, repeat_of, seed_of


@runtime_checkable
class Group(Protocol):
    """Configurations that train together."""

    def advance(self, updates: int) -> Sequence[float]:
        """Train all remaining members up to `updates` updates in total. Returns a score per member; NaN says that it failed."""

    def keep(self, indices: Sequence[int]) -> None:
        """Drop all other members."""


@runtime_checkable
class GroupObjective(Protocol):
    """Trains many configurations at once."""

    @property
    def rungs(self) -> Sequence[int]:
        """Increasing numbers of updates; the last is the full length."""

    def start(self, configs: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> Group:
        """A group of new members."""


class Stopping(optuna.pruners.BasePruner):
    """Ends trials by a rule, and remembers which: a function that has to stop may also return."""

    def __init__(self, rule: Callable[[optuna.Study, FrozenTrial], bool]) -> None:
        self._rule = rule
        self.stopped: set[int] = set()

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether a trial is to stop."""
        if self._rule(study, trial):
            self.stopped.add(trial.number)
        return trial.number in self.stopped


def evaluate(function: Callable[..., Any], trial: optuna.Trial, *, stopping: Stopping) -> Ending:
    """Evaluate one trial. Raises nothing that the function raises, except for Ctrl-C and the end of the process.

    Args:
        function: `f(params)`, with `trial` or `seed` as further parameters if it wants them, or `f(trial)`.
        trial: The trial.
        stopping: The pruner of its study.
    """
    try:
        if takes_trial_alone(function):
            value = function(trial)
        else:
            known = {"trial": trial, "seed": seed_of(trial)}
            value = function(dict(trial.params), **{name: known[name] for name in wanted_by(function)})
        value = None if value is None else float(value)
    except optuna.TrialPruned:
        return Ending(TrialState.PRUNED)
    except Exception as error:  # whatever it is, the search continues
        return Ending(TrialState.FAIL, error=_reason(error))
    if trial.number in stopping.stopped:
        return Ending(TrialState.PRUNED)
    if value is None or math.isnan(value):
        what = "NaN" if value is not None else "None; expected a number"
        return Ending(TrialState.FAIL, error=f"the objective returned {what}")
    return Ending(TrialState.COMPLETE, value)


def _reason(error: BaseException) -> str:
    """Return the error in one line, with the place in the code of the user."""
    text = " ".join(str(error).split()) or "no message"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/stoker/tune/" not in frame.filename]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return shorten(f"{type(error).__name__}: {text}{place}", 500)


def wanted_by(function: Callable[..., Any]) -> frozenset[str]:
    """Return which of `trial` and `seed` a function takes after its parameters."""
    return frozenset(_parameters(function)[1:]) & {"trial", "seed"}


def takes_trial_alone(function: Callable[..., Any]) -> bool:
    """Whether a function is an objective of Optuna: its only parameter is called `trial`."""
    return _parameters(function) == ["trial"]


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        return []


def check_objective(objective: Any) -> None:
    """Refuse what cannot be evaluated."""
    if isinstance(objective, GroupObjective):
        rungs = list(objective.rungs)
        if not rungs or sorted(set(rungs)) != rungs or rungs[0] < 1:
            raise OptionError(
                f"the rungs of the objective are {rungs}; expected increasing numbers of updates, such as [10, 40, 160].",
                parameter="rungs",
            )
    elif not callable(objective):
        raise OptionError(
            f"objective is {objective!r}; expected a function of a dict of parameters, an objective of Optuna, or an object with "
            f"rungs and start(configs, seeds).",
            parameter="objective",
        )


def run_group(
    objective: GroupObjective,
    trials: Sequence[optuna.Trial],
    *,
    keep: Callable[[Sequence[float]], Iterable[int]],
    finish: Callable[[optuna.Trial, Ending], None],
    last: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Train a group rung by rung, and drop what is not worth more updates. Repeats with other seeds are never dropped.

    Args:
        objective: Trains the group.
        trials: Its members.
        keep: Which of the scores of a rung continue.
        finish: Gets members as soon as they are complete, dropped or have failed.
        last: Updates after which to stop, instead of the last rung.
        is_over: Whether the time is over; remaining members are then pruned.

    Raises:
        OptionError: The group does not return one score per member.
    """
    members = list(trials)
    try:
        group = objective.start([dict(trial.params) for trial in members], [seed_of(trial) for trial in members])
        for rung in objective.rungs:
            scores = [float(score) for score in group.advance(rung)]
            if len(scores) != len(members):
                raise OptionError(
                    f"the group has {len(members)} members, but advance({rung}) returned {len(scores)} scores.", parameter="group"
                )
            for trial, score in zip(members, scores, strict=True):
                trial.report(score, rung)
            is_full, is_last = rung == objective.rungs[-1], rung in (objective.rungs[-1], last)
            alive = [i for i, score in enumerate(scores) if not math.isnan(score)]
            firsts = [i for i in alive if repeat_of(members[i]) is None]
            better = [firsts[i] for i in keep([scores[i] for i in firsts])] if firsts else []
            going = [] if is_last or is_over() else sorted({*alive} - {*firsts} | {*better})
            gone = []
            for i in sorted({*range(len(members))} - {*going}):
                if i not in alive:
                    ending = Ending(TrialState.FAIL, error=f"its score after {rung:,} updates is NaN")
                else:
                    ending = Ending(TrialState.COMPLETE, scores[i]) if is_full else Ending(TrialState.PRUNED)
                gone.append((members[i], ending))
            members = [members[i] for i in going]
            for trial, ending in gone:
                finish(trial, ending)
            if not members:
                return
            if gone:
                group.keep(going)
    except OptionError:
        raise
    except Exception as error:  # whatever it is, the search continues with the next group
        for trial in members:
            finish(trial, Ending(TrialState.FAIL, error=_reason(error)))


def repeat(trial: FrozenTrial, objective: Any) -> FrozenTrial:
    """Evaluate one trial alone, as far as it went, and return it with its new score."""
    check_objective(objective)
    num_reports = len(trial.intermediate_values) if trial.state == TrialState.PRUNED else math.inf
    stopping = Stopping(lambda study, running: len(running.intermediate_values) >= num_reports)
    study = open_study(None, name="rerun", pruner=stopping)
    study.enqueue_trial(dict(trial.params), user_attrs={RECORD: {"seed": seed_of(trial)}})
    claims = Claims(study, seed=0)
    running = claims.take(None if takes_trial_alone(objective) else trial.distributions)
    if isinstance(objective, GroupObjective):
        run_group(objective, [running], keep=lambda scores: range(len(scores)), finish=claims.finish, last=trial.last_step)
    else:
        claims.finish(running, evaluate(objective, running, stopping=stopping))
    return study.trials[0]
