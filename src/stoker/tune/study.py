"""A study: all trials of a search, the best one, and what can be learned from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stoker._text import readable_seconds, without_credentials
from stoker.errors import OptionError
from stoker.tune.objective import repeat
from stoker.tune.separation import Noise, measure_noise
from stoker.tune.storage import read_study
from stoker.tune.trial import StudyTrial, as_direction, to_optuna

if TYPE_CHECKING:
    import optuna

Stopped = Literal["finished", "interrupted", "opened"]


@dataclass(frozen=True, kw_only=True)
class Study:
    """All trials of a search.

    Args:
        name: The name of the study in its storage.
        direction: `"minimize"` or `"maximize"`.
        trials: All trials, by number.
        storage: Where they are kept, without a password; None for memory.
        stopped: `"finished"` when the budget was used, `"interrupted"` after Ctrl-C, `"opened"` for a study that was read.
        notes: What the search has to say about its result.

    Example:
        >>> trials = [StudyTrial(number=0, params={"x": 1.0}, state="complete", value=3.0)]
        >>> Study(name="demo", direction="minimize", trials=trials).best.params
        {'x': 1.0}
    """

    name: str
    direction: str
    trials: Sequence[StudyTrial]
    storage: str | None = None
    stopped: Stopped = "finished"
    notes: Sequence[str] = ()
    objective: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, storage: str | Path, *, name: str | None = None) -> Study:
        """Read a study that a search or Optuna wrote.

        Args:
            storage: A sqlite file, or a URL of SQLAlchemy.
            name: The name of the study; not needed where the storage has only one.

        Returns:
            The study. Running trials are part of it.

        Raises:
            OptionError: There is no such file or study.
        """
        found, direction, trials = read_study(storage, name=name)
        return cls(name=found, direction=direction, trials=trials, storage=without_credentials(str(storage)), stopped="opened")

    @property
    def has_result(self) -> bool:
        """Whether a trial is complete."""
        return any(one.state == "complete" for one in self.trials)

    @property
    def best(self) -> StudyTrial:
        """The complete trial with the best value. Repeats with other seeds are not candidates.

        Raises:
            OptionError: No trial is complete.
        """
        sign = 1.0 if self.direction == "minimize" else -1.0
        done = [one for one in self.trials if one.state == "complete" and one.repeat_of is None and one.value is not None]
        if not done:
            failed = next((one.error for one in self.trials if one.error), None)
            why = f" The first error: {failed}" if failed else ""
            raise OptionError(f"none of the {len(self.trials)} trials of the study {self.name!r} is complete.{why}")
        return min(done, key=lambda one: (sign * (one.value if one.value is not None else math.inf), one.number))

    @property
    def noise(self) -> Noise | None:
        """The noise of the objective over seeds against the spread over configurations; None where nothing was repeated."""
        return measure_noise(self.trials)

    def importances(self) -> dict[str, float]:
        """How much of the variation of the score each parameter explains, the largest first (PED-ANOVA of Optuna).

        Returns:
            Shares by name, which add up to 1. Empty where too few trials are complete, or all have one value.
        """
        import optuna

        done = [one for one in self.trials if one.state == "complete" and one.repeat_of is None]
        if len(done) < 4 or len({one.value for one in done}) < 2:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return dict(optuna.importance.get_param_importances(self.to_optuna(), evaluator=evaluator))

    def to_optuna(self) -> optuna.Study:
        """A copy in memory as a study of Optuna, for its plots and samplers."""
        import optuna

        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(direction=as_direction(self.direction), study_name=self.name)
        finally:
            optuna.logging.set_verbosity(level)
        study.add_trials([found for one in self.trials if (found := to_optuna(one)) is not None])
        return study

    def rerun(self, number: int, objective: Any = None) -> StudyTrial:
        """Repeat one trial alone, from its record: the same parameters, seed and number of updates.

        Args:
            number: The number of the trial.
            objective: What to evaluate; by default the objective of the search that made this study.

        Returns:
            The trial with its new score; nothing is written.

        Raises:
            OptionError: There is no such trial, or this study was opened and `objective` is not given.
        """
        found = next((one for one in self.trials if one.number == number), None)
        if found is None:
            raise OptionError(f"number is {number}, but the study {self.name!r} has the trials 0 to {len(self.trials) - 1}.")
        objective = objective if objective is not None else self.objective
        if objective is None:
            raise OptionError("this study was opened, so its objective is not known. Pass objective=.")
        return repeat(found, objective)

    def plot(self, path: str | Path) -> Path:
        """Plot history, importances, parallel coordinates and noise into an .svg or .png file; needs matplotlib.

        Args:
            path: The file.

        Returns:
            The path.

        Raises:
            OptionError: The name ends in neither .svg nor .png, or matplotlib is missing.
        """
        from stoker.tune.plots import plot_study

        return plot_study(
            path,
            name=self.name,
            direction=self.direction,
            trials=self.trials,
            importances=self.importances(),
            noise=self.noise,
        )

    def __str__(self) -> str:
        counts = {state: sum(one.state == state for one in self.trials) for state in ("complete", "pruned", "failed")}
        words = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
        seconds = sum(one.seconds or 0.0 for one in self.trials)
        lines = [
            f"{len(self.trials):,} trials ({words or 'none finished'}), {readable_seconds(seconds) if seconds else '0 s'} of trials"
        ]
        if self.has_result:
            best, noise = self.best, self.noise
            within = f" (noise over seeds {noise.noise:.2g})" if noise is not None and noise.step is None else ""
            lines.append(f"best: trial {best.number}, {best.value:.6g}{within}")
            lines += [f"  {name:<24}{_shown(value)}" for name, value in best.params.items()]
        return "\n".join([*lines, *self.notes])


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def summary(params: Mapping[str, Any]) -> str:
    """Parameters in one line."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in params.items())
