"""`stoker.compare`: two versions, the options of the user, and the comparison of a receipt made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

import stoker
from stoker.compare.engine import LEAST_STEPS, OBSERVED_SECONDS, Comparisons, Seeds
from stoker.compare.evaluation import USUAL_SEEDS, Evaluation, Judging
from stoker.compare.losses import LossComparison
from stoker.compare.quality import check_pattern
from stoker.compare.receipt import Receipt
from stoker.compare.sides import Version
from stoker.compare.verdict import check_requirements
from stoker.errors import OptionError, TrainError

FAILED = 2  # the status of a judgement in which a version failed: the exit code of the command
OBSERVED_SHARE = 0.1  # of the budget, for the first run


def compare_versions(
    before: str | Path | Version, after: str | Path | Version, arguments: Sequence[str], *, steps: int | None, until: float | None,
    budget: float, width: float, seeds: int, metric: str | None, higher: bool, tolerance: float | None, require: str, quiet: bool,
    progress: Callable[[str], object], evaluation: Evaluation | None = None,
) -> Receipt:  # fmt: skip
    """Compare two versions. The arguments are those of `stoker.compare`."""
    seeds = seeds or (USUAL_SEEDS if evaluation is not None else 0)
    _check(steps=steps, until=until, budget=budget, width=width, seeds=seeds, tolerance=tolerance)
    check_requirements(require, LossComparison(verdict="unknown"), [], None, None, None)
    if metric is not None:
        check_pattern(metric)
        if not seeds:
            raise OptionError(
                "metric was given without seeds; expected both: one run says nothing about a metric.", parameter="metric"
            )
    first, second = (version if isinstance(version, Version) else Version(program=str(version)) for version in (before, after))
    repeats = Seeds(number=seeds, metric=metric, higher=higher) if seeds else None
    seconds = budget * OBSERVED_SHARE or OBSERVED_SECONDS
    with ExitStack() as stack:
        judging = None if evaluation is None else stack.enter_context(Judging(evaluation, metric, Path.cwd()))
        comparisons = stack.enter_context(
            Comparisons(
                first, arguments, steps=steps, until=until, seconds=seconds, quiet=quiet, progress=progress, judging=judging
            )
        )
        try:
            receipt = comparisons.compare(second, budget=budget, width=width, tolerance=tolerance, require=require, seeds=repeats)
        except TrainError as error:
            if judging is not None:
                judging.record({"status": FAILED, "verdict": str(error), "versions": [first.describe(), second.describe()]})
            raise
        if judging is not None:
            judging.record(_ledger_line(receipt))
    options = {
        "steps": steps, "until": until, "budget": budget, "width": width, "seeds": seeds, "metric": metric, "higher": higher,
        "tolerance": tolerance, "require": require, "evaluation": None if evaluation is None else asdict(evaluation),
    }  # fmt: skip
    return msgspec.structs.replace(receipt, call={**receipt.call, **options})


def _ledger_line(receipt: Receipt) -> dict[str, Any]:
    """Return what the ledger keeps of a receipt."""
    brief = receipt.brief()
    versions = {"versions": receipt.names, "code": [receipt.before.code, receipt.after.code], "stoker": stoker.__version__}
    return {**versions, **{name: brief[name] for name in ("status", "verdict", "quality", "speed", "differences", "required")}}


def _check(**values: Any) -> None:
    """Check numbers before anything runs."""
    for name, least in (("steps", LEAST_STEPS), ("seeds", 2)):
        if values[name] and values[name] < least:
            raise OptionError(f"{name} is {values[name]}; expected at least {least}.", parameter=name)
    if values["budget"] < 0:
        raise OptionError(f"budget is {values['budget']}; expected seconds, or 0 to compare results only.", parameter="budget")
    if values["steps"] and values["until"]:
        raise OptionError("steps and until were given; expected one of them.", parameter="until")
    for name in ("until", "width", "tolerance"):
        if values[name] is not None and not values[name] > 0:
            raise OptionError(f"{name} is {values[name]}; expected a number above 0.", parameter=name)


def compare_again(
    receipt: Receipt, *, quiet: bool = True, progress: Callable[[str], object] = lambda line: None
) -> tuple[Receipt, list[str]]:
    """Run the comparison of a receipt again. Returns the new receipt, and what does not hold."""
    call = dict(receipt.call)
    before, after = (msgspec.convert(call.pop(name), Version) for name in ("before", "after"))
    if call.get("evaluation") is not None:
        call["evaluation"] = Evaluation(**call["evaluation"])
    again = compare_versions(before, after, call.pop("arguments"), **call, quiet=quiet, progress=progress)
    sides = (("BEFORE", receipt.before, again.before), ("AFTER", receipt.after, again.after))
    wrong = [f"the code of {name} is another one" for name, old, new in sides if old.code != new.code]
    if again.verdict.status != receipt.verdict.status:
        wrong.append(f"the status is {again.verdict.status}, not {receipt.verdict.status}")
    if again.losses.verdict != receipt.losses.verdict:
        wrong.append(f"losses are {again.losses.verdict}, not {receipt.losses.verdict}")
    a, b = receipt.speed, again.speed
    if a is not None and b is not None and a.known and b.known and (a.low > b.high or b.low > a.high):
        wrong.append(f"the speed-up is {b.low:.3g} to {b.high:.3g}, not {a.low:.3g} to {a.high:.3g}")
    return again, wrong
