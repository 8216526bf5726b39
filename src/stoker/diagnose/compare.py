"""Trying: what is proposed next, each in a fresh process with the same seed, against the program as it is, measured in turn.

The last station of `--try`: a finding comes in, and goes out with what became of each proposal. The law: a speed-up is a ratio of
stretches next to each other in time, with an interval that also holds what two processes of the same program differ by; and losses
are compared step by step with those of the program as it is, which must first agree with itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from stoker._clock import now_ns
from stoker.diagnose import render
from stoker.diagnose.advice import best_threads, workers_to_use
from stoker.diagnose.attribution import attribute
from stoker.diagnose.measurements import Advice, Finding, Losses, Measurements, Stretch, TrialResult, Verdict
from stoker.diagnose.thresholds import RULE

if TYPE_CHECKING:
    from stoker.diagnose.trials import Outcome

NOTHING = float("nan")
ROUNDS = 4
LONG_STEP = 0.3
"""Seconds of a step from which on two rounds must do."""
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
"""Of which nothing can be predicted: tried too, and told only where they help."""


@dataclass(kw_only=True)
class Compared:
    """Stretches of a fix, and of the program as it is next to them; and what came of the fix."""

    base: list[Stretch] = field(default_factory=list)
    tried: list[Stretch] = field(default_factory=list)
    outcome: Outcome


@dataclass(kw_only=True)
class Itself:
    """The program as it is, twice."""

    difference: float = 0.0
    """Of two processes of it, as the logarithm of a ratio."""
    losses: list[list[float]] = field(default_factory=list)


class Trying(Protocol):
    """A process that runs the program: `stoker.diagnose.trials`, or what a test has in its place."""

    def is_ready(self) -> bool:
        """Wait until it has warmed up; False where it has ended."""

    def stretch(self, seconds: float) -> Stretch | None:
        """Some steps; None where it has ended."""

    def end(self) -> Outcome:
        """End it, and tell what came of it."""


Start = Callable[[str | None, int | None], Trying]
"""Starts the program with a fix of this name and number, or as it is."""


def try_next(
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
    """The finding with what became of its proposals.

    `seconds` is how long steps of each are measured; after `at_most` seconds no try begins.
    """
    from stoker.diagnose.trials import Running

    def start(fix: str | None, value: int | None) -> Trying:
        tell(f"trying {fix}" if fix is not None else "the program as it is")
        limit = LIMIT_SECONDS + 20 * seconds + (COMPILE_SECONDS if fix in ("compile", "graph") else 0.0)
        return Running(program, arguments, fix=fix, value=value, module=module, quiet=quiet, limit_seconds=limit)

    return try_with(finding, start, seconds=seconds, at_most=at_most)


def try_with(finding: Finding, start: Start, *, seconds: float = 1.5, at_most: float | None = None) -> Finding:
    """The same with any way to run the program."""
    from stoker.diagnose.fixes import FIXES, fix_named

    measured = finding.measurements
    if measured is None or not finding.next:
        return finding
    told = [step.name for step in finding.next]
    also = [name for name in ALSO.get(finding.verdict, ()) if name not in told]
    device = measured.device
    names = [name for name in [*told, *also] if name in FIXES and (device == "cuda" or not fix_named(name).cuda_only)]
    names = names[: RULE.max_trials]
    values = {name: value_of(name, measured, finding.verdict) for name in names}
    itself, by_name = run_in_turn(names, values, start, seconds=seconds, at_most=at_most)
    tried = {name: judge(name, itself, compared) for name, compared in by_name.items()}
    steps = [_with(step, tried.get(step.name)) for step in finding.next]
    for name in also:
        one = tried.get(name)
        if one is not None and one.error is None and one.low > RULE.trial_min_gain:
            steps.append(Advice(name=name, sentence=render.advice(name), predicted=None, tried=one))
    notes = _changed_speed(measured, [one.step_seconds for one in tried.values() if one.step_seconds is not None])
    measured = msgspec.structs.replace(measured, notes=[*measured.notes, *notes])
    return msgspec.structs.replace(finding, next=steps, measurements=measured)


def _changed_speed(measured: Measurements, tried: Sequence[float]) -> list[str]:
    """Told where predictions were made of another speed of the program as it is than it had when fixes were tried."""
    before, after = measured.loop.median, statistics.median(tried) if tried else NOTHING
    if not (before > 0 and after > 0) or abs(math.log(after / before)) <= RULE.trial_speed_change:
        return []
    return [render.TRIAL["speed_changed"].format(before=before * 1e3, after=after * 1e3)]


def _with(step: Advice, tried: TrialResult | None) -> Advice:
    if tried is None:
        return step
    sentence = step.sentence + (render.CACHED_TRIAL if step.name == "cached" and tried.error is None else "")
    return msgspec.structs.replace(step, sentence=sentence, tried=tried)


def value_of(name: str, measured: Measurements, verdict: Verdict) -> int | None:
    """The number that a fix is tried with: the one that is advised. Compiling has one where launches are to be saved."""
    if name == "workers":
        return workers_to_use(measured, attribute(measured))
    if name == "threads":
        return best_threads(measured) or measured.machine.threads
    return 1 if name == "compile" and verdict == "launch" else None


def run_in_turn(
    names: Sequence[str], values: dict[str, int | None], start: Start, *, seconds: float = 1.5, at_most: float | None = None
) -> tuple[Itself, dict[str, Compared]]:
    """The program as it is against itself, and with each fix against itself without.

    One process of it stays, and waits while the other has its turn. Where two cannot be there at once (each needs more than half of
    the memory, or the same port), they run one after the other.
    """
    if not names:
        return Itself(), {}
    begin = now_ns()
    itself, by_name = Itself(), {}
    base = start(None, None)
    if not base.is_ready():
        why = render.TRIAL["baseline_failed"].format(error=base.end().error)
        return itself, {name: _failed(why) for name in names}
    again = alternate(base, start(None, None), seconds)
    itself.losses.append(again.outcome.losses)
    beside = again.outcome.error is None and bool(again.base) and bool(again.tried)
    if beside:
        itself.difference = abs(math.log(ratio_of(again.base, again.tried)[0]))
    else:
        itself.losses[:] = [base.end().losses]
    before = [] if beside else alone(start(None, None), seconds).tried
    for name in names:
        if at_most is not None and now_ns() - begin > at_most * 1e9:
            by_name[name] = _failed(render.TRIAL["no_time"])
        elif beside:
            by_name[name] = alternate(base, start(name, values.get(name)), seconds)
            if len(by_name[name].base) < len(by_name[name].tried):  # the program has come to its end
                itself.losses.append(base.end().losses)
                base = start(None, None)
                base.is_ready()
        else:
            by_name[name] = alone(start(name, values.get(name)), seconds)
            after = alone(start(None, None), seconds)
            by_name[name].base, before = [*before, *after.tried], after.tried
            itself.losses.append(after.outcome.losses)
    if beside:
        itself.losses.append(base.end().losses)
    return itself, by_name


def _failed(why: str) -> Compared:
    from stoker.diagnose.trials import Outcome

    return Compared(outcome=Outcome(error=why))


def alternate(base: Trying, tried: Trying, seconds: float) -> Compared:
    """Stretches of both in turn, each as often before the other as after it."""
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
    return Compared(base=before, tried=after, outcome=tried.end())


def alone(trying: Trying, seconds: float) -> Compared:
    """Stretches of one."""
    stretches = [trying.stretch(seconds / ROUNDS) for _ in range(ROUNDS)] if trying.is_ready() else []
    return Compared(tried=[one for one in stretches if one is not None and one.seconds], outcome=trying.end())


def judge(name: str, itself: Itself, compared: Compared) -> TrialResult:
    """What a fix came to."""
    from stoker.diagnose.fixes import fix_named

    fix, outcome = fix_named(name), compared.outcome
    error = outcome.error or outcome.nothing
    if error is None and not (compared.base and compared.tried):
        error = render.TRIAL["ended"]
    if error is not None:
        return TrialResult(speedup=NOTHING, low=NOTHING, high=NOTHING, losses="not compared", error=error)
    ratio, deviation = ratio_of(compared.base, compared.tried)
    half = 2 * math.hypot(deviation, itself.difference)
    ratio *= fix.samples_a_step
    if half > RULE.trial_max_error:
        low, high = ratio * math.exp(-half), ratio * math.exp(half)
        told = render.TRIAL["varies"].format(low=low, high=high)
        return TrialResult(speedup=NOTHING, low=NOTHING, high=NOTHING, losses="not compared", error=told)
    losses, difference = compare(itself.losses, [outcome.losses], fix.tolerance)
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
    """How many times faster, and the standard error of its logarithm: by what pairs differ, or steps within stretches if more."""
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
    """The standard error of the mean of medians, by what steps of a stretch differ; 0 where each has too few to say."""
    errors = [one.error for one in stretches if math.isfinite(one.spread)]
    return math.sqrt(statistics.fmean(error**2 for error in errors) / len(stretches)) if errors else 0.0


def compare(base: list[list[float]], tried: list[list[float]], tolerance: float | None) -> tuple[Losses, float | None]:
    """How losses differ, step by step, and the largest difference as a share of the loss.

    Where the program does not agree with itself from run to run, nothing can be said of a fix.
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
    """The largest difference of a step's losses, as a share of the larger; infinite where only one of them is a number."""
    largest = 0.0
    for x, y in zip(a, b, strict=False):  # the faster run has made more steps
        if x == y or (math.isnan(x) and math.isnan(y)):
            continue
        both = math.isfinite(x) and math.isfinite(y)
        largest = max(largest, abs(x - y) / max(abs(x), abs(y)) if both else math.inf)
    return largest
