"""Search: many configurations for a short time, the best of them for longer, then new ones near the best.

1. The first configurations cover the space evenly (Sobol). Each is trained to its first report or rung.
2. The better half continues to the next rung, and so on (of a group the best quarter): most of the time goes to good configurations.
3. Later configurations come from TPE, a model of where good ones are; some still cover the space.
4. The best one and some others are repeated with other seeds, so that the noise of the objective is known.

Trials are claimed and saved through `storage`, which several processes may share. A search that was stopped at any moment continues
with the same call.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stoker._clock import now_ns
from stoker._text import readable_seconds, without_credentials
from stoker.errors import OptionError, SearchError
from stoker.tune.interrupts import Interrupts
from stoker.tune.objective import (
    GroupObjective,
    Objective,
    check_function,
    forget,
    run_group,
    takes_trial_alone,
    tell,
    wanted_by,
)
from stoker.tune.proposals import near_the_best, spread_points
from stoker.tune.pruning import Rungs, best_of_group
from stoker.tune.separation import constant_score, measure_noise, repeats_of
from stoker.tune.space import Space, as_space
from stoker.tune.storage import Storage, open_storage
from stoker.tune.study import Stopped, Study, summary
from stoker.tune.trial import StudyTrial, as_direction, ranked

if TYPE_CHECKING:
    import optuna

BATCH_SECONDS, LARGEST_BATCH = 0.1, 64
"""Trials that are shorter than this are claimed and saved together, for about this time, and at most that many."""
SPREAD_SHARE = 0.2
"""Of the configurations after the first ones, that still cover the space."""
GROUP_SIZE = 32
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
    seed: int = 0,
    storage: str | Path | None = None,
    name: str = "search",
    repeats: int | None = None,
    group_size: int = GROUP_SIZE,
    sampler: optuna.samplers.BaseSampler | None = None,
    prune: bool = True,
    timeout: float | None = None,
    on_constant: Literal["error", "warn"] = "error",
    progress: bool = True,
    report: Callable[[str], None] | None = None,
    size: str = "",
) -> Study:
    """Search for the configuration with the best score.

    Ctrl-C ends the search and returns what was found. With a `storage` the same call continues it, in this or in several processes.

    Args:
        objective: A function of a dict of parameters that returns a score. It may take `trial`, to report scores on the way
            (`trial.report(score, step)`, `trial.should_prune()`), and `seed`. Or an objective of Optuna, whose only parameter is
            `trial`. Or an object that trains many configurations at once (`rungs`, `start(configs, seeds)`).
        space: Names, each with a distribution of Optuna or a short form such as `("log", 1e-5, 1e-1)`, `("int", 1, 8)` or a list
            of values. None for an objective of Optuna, which asks for its parameters itself.
        budget: Seconds ("60s", "10min", "2h", or a float) or a number of trials (an int). Both are of the whole study: a search
            that is continued uses what is left. Seconds may be exceeded until one trial is complete, at most twofold where the
            objective reports or has rungs. By default so long that (20 + 10 per parameter) full trials would fit, from 10 s
            to 1 h; the time of the first trial decides, and the result is printed.
        direction: `"minimize"` (default) or `"maximize"`.
        seed: Seed of the proposals, and of the objective where it takes one. Repeats get the seeds after it.
        storage: A sqlite file or a URL such as `postgresql://host/database`; None keeps the study in memory.
        name: The name of the study in its storage.
        repeats: Trials that repeat configurations with other seeds to measure the noise: half of them the best one, the others
            one each of the better half. By default 4 where the objective takes a seed, else 0.
        group_size: Configurations that train at once, for an objective that can.
        sampler: A sampler of Optuna, instead of the one described above.
        prune: Whether reported scores may end a trial early.
        timeout: Seconds after which a trial counts as failed. Each then runs in a child process.
        on_constant: What follows when all configurations have the same score: a `SearchError`, or a warning.
        progress: Print the best score so far on stderr.
        report: Gets lines instead of stderr.
        size: The size of the data, in words, for the line about the budget.

    Returns:
        The study: `best`, `trials`, `importances()`, `noise`, `plot(path)`.

    Raises:
        OptionError: The space is empty, or an option is invalid.
        SearchError: The objective gives all configurations the same score.

    Example:
        >>> study = search(lambda params: (params["x"] - 0.3) ** 2, {"x": ("uniform", 0, 1)}, budget=40, progress=False)
        >>> len(study.trials), round(study.best.params["x"], 1)
        (40, 0.3)
    """
    seconds, most = parse_budget(budget)
    is_group = isinstance(objective, GroupObjective)
    if not is_group:
        check_function(objective, timeout=timeout)
    elif timeout is not None:
        raise OptionError("timeout= is for functions; an objective with rungs is stopped between them.")
    asks = not is_group and space is None
    if asks and not takes_trial_alone(objective):  # type: ignore[arg-type]
        raise OptionError("space is missing. Give a dict of names, or an objective of Optuna, whose only parameter is `trial`.")
    if is_group and space is None:
        raise OptionError("space is missing. Give a dict of names, each with a distribution.")
    if direction not in (None, "minimize", "maximize"):
        raise OptionError(f"direction is {direction!r}; expected 'minimize' or 'maximize'.")
    if group_size < 1 or (repeats is not None and repeats < 0):
        raise OptionError(f"group_size is {group_size} and repeats is {repeats}; expected at least 1 and 0.")
    wants = frozenset() if is_group or asks else wanted_by(objective)  # type: ignore[arg-type]
    checked = as_space(space) if space is not None else None
    stopped: Stopped = "finished"
    with Interrupts() as interrupts:
        with interrupts.held():
            opened = open_storage(storage, name=name, direction=direction)
        running = _Search(
            storage=opened,
            space=checked,
            seed=seed,
            sign=1.0 if opened.direction == "minimize" else -1.0,
            seconds=seconds,
            most=most,
            repeats=(REPEATS if is_group or "seed" in wants else 0) if repeats is None else repeats,
            group_size=group_size,
            prune=prune,
            on_constant=on_constant,
            say=report if report is not None else _print_line if progress else lambda line: None,
            size=size,
            sampler=sampler,
            interrupts=interrupts,
        )
        try:
            if is_group:
                running.search_groups(objective)  # type: ignore[arg-type]
            else:
                running.search_function(objective, timeout=timeout, wants=wants)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            stopped = "interrupted"
        finally:
            with interrupts.held():
                running.close()
            stopped = "interrupted" if interrupts.asked else stopped
    return Study(
        name=name,
        direction=opened.direction,
        trials=sorted(running.trials.values(), key=lambda one: one.number),
        storage=None if storage is None else without_credentials(str(storage)),
        stopped=stopped,
        notes=tuple(running.notes),
        objective=objective,
    )


def parse_budget(budget: str | int | float | None) -> tuple[float | None, int | None]:
    """Seconds or a number of trials, of what a user writes.

    Raises:
        OptionError: It is neither, or not above 0.
    """
    forms = "expected seconds such as '60s', '10min', '2h' or 60.0, or a number of trials such as 200"
    if budget is None:
        return None, None
    if isinstance(budget, bool) or not isinstance(budget, str | int | float):
        raise OptionError(f"budget is {budget!r}; {forms}.")
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(s|sec|m|min|h|d|trials)?\s*", budget)
        if found is None:
            raise OptionError(f"budget is {budget!r}; {forms}.")
        unit = found[2]
        if unit in (None, "trials") and "." not in found[1]:
            budget = int(found[1])
        elif unit in (None, "trials"):
            raise OptionError(f"budget is {budget!r}; {forms}.")
        else:
            budget = float(found[1]) * {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[unit]
    if not math.isfinite(budget) or budget <= 0:
        raise OptionError(f"budget is {budget!r}, which leaves no time for a trial; {forms}.")
    return (None, budget) if isinstance(budget, int) else (float(budget), None)


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class _Search:
    """One process of a search."""

    storage: Storage
    space: Space | None
    seed: int
    sign: float
    seconds: float | None
    most: int | None
    repeats: int
    group_size: int
    prune: bool
    on_constant: str
    say: Callable[[str], None]
    size: str
    sampler: optuna.samplers.BaseSampler | None
    interrupts: Interrupts
    trials: dict[int, StudyTrial] = field(default_factory=dict)
    """Finished trials of all processes, as far as this one has seen them."""
    notes: list[str] = field(default_factory=list)
    began_ns: int = field(default_factory=now_ns)
    _pending: list[StudyTrial] = field(default_factory=list)
    _points: dict[int, list[float]] = field(default_factory=dict)
    _asked: optuna.Study | None = None
    _said_ns: int = 0
    _repeated: bool = False
    _warned: bool = False
    _block_start: int = -1
    _block: list[tuple[list[float], bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rungs = Rungs(sign=self.sign, enabled=self.prune)
        num_dims = len(self.space.distributions) if self.space is not None else 4
        self._num_first = max(10, 4 * num_dims)
        if self.most is not None:
            self._num_first = max(1, min(self._num_first, self.most // 2))

    # ---- the two kinds of objectives ----

    def search_function(self, function: Callable[..., Any], *, timeout: float | None, wants: frozenset[str]) -> None:
        """Evaluate one configuration after the other."""
        if self.space is None or self.sampler is not None:
            self._asked = _study_in_memory(self.storage.direction, self.sampler)
        make = None
        if self.space is None and self.sampler is None:
            make = self._make_sampler
        objective = Objective(
            function, timeout, self._stops, study=self._asked if self.space is None else None, make_sampler=make, wants=wants
        )
        self._exchange([], 0)
        while claimed := self._next(self._batch_size()):
            for place, trial in enumerate(claimed):
                try:
                    ended = objective.run(trial)
                except BaseException:
                    self._give_back(claimed[place:])
                    raise
                self._pending.append(ended)
                self.rungs.add(ended)
                self._leave_if_asked(claimed[place + 1 :])
                if self._is_over() and place + 1 < len(claimed):
                    self._give_back(claimed[place + 1 :])
                    break
            self._after_trials()
        self._exchange([], 0)

    def search_groups(self, objective: GroupObjective) -> None:
        """Evaluate groups of configurations, which train at once."""
        rungs = list(objective.rungs)
        if not rungs or sorted(set(rungs)) != rungs or rungs[0] < 1:
            raise OptionError(
                f"the rungs of the objective are {rungs}; expected increasing numbers of updates, such as [10, 40, 160]."
            )
        self._exchange([], 0)
        while claimed := self._next(self.group_size):
            is_repeat = any(one.repeat_of is not None for one in claimed)

            def keep(scores: Sequence[float], is_repeat: bool = is_repeat) -> list[int]:
                count = len(scores) if is_repeat or not self.prune else None
                # When the time is over, there is no complete trial yet: the best one becomes the first.
                return best_of_group(scores, sign=self.sign, count=1 if self._is_over() else count)

            try:
                run_group(
                    objective,
                    claimed,
                    keep=keep,
                    on_pruned=self._save_group,
                    is_over=self._has_to_end,
                )
            except BaseException:
                done = {one.number for one in self._pending} | set(self.trials)
                self._give_back([one for one in claimed if one.number not in done])
                raise
            self._after_trials()
        self._exchange([], 0)

    def _save_group(self, ended: list[StudyTrial]) -> None:
        self._pending += ended
        self._exchange([], 0)
        self._leave_if_asked()

    def close(self) -> None:
        """Save what has ended, and give back what has not."""
        if self._pending:
            self._exchange([], 0)
        self.storage.close()

    # ---- time ----

    def _spent(self) -> float:
        return (now_ns() - self.began_ns) / 1e9

    def _is_over(self) -> bool:
        return self.seconds is not None and self.storage.used_seconds + self._spent() >= self.seconds

    def _has_to_end(self) -> bool:
        """The end of the budget once there is a result; without one, the end of twice the budget."""
        return self._is_over() and (self._has_complete() or self._spent() > 2 * (self.seconds or 0.0))

    def _has_complete(self) -> bool:
        return any(one.state == "complete" for one in [*self.trials.values(), *self._pending])

    def _stops(self, steps: Mapping[int, float]) -> bool:
        """The rule of the rungs, and the end of the time."""
        return self.rungs.stops(steps) or self._has_to_end()

    def _batch_size(self) -> int:
        """Trials that take about `BATCH_SECONDS`: one by one, unless they are short. Proposals of one batch know nothing of each
        other, so a batch adds at most a quarter to what is known."""
        count = len(self.trials) + len(self._pending)
        most = max(1, self._num_first - count, min(LARGEST_BATCH, count // 4))
        taken = [one.seconds for one in list(self.trials.values())[-20:] if one.seconds is not None]
        if not taken or self.space is None or self.sampler is not None:
            return 1
        return max(1, min(most, int(BATCH_SECONDS / max(statistics.median(taken), 1e-9))))

    def _choose_budget(self) -> None:
        """The default budget, once the first trial is complete."""
        full = [one for one in self.trials.values() if one.state == "complete" and one.seconds is not None]
        if not full:
            return
        num_dims = len(full[0].params)
        count, each = 20 + 10 * num_dims, max(one.seconds or 0.0 for one in full)
        self.seconds = min(max(count * each, SHORTEST), LONGEST)
        of = f" of {self.size}" if self.size else ""
        limit = f", limited to {readable_seconds(self.seconds)}" if self.seconds != count * each else ""
        why = f"{count} full trials{of} for {num_dims} parameters, {readable_seconds(each)} each as measured{limit}"
        self.say(f"budget: {readable_seconds(self.seconds)} ({why}); budget= sets another")

    # ---- proposals ----

    def _next(self, count: int) -> list[StudyTrial]:
        """Save what has ended and claim the next trials; none where the budget is used up."""
        if self._has_to_end():
            return []
        self._check_failures()
        claimed = self._exchange(self._due_repeats(), count)
        self._leave_if_asked(claimed)
        return claimed

    def _leave_if_asked(self, unfinished: Sequence[StudyTrial] = ()) -> None:
        """Raise a Ctrl-C that was delayed or lost."""
        if self.interrupts.asked:
            self._give_back(unfinished)
            raise KeyboardInterrupt

    def _exchange(self, repeats: list[StudyTrial], count: int) -> list[StudyTrial]:
        """One transaction with the storage."""
        finished, self._pending = self._pending, []
        count = len(repeats) or count
        points = self._good_points(finished, count) if count and not repeats else None

        def propose(first: int, wanted: int) -> list[StudyTrial]:
            wanted = wanted if self.most is None else max(0, min(wanted, self.most - first))
            if repeats:
                return [replace(one, number=first + i) for i, one in enumerate(repeats[:wanted])]
            return [self._propose(first + i, points[i] if points is not None else None) for i in range(wanted)]

        try:
            with self.interrupts.held():
                claimed, seen = self.storage.exchange(finished, propose, count, seconds=self._spent())
        except BaseException:
            self._pending = finished
            raise
        for one in seen:
            self._learn(one)
        if seen:
            self._show()
        return claimed

    def _learn(self, trial: StudyTrial) -> None:
        """Count a trial that is saved."""
        self.trials[trial.number] = trial
        self.rungs.add(trial)
        if trial.repeat_of is None:
            tell(self._asked, trial)
            if self.space is not None and set(trial.params) == set(self.space.distributions):
                try:
                    self._points[trial.number] = self.space.to_point(trial.params)
                except (ValueError, TypeError, ZeroDivisionError):
                    return  # of an earlier study with other ranges

    def _good_points(self, finished: Sequence[StudyTrial], count: int) -> list[list[float]] | None:
        """Points near the best; None while points cover the space."""
        if self.space is None or self.sampler is not None:
            return None
        for one in finished:
            if one.repeat_of is None and one.state in ("complete", "pruned"):
                self._points.setdefault(one.number, self.space.to_point(one.params))
        known = {**self.trials, **{one.number: one for one in finished}}
        order = [one.number for one in ranked(known.values(), sign=self.sign) if one.number in self._points]
        if len(order) < self._num_first:
            return None
        rng = np.random.default_rng([self.seed, len(known)])
        points = np.array([self._points[number] for number in order])
        found: list[list[float]] = near_the_best(points, self.space.num_choices, count=count, rng=rng).tolist()
        return found

    def _propose(self, number: int, point: list[float] | None) -> StudyTrial:
        params: Mapping[str, Any] = {}
        if self.space is None:
            return StudyTrial(number=number, params=params, state="running", seed=self.seed)
        if self.sampler is not None and self._asked is not None:
            asked = self._asked.ask(dict(self.space.distributions))
            params = dict(asked.params)
            forget(self._asked, asked)
        else:
            spread, covers = self._spread(number)
            params = self.space.to_params(spread if covers or point is None else point)
        return StudyTrial(number=number, params=params, state="running", seed=self.seed, distributions=self.space.distributions)

    def _spread(self, number: int) -> tuple[list[float], bool]:
        """Point `number` of the sequence that covers the space, and whether it is due; a block of them is computed at once."""
        assert self.space is not None
        start = number - number % LARGEST_BATCH
        if self._block_start != start:
            self._block_start = start
            num_dims = len(self.space.distributions)
            points = spread_points(num_dims, seed=self.seed, first=start, count=LARGEST_BATCH).tolist()
            due = np.random.default_rng([self.seed, start, 1]).random(LARGEST_BATCH) < SPREAD_SHARE
            self._block = list(zip(points, due.tolist(), strict=True))
        return self._block[number - start]

    def _make_sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """Optuna's TPE for an objective that asks for its parameters; its random numbers follow from the number of the trial."""
        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # options that Optuna calls experimental
            seed = int(np.random.default_rng([self.seed, number]).integers(2**31))
            return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=self._num_first)

    # ---- what is learned on the way ----

    def _due_repeats(self) -> list[StudyTrial]:
        """Repeats with other seeds, once enough trials are complete."""
        known = [*self.trials.values(), *self._pending]
        if not self.repeats or self._repeated or len(known) < self._num_first or not self._has_complete():
            return []
        if self.most is not None and self.most < self._num_first + 2 * self.repeats:
            return []
        self._repeated = True
        if any(one.repeat_of is not None for one in known):
            return []
        return repeats_of(known, sign=self.sign, count=self.repeats, seed=self.seed)

    def _after_trials(self) -> None:
        if self.seconds is None and self.most is None:
            self._exchange([], 0)
            self._choose_budget()
        known = [*self.trials.values(), *self._pending]
        if (found := constant_score(known)) is not None and not self._warned:
            score, count = found
            line = (
                f"the objective is {score:.6g} in each of the first {count} trials, which differ in "
                f"{self._ranges(known)}: it cannot separate configurations. Use a score that varies, such as the loss on more "
                f"validation samples"
            )
            self._warned = True
            if self.on_constant == "error":
                raise SearchError(f"{line}, or pass on_constant='warn'.")
            self._note(f"warning: {line}.")
        if self._repeated and not self._warned and (noise := measure_noise(known)) is not None:
            self._warned = True
            if not noise.separates:
                self._note(
                    f"warning: {noise}. The search cannot separate configurations from luck: use more validation samples, "
                    f"longer trials or the mean of several seeds."
                )

    def _ranges(self, known: Sequence[StudyTrial]) -> str:
        names = list(dict.fromkeys(name for one in known for name in one.params))[:4]
        values = {name: [one.params[name] for one in known if name in one.params] for name in names}
        parts = []
        for name, found in values.items():
            is_number = all(isinstance(one, int | float) for one in found)
            parts.append(
                f"{name} from {min(found):.3g} to {max(found):.3g}" if is_number else f"{name} over {len(set(found))} values"
            )
        return ", ".join(parts)

    def _check_failures(self) -> None:
        """Refuse to continue where nothing ever works."""
        known = [*self.trials.values(), *self._pending]
        failed = [one for one in known if one.state == "failed"]
        if len(failed) >= 10 and len(failed) == len(known):
            raise SearchError(f"all of the first {len(failed)} trials failed. The last error: {failed[-1].error}")

    def _note(self, line: str) -> None:
        self.notes.append(line)
        self.say(line)

    def _show(self) -> None:
        """The best so far, of trials that are saved."""
        if now_ns() - self._said_ns < LINE_SECONDS * 1e9 and self._said_ns:
            return
        done = ranked([one for one in self.trials.values() if one.state == "complete" and one.repeat_of is None], sign=self.sign)
        if not done:
            return
        self._said_ns = now_ns()
        spent = self.storage.used_seconds + self._spent()
        of = (
            f" of {readable_seconds(self.seconds)}"
            if self.seconds is not None
            else f" of {self.most:,} trials"
            if self.most
            else ""
        )
        left = f"{readable_seconds(max(spent, 1e-3))}{of}" if self.seconds is not None else f"{len(self.trials):,}{of}"
        count = f", {len(self.trials):,} trials" if self.seconds is not None else ""
        self.say(f"search: {left}{count} · best {done[0].value:.6g} (trial {done[0].number}: {summary(done[0].params)})")

    def _give_back(self, trials: Sequence[StudyTrial]) -> None:
        self._pending += [replace(one, state="waiting") for one in trials]


def _study_in_memory(direction: str, sampler: optuna.samplers.BaseSampler | None) -> optuna.Study:
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(direction=as_direction(direction), sampler=sampler)
    finally:
        optuna.logging.set_verbosity(level)
