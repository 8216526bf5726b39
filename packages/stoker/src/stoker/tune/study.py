"""The result of a search: its study in Optuna, the best trial, and what can be learned from all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from stoker._text import readable_seconds, without_credentials
from stoker.errors import OptionError
from stoker.tune.objective import repeat
from stoker.tune.separation import Noise, measure_noise
from stoker.tune.storage import read_study
from stoker.tune.trial import ERROR, busy_seconds, ended, repeat_of

Stopped = Literal["finished", "interrupted", "opened"]


@dataclass(frozen=True, kw_only=True)
class Study:
    """All trials of a search.

    Args:
        optuna_study: The study of Optuna, for its plots and importances.
        storage: Where it is kept, without a password; None for memory.
        stopped: `"finished"` when the budget was used, `"interrupted"` after Ctrl-C, `"opened"` for a study that was read.
        notes: What the search has to say about its result.

    Example:
        >>> made = optuna.create_study()
        >>> made.optimize(lambda trial: trial.suggest_int("x", 2, 2), n_trials=1)
        >>> Study(optuna_study=made).best.params
        {'x': 2}
    """

    optuna_study: optuna.Study
    storage: str | None = None
    stopped: Stopped = "finished"
    notes: Sequence[str] = ()
    objective: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, storage: str | Path, *, name: str | None = None) -> Study:
        """Read a study that a search or Optuna wrote.

        Args:
            storage: A journal file, or a URL that Optuna knows.
            name: The name of the study; not needed where the storage has only one.

        Returns:
            The study.

        Raises:
            OptionError: There is no such file or study.
        """
        study = read_study(storage, name=name)
        return cls(optuna_study=study, storage=without_credentials(str(storage)), stopped="opened")

    @property
    def name(self) -> str:
        """The name of the study in its storage."""
        return self.optuna_study.study_name

    @property
    def trials(self) -> list[FrozenTrial]:
        """The trials that are complete, pruned or failed, by number. One that lost its process is there as its repetition."""
        return ended(self.optuna_study.get_trials(deepcopy=False))

    @property
    def has_result(self) -> bool:
        """Whether a trial is complete."""
        return bool(self._complete())

    def _complete(self) -> list[FrozenTrial]:
        return [trial for trial in self.trials if trial.state == TrialState.COMPLETE and repeat_of(trial) is None]

    @property
    def best(self) -> FrozenTrial:
        """The complete trial with the best value. Repeats with other seeds are not candidates.

        Raises:
            OptionError: No trial is complete.
        """
        sign = -1.0 if self.optuna_study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0
        done = self._complete()
        if not done:
            why = f" The first error: {self.first_error}" if self.first_error else ""
            raise OptionError(f"none of the {len(self.trials)} trials of the study {self.name!r} is complete.{why}")
        return min(done, key=lambda trial: (sign * (trial.value or 0.0), trial.number))

    @property
    def first_error(self) -> str | None:
        """Why the first failed trial failed; None where none did."""
        return next((str(trial.user_attrs[ERROR]) for trial in self.trials if ERROR in trial.user_attrs), None)

    @property
    def noise(self) -> Noise | None:
        """The noise of the objective over seeds against the spread over configurations; None where nothing was repeated."""
        return measure_noise(self.trials)

    def counts(self) -> dict[str, int]:
        """Return the numbers of complete, pruned and failed trials."""
        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        return {name: sum(trial.state == state for trial in self.trials) for name, state in states.items()}

    def rerun(self, number: int, objective: Any = None) -> FrozenTrial:
        """Repeat one trial alone, from its record: the same parameters, seed and number of updates.

        Args:
            number: The number of the trial.
            objective: What to evaluate; by default the objective of the search that made this study.

        Returns:
            The trial with its new score; nothing is written.

        Raises:
            OptionError: There is no such trial, or this study was opened and `objective` is not given.
        """
        trial = next((trial for trial in self.trials if trial.number == number), None)
        if trial is None:
            raise OptionError(f"number is {number}, but the study {self.name!r} has no such trial.", parameter="number")
        objective = objective if objective is not None else self.objective
        if objective is None:
            raise OptionError("this study was opened, so its objective is not known. Pass objective=.", parameter="objective")
        return repeat(trial, objective)

    def __str__(self) -> str:
        trials = self.trials
        words = ", ".join(f"{count:,} {state}" for state, count in self.counts().items() if count)
        lines = [f"{len(trials):,} trials ({words or 'none ended'}) in {readable_seconds(busy_seconds(trials))}"]
        if self.has_result:
            best, noise = self.best, self.noise
            within = f" (noise over seeds {noise.noise:.2g})" if noise is not None and noise.step is None else ""
            lines.append(f"best: trial {best.number}, {best.value:.6g}{within}")
            lines += [f"  {name:<24}{_shown(value)}" for name, value in best.params.items()]
        return "\n".join([*lines, *self.notes])


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def summary(params: Mapping[str, Any]) -> str:
    """Return parameters in one line."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in params.items())
