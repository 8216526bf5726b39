"""Compare: two versions of a training program -> a receipt of speed, results and quality. `stoker.compare` is a function of this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.compare.evaluation import Evaluation
    from stoker.compare.receipt import Receipt
    from stoker.compare.sides import Version

BUDGET_SECONDS = 120.0
WIDTH = 0.02


def compare(
    before: str | Path | Version,
    after: str | Path | Version,
    arguments: Sequence[str] = (),
    *,
    steps: int | None = None,
    until: float | None = None,
    budget: float = BUDGET_SECONDS,
    width: float = WIDTH,
    seeds: int = 0,
    metric: str | None = None,
    higher: bool = False,
    tolerance: float | None = None,
    require: str = "",
    evaluation: Evaluation | None = None,
    quiet: bool = True,
    progress: Callable[[str], object] = lambda line: None,
) -> Receipt:
    """Compare two versions of a training program by running both in fresh processes, in turn.

    No file changes: both versions run in the sandbox. The programs stay as they are.

    Args:
        before: A script, or a `stoker.compare.sides.Version`: with a patch, of a commit, in another environment.
        after: The other version.
        arguments: The arguments of both.
        steps: Optimizer steps that are compared. By default, those of the first epoch and a third of the next, from 200 to 2,000, or
            fewer where they take longer than a tenth of the budget.
        until: Compare the steps that BEFORE makes in this many seconds instead, for differences that come late.
        budget: Seconds after which no further round starts; 0 compares results only, in two or three runs. Runs with other seeds are
            not limited.
        width: The width of the interval of the speed-up, relative to it, at which rounds end; that of a large speed-up may be wider.
        seeds: Repeats with other seeds that are compared by their metric; 0 for none.
        metric: A regular expression with one group for what the programs print. By default, the mean loss of the last tenth of the steps.
        higher: Whether a higher metric is better.
        tolerance: The relative difference of averaged losses, and of the metric, that does not count as a change.
        evaluation: Has an evaluator of yours judge the checkpoints of both, as `stoker.compare.evaluation.Evaluation` says. `metric` is
            then for what it prints, and `seeds` is 6 by default.
        require: Clauses like "speed>=1.2,loss=equal" which decide the status instead.
        quiet: Whether to discard what the programs print.
        progress: Called with a line before each run.

    Returns:
        The receipt: `print` it, or test `receipt.status`.

    Raises:
        OptionError: An argument is invalid.
        TrainError: A version failed, or made no optimizer step.

    Example:
        >>> receipt = stoker.compare("old.py", "new.py", ["--epochs", "3"])  # doctest: +SKIP
        >>> receipt.status  # doctest: +SKIP
        0
    """
    from stoker.compare.api import compare_versions

    return compare_versions(
        before, after, arguments, steps=steps, until=until, budget=budget, width=width, seeds=seeds, metric=metric, higher=higher,
        tolerance=tolerance, require=require, evaluation=evaluation, quiet=quiet, progress=progress,
    )  # fmt: skip
