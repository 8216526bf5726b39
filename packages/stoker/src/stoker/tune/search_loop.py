"""Search: trials come from Optuna, are evaluated and kept, until the budget is used up.

1. Optuna's TPE proposes configurations; its median pruner ends bad ones early. Of a group the best quarter continues at each rung.
2. The best one and some others are repeated with other seeds, so that the noise of the objective is known.
3. An objective that cannot separate configurations is an error or a warning.

Several processes may share a storage, and a search that was stopped at any moment continues with the same call.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import optuna
from msgspec import Meta
from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.trial import FrozenTrial, TrialState

from stoker._clock import now_ns
from stoker._text import readable_seconds, without_credentials
from stoker._types import Count, converted
from stoker.errors import OptionError, SearchError
from stoker.tune.budget import SearchBudget, parse_budget
from stoker.tune.interrupts import Interrupts
from stoker.tune.objective import GroupObjective, Stopping, check_objective, evaluate, run_group, takes_trial_alone, wanted_by
from stoker.tune.proposals import SeededTpe
from stoker.tune.separation import constant_score, measure_noise, repeats_of
from stoker.tune.space import as_space
from stoker.tune.storage import Claims, Ending, StudyJournal, open_storage, open_study
from stoker.tune.study import Stopped, Study, summary
from stoker.tune.trial import ERROR, RECORD, busy_seconds, ended, ranked, repeat_of

GROUP_SIZE = 32
REDUCTION = 4
"""Of this many configurations of a group one continues at each rung."""
REPEATS = 4
LINE_SECONDS = 10.0
SHORTEST, LONGEST = 10.0, 3600.0
"""Limits of the budget that is chosen where none is given, in seconds."""


def search(
    objective: Callable[..., Any] | GroupObjective,
    space: Mapping[str, Any] | None = None,
    *,
    budget: str | int | float | None = None,
    direction: Literal["minimize", "maximize"] | None = None,
    metric: str | None = None,
    seed: int = 0,
    storage: str | Path | None = None,
    name: str = "search",
    repeats: int | None = None,
    group_size: int = GROUP_SIZE,
    sampler: optuna.samplers.BaseSampler | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
    on_constant: Literal["error", "warn"] = "error",
    progress: bool = True,
    report: Callable[[str], None] | None = None,
) -> Study:
    """Search for the configuration with the best score.

    Ctrl-C ends the search and returns what was found. With a `storage` the same call continues it, in this or in several processes.

    Args:
        objective: A function of a dict of parameters that returns a score. It may take `trial`, the trial of Optuna, to report scores
            on the way (`trial.report(score, step)`, `trial.should_prune()`), and `seed`. Or an objective of Optuna, whose only
            parameter is `trial`. Or an object that trains many configurations at once (`rungs`, `start(configs, seeds)`).
        space: Names, each with a distribution of Optuna or a short form such as `("log", 1e-5, 1e-1)`, `("int", 1, 8)` or a list
            of values. None for an objective of Optuna, which asks for its parameters itself.
        budget: Seconds ("60s", "10min", "2h", or a float) or a number of trials (an int). Both are of the whole study: a search
            that is continued uses what is left. Seconds may be exceeded until one trial is complete, at most twofold where the
            objective reports or has rungs. By default so long that (20 + 10 per parameter) full trials would fit, from 10 s
            to 1 h; the time of the first trial decides, and the result is printed.
        direction: `"minimize"` (default) or `"maximize"`.
        metric: What the score is. It is kept with the study, which cannot be continued with another one.
        seed: Seed of the proposals, and of the objective where it takes one. Repeats get the seeds after it.
        storage: A file, which becomes a journal of Optuna, or a URL that Optuna knows; None keeps the study in memory.
        name: The name of the study in its storage.
        repeats: Trials that repeat configurations with other seeds to measure the noise: half of them the best one, the others
            one each of the better half. By default 4 where the objective takes a seed, else 0.
        group_size: Configurations that train at once, for an objective that can.
        sampler: A sampler of Optuna; by default TPE with `seed`.
        pruner: A pruner of Optuna for scores that are reported, by default `MedianPruner()`. `NopPruner()` ends no trial early.
        on_constant: What follows when all configurations have the same score: a `SearchError`, or a warning.
        progress: Print the best score so far on stderr.
        report: Gets lines instead of stderr.

    Returns:
        The study: `best`, `trials`, `noise`, and `optuna_study` for the rest of Optuna.

    Raises:
        OptionError: The space is empty, an option is invalid, or the storage holds a study with another metric, direction or space.
        SearchError: The objective gives all configurations the same score.

    Example:
        >>> study = search(lambda params: (params["x"] - 0.3) ** 2, {"x": ("uniform", 0, 1)}, budget=40, progress=False)
        >>> len(study.trials), round(study.best.params["x"], 1)
        (40, 0.3)
    """
    limits = SearchBudget(*parse_budget(budget))
    check_objective(objective)
    is_group = isinstance(objective, GroupObjective)
    if space is None and (is_group or not takes_trial_alone(objective)):  # type: ignore[arg-type]
        raise OptionError(
            "space is missing. Give a dict of names, or an objective of Optuna, whose only parameter is `trial`.", parameter="space"
        )
    direction = converted("direction", direction, Literal["minimize", "maximize"] | None)
    group_size, repeats = (
        converted("group_size", group_size, Count),
        converted("repeats", repeats, Annotated[int, Meta(ge=0)] | None),
    )
    takes_seed = is_group or "seed" in wanted_by(objective)  # type: ignore[arg-type]
    distributions = None if space is None else as_space(space)
    rule = pruner or optuna.pruners.MedianPruner()
    stopping = Stopping(lambda study, trial: limits.has_to_end(study) or rule.prune(study, trial))
    stopped: Stopped = "finished"
    place = open_storage(storage)
    with Interrupts() as interrupts:
        study = open_study(
            place, name=name, direction=direction, metric=metric, sampler=sampler or SeededTpe(seed), pruner=stopping
        )
        running = _Search(
            study=study,
            claims=Claims(study, seed=seed),
            objective=objective,
            space=distributions,
            seed=seed,
            budget=limits,
            repeats=(REPEATS if takes_seed else 0) if repeats is None else repeats,
            group_size=group_size if is_group else 1,
            stopping=stopping,
            keeps_all=isinstance(rule, optuna.pruners.NopPruner),
            on_constant=on_constant,
            say=report or (partial(print, file=sys.stderr, flush=True) if progress else lambda line: None),
            interrupts=interrupts,
        )
        try:
            running.run()
        except KeyboardInterrupt:
            stopped = "interrupted"
            if isinstance(place, StudyJournal):  # the study in memory may have stopped between two records
                study = open_study(place, name=name)
        finally:
            with interrupts.held():
                running.claims.give_back(study)
    return Study(
        optuna_study=study,
        storage=None if storage is None else without_credentials(str(storage)),
        stopped="interrupted" if interrupts.asked else stopped,
        notes=tuple(running.notes),
        objective=objective,
    )


def best_of_group(scores: Sequence[float], *, sign: float, count: int | None = None) -> list[int]:
    """Return the positions of the members of a group that continue.

    Args:
        scores: Of all members at a rung.
        sign: 1 where low scores are good, -1 where high ones are.
        count: How many continue; by default one of `REDUCTION`, at least one.
    """
    count = math.ceil(len(scores) / REDUCTION) if count is None else count
    return sorted(sorted(range(len(scores)), key=lambda position: sign * scores[position])[:count])


@dataclass
class _Search:
    """One process of a search."""

    study: optuna.Study
    claims: Claims
    objective: Any
    space: Mapping[str, BaseDistribution] | None
    seed: int
    budget: SearchBudget
    repeats: int
    group_size: int
    stopping: Stopping
    keeps_all: bool
    on_constant: str
    say: Callable[[str], None]
    interrupts: Interrupts
    notes: list[str] = field(default_factory=list)
    _said_ns: int | None = None
    _has_judged: bool = False

    def __post_init__(self) -> None:
        self.sign = 1.0 if self.study.direction == optuna.study.StudyDirection.MINIMIZE else -1.0

    def run(self) -> None:
        """Evaluate trials until the budget is used up."""
        trials = self.study.get_trials(deepcopy=False)
        self.budget.used = busy_seconds(trials)
        self._check_space(trials)
        while claimed := self._claim():
            if isinstance(self.objective, GroupObjective):
                run_group(self.objective, claimed, keep=self._keep, finish=self._finish, is_over=self._has_to_end)
            else:
                [trial] = claimed
                self._finish(trial, evaluate(self.objective, trial, stopping=self.stopping))
            self._learn(ended(self.study.get_trials(deepcopy=False)))

    def _check_space(self, trials: Sequence[FrozenTrial]) -> None:
        space = self.space or {}
        for trial in trials:
            for name in trial.distributions.keys() & space.keys():
                try:
                    check_distribution_compatibility(trial.distributions[name], space[name])
                except ValueError:
                    raise OptionError(
                        f"space[{name!r}] is {space[name]}, but the study {self.study.study_name!r} has {trial.distributions[name]}. "
                        f"Choose another name or storage for a new study.",
                        parameter="space",
                    ) from None

    def _claim(self) -> list[optuna.Trial]:
        """Return the next trials; none where the budget is used up."""
        self.interrupts.check()
        if self._has_to_end():
            return []
        self.claims.retry_lost()
        trials = self.study.get_trials(deepcopy=False)
        self._enqueue_repeats(trials)
        count = self.group_size
        if self.budget.most is not None:
            running = sum(trial.state == TrialState.RUNNING and RECORD in trial.user_attrs for trial in trials)
            count = min(count, self.budget.most - len(ended(trials)) - running)
        with self.interrupts.held():
            claimed = [self.claims.take(self.space) for _ in range(count)]
        self.interrupts.check()
        return claimed

    def _has_to_end(self) -> bool:
        return self.budget.has_to_end(self.study)

    def _keep(self, scores: Sequence[float]) -> list[int]:
        # When the time is over, there is no complete trial yet: the best one becomes the first.
        count = 1 if self.budget.is_over() else len(scores) if self.keeps_all else None
        return best_of_group(scores, sign=self.sign, count=count)

    def _finish(self, trial: optuna.Trial, ending: Ending) -> None:
        with self.interrupts.held():
            self.claims.finish(trial, ending)
        self.interrupts.check()

    def _enqueue_repeats(self, trials: Sequence[FrozenTrial]) -> None:
        """Let some trials be repeated with other seeds, once enough are complete."""
        if not self.repeats or any(repeat_of(trial) is not None for trial in trials):
            return
        known = ended(trials)
        enough = max(10, 4 * max((len(trial.params) for trial in known), default=0))
        if self.budget.most is not None:
            enough = max(1, min(enough, self.budget.most // 2))
            if self.budget.most < enough + 2 * self.repeats:
                return
        if len(known) < enough or not any(trial.state == TrialState.COMPLETE for trial in known):
            return
        for trial, seed in repeats_of(known, sign=self.sign, count=self.repeats, seed=self.seed):
            self.study.enqueue_trial(dict(trial.params), user_attrs={RECORD: {"seed": seed, "repeat_of": trial.number}})

    def _learn(self, trials: list[FrozenTrial]) -> None:
        """Judge what is known, after each trial or group."""
        failed = [trial for trial in trials if trial.state == TrialState.FAIL]
        if len(failed) >= 10 and len(failed) == len(trials):
            raise SearchError(f"all of the first {len(failed)} trials failed. The last error: {failed[-1].user_attrs.get(ERROR)}")
        if self.budget.seconds is None and self.budget.most is None:
            self._choose_budget(trials)
        if not self._has_judged:
            self._judge(trials)
        self._show(trials)

    def _choose_budget(self, trials: Sequence[FrozenTrial]) -> None:
        """Choose the default budget, once the first trial is complete."""
        full = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.duration is not None]
        if not full:
            return
        num_dims = len(full[0].params)
        # A group trains together, so a trial has its share of the time.
        each = max(trial.duration.total_seconds() for trial in full if trial.duration is not None) / self.group_size
        count = 20 + 10 * num_dims
        self.budget.seconds = min(max(count * each, SHORTEST), LONGEST)
        limit = f", limited to {readable_seconds(self.budget.seconds)}" if self.budget.seconds != count * each else ""
        why = f"{count} full trials for {num_dims} parameters, {readable_seconds(each)} each as measured{limit}"
        self.say(f"budget: {readable_seconds(self.budget.seconds)} ({why}); budget= sets another")

    def _judge(self, trials: Sequence[FrozenTrial]) -> None:
        """Refuse an objective that is constant, and warn of one that is noise."""
        if (constant := constant_score(trials)) is not None:
            score, count = constant
            line = (
                f"the objective is {score:.6g} in each of the first {count} trials: it cannot separate configurations. "
                f"Use a score that varies, such as the loss on more validation samples"
            )
            if self.on_constant == "error":
                raise SearchError(f"{line}, or pass on_constant='warn'.")
            self._note(f"warning: {line}.")
        num_repeats = sum(repeat_of(trial) is not None for trial in trials)
        if num_repeats >= self.repeats > 0 and (noise := measure_noise(trials)) is not None:
            self._has_judged = True
            if constant is None and not noise.separates:
                self._note(
                    f"warning: {noise}. The search cannot separate configurations from luck: use more validation samples, "
                    f"longer trials or the mean of several seeds."
                )
        self._has_judged |= constant is not None

    def _note(self, line: str) -> None:
        self.notes.append(line)
        self.say(line)

    def _show(self, trials: Sequence[FrozenTrial]) -> None:
        """Print the best so far."""
        if self._said_ns is not None and now_ns() - self._said_ns < LINE_SECONDS * 1e9:
            return
        best = next((trial for trial in ranked(trials, sign=self.sign) if trial.state == TrialState.COMPLETE), None)
        if best is None:
            return
        self._said_ns = now_ns()
        if self.budget.most is not None:
            part = f"{len(trials):,} of {self.budget.most:,} trials"
        else:
            part = (
                f"{readable_seconds(self.budget.spent())} of {readable_seconds(self.budget.seconds or 0.0)}, {len(trials):,} trials"
            )
        self.say(f"search: {part} · best {best.value:.6g} (trial {best.number}: {summary(best.params)})")
