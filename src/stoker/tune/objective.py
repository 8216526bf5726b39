"""What a search can evaluate: a function, an objective of Optuna, or something that trains many configurations at once.

Objective       one trial -> a finished trial; errors, NaN, pruning and a time limit are handled here
Reporter        what a function gets as `trial`: it reports scores on the way and asks whether to stop

The rule by which trials are stopped is in `stoker.tune.pruning`.
"""

from __future__ import annotations

import inspect
import math
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from stoker._clock import now_ns
from stoker.errors import OptionError, shorten
from stoker.tune.trial import StudyTrial, to_optuna

if TYPE_CHECKING:
    import optuna


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


class Reporter:
    """What a function of `(params, trial)` gets: `report` a score on the way, and end when `should_prune` says so.

    Example:
        >>> trial = Reporter(number=0, seed=0, stops=lambda steps: len(steps) > 1)
        >>> trial.report(0.5, step=1)
        >>> trial.should_prune()
        False
    """

    def __init__(self, *, number: int, seed: int, stops: Callable[[Mapping[int, float]], bool]) -> None:
        self.number = number
        self.seed = seed
        self.steps: dict[int, float] = {}
        self._stops = stops

    def report(self, value: float, step: int) -> None:
        """Say how good the configuration is after `step` steps."""
        self.steps[int(step)] = float(value)

    def should_prune(self) -> bool:
        """Whether the configuration is not worth more time. Return then, or raise `optuna.TrialPruned`."""
        return self._stops(self.steps)


class _Pruning:
    """Asks once per report, so that a function that returns after a yes counts as pruned."""

    def __init__(self, rule: Callable[[Mapping[int, float]], bool]) -> None:
        self._rule, self._asked, self.said = rule, -1, False

    def __call__(self, steps: Mapping[int, float]) -> bool:
        if len(steps) != self._asked:
            self._asked, self.said = len(steps), self._rule(steps)
        return self.said


@dataclass
class Objective:
    """A function that a search evaluates, trial by trial.

    Args:
        function: `f(params)`, with `trial` or `seed` as further parameters if it wants them.
        timeout: Seconds after which a trial is ended; it then runs in a child process.
        stops: Whether a trial with these scores ends early.
        study: Of Optuna, in memory, for functions that ask it for their parameters.
        make_sampler: Makes the sampler of that study for the trial of a number, so that proposals follow from the study alone.
        wants: Which of `trial` and `seed` the function takes.
    """

    function: Callable[..., Any]
    timeout: float | None
    stops: Callable[[Mapping[int, float]], bool]
    study: optuna.Study | None = None
    make_sampler: Callable[[int], optuna.samplers.BaseSampler] | None = None
    wants: frozenset[str] = frozenset()

    def run(self, trial: StudyTrial) -> StudyTrial:
        """Evaluate a trial. Never raises for what the function does, except for Ctrl-C and the end of the process."""
        begin = now_ns()
        ended = self._in_child(trial) if self.timeout is not None else self._here(trial, self.stops)
        return replace(ended, seconds=(now_ns() - begin) / 1e9)

    def _here(self, trial: StudyTrial, rule: Callable[[Mapping[int, float]], bool]) -> StudyTrial:
        pruning = _Pruning(rule)
        reporter = Reporter(number=trial.number, seed=trial.seed, stops=pruning)
        asked: optuna.Trial | None = None
        try:
            if self.study is not None and not trial.params:
                if self.make_sampler is not None:
                    self.study.sampler = self.make_sampler(trial.number)
                asked = self.study.ask()
                asked.should_prune = lambda: pruning(reporter.steps)  # type: ignore[method-assign]
                asked.report = reporter.report  # type: ignore[method-assign]
                found = self.function(asked)
            elif self.study is not None:
                import optuna

                found = self.function(_Fixed(optuna.trial.FixedTrial(dict(trial.params), number=trial.number), reporter))
            else:
                given = {"trial": reporter, "seed": trial.seed}
                found = self.function(dict(trial.params), **{name: given[name] for name in self.wants})
            value: float | None = None if found is None else float(found)
        except Exception as error:  # whatever it is, the search continues
            trial = _with_params(trial, asked)
            if type(error).__name__ == "TrialPruned":
                return replace(trial, state="pruned", steps=dict(reporter.steps))
            return replace(trial, state="failed", steps=dict(reporter.steps), error=_reason(error))
        finally:
            if asked is not None and self.study is not None:
                forget(self.study, asked)
        trial = _with_params(trial, asked)
        steps = dict(reporter.steps)
        if pruning.said and steps:
            return replace(trial, state="pruned", steps=steps)
        if value is None or math.isnan(value):
            what = "returned NaN" if value is not None else "returned None; expected a number"
            return replace(trial, state="failed", steps=steps, error=f"the objective {what}")
        return replace(trial, state="complete", value=value, steps=steps)

    def _in_child(self, trial: StudyTrial) -> StudyTrial:
        """Run a trial in a fork of this process, and end it when its time is over."""
        ours, theirs = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: the child runs in a thread of its own
            pid = os.fork()
        if pid == 0:
            _child(theirs, lambda rule: self._here(trial, rule))
        theirs.close()
        steps: dict[int, float] = {}
        deadline = now_ns() + int((self.timeout or 0.0) * 1e9)
        try:
            while ours.poll(max(0.0, (deadline - now_ns()) / 1e9)):
                kind, found = ours.recv()
                if kind == "done":
                    return replace(trial, **found)
                steps = found
                ours.send(self.stops(steps))
            error = f"no result after the {self.timeout:g} s of timeout="
        except (EOFError, ConnectionError):
            error = "its process ended without a result"
        finally:
            ours.close()
            _end_child(pid)
        return replace(trial, state="failed", steps=steps, error=error)


def _child(connection: Connection, run: Callable[[Callable[[Mapping[int, float]], bool]], StudyTrial]) -> None:
    """The life of a child process. In a thread of its own: the pool of OpenMP threads of the first one is that of the parent."""

    def ask(steps: Mapping[int, float]) -> bool:
        connection.send(("steps", dict(steps)))
        return bool(connection.recv())

    def work() -> None:
        found = run(ask)
        names = ("params", "distributions", "state", "value", "steps", "error")
        connection.send(("done", {name: getattr(found, name) for name in names}))

    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        os._exit(0)


def _end_child(pid: int) -> None:
    import signal
    from contextlib import suppress

    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


class _Fixed:
    """A trial of Optuna with parameters that are known, which still reports."""

    def __init__(self, fixed: Any, reporter: Reporter) -> None:
        self._fixed = fixed
        self.report = reporter.report
        self.should_prune = reporter.should_prune

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fixed, name)


def _with_params(trial: StudyTrial, asked: optuna.Trial | None) -> StudyTrial:
    return trial if asked is None else replace(trial, params=dict(asked.params), distributions=dict(asked.distributions))


def forget(study: optuna.Study, asked: optuna.Trial) -> None:
    """End a trial of the study in memory: what became of it is added when it is known to be saved."""
    from optuna.trial import TrialState

    study.tell(asked, state=TrialState.FAIL)


def _reason(error: BaseException) -> str:
    """The error in one line, with the place in the code of the user."""
    text = " ".join(str(error).split()) or "no message"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/stoker/tune/" not in frame.filename]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return shorten(f"{type(error).__name__}: {text}{place}", 500)


def wanted_by(function: Callable[..., Any]) -> frozenset[str]:
    """Which of `trial` and `seed` a function takes, beside its parameters."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return frozenset()
    return frozenset(one.name for one in parameters[1:]) & {"trial", "seed"}


def check_function(objective: Any, *, timeout: float | None) -> None:
    """Refuse what cannot be called, and a child process that could not use the GPU."""
    if not callable(objective):
        raise OptionError(
            f"objective is {objective!r}; expected a function of a dict of parameters, an objective of Optuna, or an object with "
            f"rungs and start(configs, seeds)."
        )
    if timeout is not None:
        if not timeout > 0:
            raise OptionError(f"timeout is {timeout!r}; expected seconds above 0, or None.")
        import sys

        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            raise OptionError(
                "timeout= runs each trial in a child process, which cannot use the GPU because this process has used it. Call "
                "search before the first use of CUDA, or leave timeout= out."
            )


def tell(study: optuna.Study | None, trial: StudyTrial) -> None:
    """Let the sampler of Optuna know a finished trial."""
    if study is not None and (frozen := to_optuna(trial)) is not None:
        study.add_trial(frozen)


def repeat(trial: StudyTrial, objective: Any) -> StudyTrial:
    """Evaluate one trial alone, as far as it went."""
    if isinstance(objective, GroupObjective):
        return run_group(objective, [trial], last=max(trial.steps, default=None), keep=lambda scores: range(len(scores)))[0]
    check_function(objective, timeout=None)
    num_steps = len(trial.steps) if trial.state == "pruned" else math.inf
    study = None
    if takes_trial_alone(objective):
        import optuna

        study = optuna.create_study()
    return Objective(objective, None, lambda steps: len(steps) >= num_steps, study=study, wants=wanted_by(objective)).run(trial)


def takes_trial_alone(function: Callable[..., Any]) -> bool:
    """Whether a function is an objective of Optuna: its only parameter is called `trial`."""
    try:
        return [*inspect.signature(function).parameters] == ["trial"]
    except (TypeError, ValueError):
        return False


def run_group(
    objective: GroupObjective,
    trials: Sequence[StudyTrial],
    *,
    keep: Callable[[Sequence[float]], Iterable[int]],
    last: int | None = None,
    on_pruned: Callable[[list[StudyTrial]], None] = lambda trials: None,
    is_over: Callable[[], bool] = lambda: False,
) -> list[StudyTrial]:
    """Train a group rung by rung, and drop what is not worth more updates.

    Args:
        objective: Trains the group.
        trials: Its members.
        keep: Which of the scores of a rung continue.
        last: Updates after which to stop, instead of the last rung.
        on_pruned: Gets members as soon as they are dropped or have failed.
        is_over: Whether the time is over; remaining members are then pruned.

    Returns:
        All trials, ended, in the order in which they were given.
    """
    begin, done = now_ns(), dict[int, StudyTrial]()
    rungs = [one for one in objective.rungs if last is None or one <= last]
    members = [replace(one, steps={}) for one in trials]

    def end(gone: list[StudyTrial]) -> None:
        # A group trains together, so a trial has its share of the time.
        seconds = (now_ns() - begin) / 1e9 / len(trials)
        ended = [replace(one, seconds=seconds) for one in gone]
        done.update((one.number, one) for one in ended)
        on_pruned(ended)

    try:
        group = objective.start([one.params for one in members], [one.seed for one in members])
        for rung in rungs:
            scores = list(group.advance(rung))
            if len(scores) != len(members):
                raise OptionError(f"the group has {len(members)} members, but advance({rung}) returned {len(scores)} scores.")
            members = [replace(one, steps={**one.steps, rung: float(score)}) for one, score in zip(members, scores, strict=True)]
            failed = {i for i, score in enumerate(scores) if math.isnan(score)}
            alive = [i for i in range(len(members)) if i not in failed]
            is_last = rung == rungs[-1]
            kept = alive if is_last else [] if is_over() else [alive[i] for i in keep([float(scores[i]) for i in alive])]
            gone = [replace(members[i], state="failed", error=f"its score after {rung:,} updates is NaN") for i in failed]
            is_full = is_last and rung == objective.rungs[-1]
            for i in alive:
                if is_full:
                    gone.append(replace(members[i], state="complete", value=float(scores[i])))
                elif is_last or i not in kept:
                    gone.append(replace(members[i], state="pruned"))
            if gone:
                end(gone)
            members = [members[i] for i in kept]
            if is_last or not members:
                break
            if len(kept) < len(scores):
                group.keep(kept)
    except Exception as error:  # whatever it is, the search continues with the next group
        if isinstance(error, OptionError):
            raise
        end([replace(one, state="failed", error=_reason(error)) for one in members if one.number not in done])
    return [done[one.number] for one in trials]
