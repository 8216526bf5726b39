"""Compare fixes: each advised fix in a fresh process with the same seed, in turn with the baseline (`stoker diagnose --try`).

`try_advice` takes a finding and returns it with the result of each trial (trials.py runs the processes). A speed-up is a ratio of
measurement windows next to each other in time; its interval includes the difference between two processes of the baseline. Losses are
compared step by step with those of the baseline, which must first agree with baseline.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stoker._clock import now_ns
from stoker.diagnose import render
from stoker.diagnose.advice import best_threads, workers_to_use
from stoker.diagnose.attribution import attribute
from stoker.diagnose.measurements import Advice, Finding, Losses, Measurements, Stretch, TrialResult, Verdict
from stoker.diagnose.thresholds import RULE

if TYPE_CHECKING:
    from stoker.diagnose.trials import Outcome, TrialProcess

NAN = float("nan")
ROUNDS = 4
LONG_STEP = 0.3
"""Seconds of a step from which on two rounds are enough."""
LIMIT_SECONDS = 60.0
COMPILE_SECONDS = 180.0
MEDIAN_OF_FEW = 1.2533
"""The standard error of a median, in that of a mean, were values normal."""
ALSO: dict[Verdict, tuple[str, ...]] = {
    "compute": ("sdpa", "cudnn"),
    "precision": ("cudnn",),
    "memory": ("sdpa", "cudnn"),
    "kernel": ("sdpa", "cudnn"),
    "launch": ("sdpa",),
    "dispatch": ("sdpa",),
}
"""Fixes that cannot be predicted: tried as well, and listed only where they help."""


@dataclass(kw_only=True)
class Comparison:
    """Measurement windows of a fix and of the baseline next to them, and the outcome of the fix."""

    base: list[Stretch] = field(default_factory=list)
    tried: list[Stretch] = field(default_factory=list)
    outcome: Outcome


@dataclass(kw_only=True)
class Baseline:
    """The program without a fix, in two processes."""

    difference: float = 0.0
    """Between the two, as the logarithm of a ratio."""
    losses: list[list[float]] = field(default_factory=list)


Start = Callable[[str | None, int | None], "TrialProcess"]
"""Starts the program with a fix of this name and value, or without one."""


def try_advice(
    finding: Finding,
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    quiet: bool = False,
    seconds: float = 1.5,
    at_most: float | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Finding:
    """Try the advice of a finding, each fix in a fresh process.

    Args:
        finding: The finding whose `next` is tried.
        program: The script, or a module's name with `module=True`.
        arguments: The program's arguments.
        module: Whether `program` is the name of a module.
        quiet: Whether the program's output is dropped.
        seconds: How long steps of each trial are measured.
        at_most: After this many seconds no trial begins.
        tell: Called with a line before each process starts.

    Returns:
        The finding with a `TrialResult` for each advice that could be tried.
    """
    from stoker.diagnose.trials import TrialProcess

    def start(fix: str | None, value: int | None) -> TrialProcess:
        tell(f"trying {fix}" if fix is not None else "measuring the baseline")
        limit = LIMIT_SECONDS + 20 * seconds + (COMPILE_SECONDS if fix in ("compile", "graph") else 0.0)
        return TrialProcess(program, arguments, fix=fix, value=value, module=module, quiet=quiet, limit_seconds=limit)

    return try_with(finding, start, seconds=seconds, at_most=at_most)


def try_with(finding: Finding, start: Start, *, seconds: float = 1.5, at_most: float | None = None) -> Finding:
    """`try_advice` with any way to run the program."""
    from stoker.diagnose.fixes import FIXES, fix_named

    measured = finding.measurements
    if measured is None or not finding.next:
        return finding
    advised = [step.name for step in finding.next]
    also = [name for name in ALSO.get(finding.verdict, ()) if name not in advised]
    device = measured.device
    names = [name for name in [*advised, *also] if name in FIXES and (device == "cuda" or not fix_named(name).cuda_only)]
    names = names[: RULE.max_trials]
    values = {name: value_of(name, measured, finding.verdict) for name in names}
    baseline, by_name = run_in_turn(names, values, start, seconds=seconds, at_most=at_most)
    tried = {name: judge(name, baseline, compared) for name, compared in by_name.items()}
    steps = [_with(step, tried.get(step.name)) for step in finding.next]
    for name in also:
        one = tried.get(name)
        if one is not None and one.error is None and one.low > RULE.trial_min_gain:
            steps.append(Advice(name=name, sentence=render.advice(name), predicted=None, tried=one))
    notes = _changed_speed(measured, [one.step_seconds for one in tried.values() if one.step_seconds is not None])
    measured = msgspec.structs.replace(measured, notes=[*measured.notes, *notes])
    return msgspec.structs.replace(finding, next=steps, measurements=measured)


def _changed_speed(measured: Measurements, tried: Sequence[float]) -> list[str]:
    """A note where the baseline ran at another speed when it was diagnosed than when fixes were tried."""
    before, after = measured.loop.median, statistics.median(tried) if tried else NAN
    if not (before > 0 and after > 0) or abs(math.log(after / before)) <= RULE.trial_speed_change:
        return []
    return [render.TRIAL["speed_changed"].format(before=before * 1e3, after=after * 1e3)]


def _with(step: Advice, tried: TrialResult | None) -> Advice:
    if tried is None:
        return step
    sentence = step.sentence + (render.CACHED_TRIAL if step.name == "cached" and tried.error is None else "")
    return msgspec.structs.replace(step, sentence=sentence, tried=tried)


def value_of(name: str, measured: Measurements, verdict: Verdict) -> int | None:
    """The value that a fix is tried with: the advised one. `compile` has one where launches are to be saved."""
    if name == "workers":
        return workers_to_use(measured, attribute(measured))
    if name == "threads":
        return best_threads(measured) or measured.machine.threads
    return 1 if name == "compile" and verdict == "launch" else None


def run_in_turn(
    names: Sequence[str], values: dict[str, int | None], start: Start, *, seconds: float = 1.5, at_most: float | None = None
) -> tuple[Baseline, dict[str, Comparison]]:
    """The baseline against baseline, and each fix against the baseline.

    One baseline process stays, and waits while the other has its turn. Where two cannot run at once (each needs more than half of
    the memory, or the same port), they run one after the other.
    """
    if not names:
        return Baseline(), {}
    begin = now_ns()
    baseline, by_name = Baseline(), {}
    base = start(None, None)
    if not base.is_ready():
        why = render.TRIAL["baseline_failed"].format(error=base.end().error)
        return baseline, {name: _failed(why) for name in names}
    again = alternate(base, start(None, None), seconds)
    baseline.losses.append(again.outcome.losses)
    beside = again.outcome.error is None and bool(again.base) and bool(again.tried)
    if beside:
        baseline.difference = abs(math.log(ratio_of(again.base, again.tried)[0]))
    else:
        baseline.losses[:] = [base.end().losses]
    before = [] if beside else alone(start(None, None), seconds).tried
    for name in names:
        if at_most is not None and now_ns() - begin > at_most * 1e9:
            by_name[name] = _failed(render.TRIAL["no_time"])
        elif beside:
            by_name[name] = alternate(base, start(name, values.get(name)), seconds)
            if len(by_name[name].base) < len(by_name[name].tried):  # the program has come to its end
                baseline.losses.append(base.end().losses)
                base = start(None, None)
                base.is_ready()
        else:
            by_name[name] = alone(start(name, values.get(name)), seconds)
            after = alone(start(None, None), seconds)
            by_name[name].base, before = [*before, *after.tried], after.tried
            baseline.losses.append(after.outcome.losses)
    if beside:
        baseline.losses.append(base.end().losses)
    return baseline, by_name


def _failed(why: str) -> Comparison:
    from stoker.diagnose.trials import Outcome

    return Comparison(outcome=Outcome(error=why))


def alternate(base: TrialProcess, tried: TrialProcess, seconds: float) -> Comparison:
    """Windows of both in turn, each as often before the other as after it."""
    before: list[Stretch] = []
    after: list[Stretch] = []
    sides = ((base, before), (tried, after))
    for number in range(ROUNDS if tried.is_ready() else 0):
        for side, into in sides if number % 2 == 0 else sides[::-1]:
            stretch = side.stretch(seconds / ROUNDS)
            if stretch is not None and stretch.seconds:
                into.append(stretch)
        if number == 1 and before and before[0].median > LONG_STEP:
            break
    return Comparison(base=before, tried=after, outcome=tried.end())


def alone(trial: TrialProcess, seconds: float) -> Comparison:
    """Windows of one process."""
    stretches = [trial.stretch(seconds / ROUNDS) for _ in range(ROUNDS)] if trial.is_ready() else []
    return Comparison(tried=[one for one in stretches if one is not None and one.seconds], outcome=trial.end())


def judge(name: str, baseline: Baseline, compared: Comparison) -> TrialResult:
    """The result of a trial."""
    from stoker.diagnose.fixes import fix_named

    fix, outcome = fix_named(name), compared.outcome
    error = outcome.error or outcome.unused_reason
    if error is None and not (compared.base and compared.tried):
        error = render.TRIAL["ended"]
    if error is not None:
        return TrialResult(speedup=NAN, low=NAN, high=NAN, losses="not compared", error=error)
    ratio, deviation = ratio_of(compared.base, compared.tried)
    half = 2 * math.hypot(deviation, baseline.difference)
    ratio *= fix.samples_per_step
    if half > RULE.trial_max_error:
        low, high = ratio * math.exp(-half), ratio * math.exp(half)
        message = render.TRIAL["varies"].format(low=low, high=high)
        return TrialResult(speedup=NAN, low=NAN, high=NAN, losses="not compared", error=message)
    losses, difference = compare_losses(baseline.losses, [outcome.losses], fix.tolerance)
    return TrialResult(
        speedup=ratio,
        low=ratio * math.exp(-half),
        high=ratio * math.exp(half),
        losses=losses,
        largest_difference=difference,
        peak_bytes=outcome.peak_bytes,
        step_seconds=statistics.median(one.median for one in compared.base),
    )


def ratio_of(base: list[Stretch], tried: list[Stretch]) -> tuple[float, float]:
    """The speed-up, and the standard error of its logarithm: from the differences of pairs, or of steps within windows if larger."""
    if len(base) == len(tried):
        logs = [math.log(one.median / other.median) for one, other in zip(base, tried, strict=True)]
        between = MEDIAN_OF_FEW * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
        middle = statistics.median(logs)
    else:
        sides = [[math.log(one.median) for one in side] for side in (base, tried)]
        between = math.hypot(*(statistics.stdev(side) / math.sqrt(len(side)) if len(side) > 1 else 0.0 for side in sides))
        middle = statistics.fmean(sides[0]) - statistics.fmean(sides[1])
    within = math.hypot(*(_within(side) for side in (base, tried)))
    return math.exp(middle), max(between, within)


def _within(stretches: list[Stretch]) -> float:
    """The standard error of the mean of medians, from the steps within windows; 0 where each has too few."""
    errors = [one.error for one in stretches if math.isfinite(one.spread)]
    return math.sqrt(statistics.fmean(error**2 for error in errors) / len(stretches)) if errors else 0.0


def compare_losses(base: list[list[float]], tried: list[list[float]], tolerance: float | None) -> tuple[Losses, float | None]:
    """How losses differ, step by step, and the largest relative difference.

    Where the baseline does not agree with baseline from run to run, losses cannot be compared.
    """
    if tolerance is None or not all(base) or not all(tried) or not base or not tried:
        return "not compared", None
    own = max((difference_of(base[0], other) for other in base[1:]), default=0.0)
    if own > tolerance:
        return "not compared", None
    largest = max(difference_of(base[0], other) for other in tried)
    if largest == 0:
        return "equal", 0.0
    return ("within tolerance" if largest <= tolerance else "changed"), largest


def difference_of(a: list[float], b: list[float]) -> float:
    """The largest relative difference of a step's losses; infinite where only one of them is finite."""
    largest = 0.0
    for x, y in zip(a, b, strict=False):  # the faster run has made more steps
        if x == y or (math.isnan(x) and math.isnan(y)):
            continue
        both = math.isfinite(x) and math.isfinite(y)
        largest = max(largest, abs(x - y) / max(abs(x), abs(y)) if both else math.inf)
    return largest
