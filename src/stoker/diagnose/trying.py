"""Trying: what is proposed next, each in fresh processes with the same seed, against the program as it is, measured in turn.

The last station of `--try`: a finding comes in, and goes out with what became of each proposal. The law: a speed-up is a ratio of
runs next to each other in time, with an interval that also holds what such runs differ by among themselves; and losses are
compared step by step with those of the program as it is, which must first agree with itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stoker.clock import now_ns
from stoker.diagnose.advice import workers_to_use
from stoker.diagnose.finding import Finding, Losses, Step, Tried, Verdict
from stoker.diagnose.measurements import Measurements, Stretch
from stoker.diagnose.parts import divide
from stoker.errors import StokerError, TrainError

NOTHING = float("nan")
MOST_TRIES = 8
QUICK_SECONDS = 15.0
"""A run that takes longer is made once, not twice."""
LIMIT_SECONDS = 60.0
COMPILE_SECONDS = 180.0
SE_OF_MEDIAN = 1.2533 / 0.6745
"""The standard error of a median, in half distances of quartiles over the root of the number of steps, were they normal."""
WORTH_TELLING = 1.02
ALSO: dict[Verdict, tuple[str, ...]] = {
    "compute": ("sdpa", "cudnn"),
    "precision": ("cudnn",),
    "memory": ("sdpa", "cudnn"),
    "kernel": ("sdpa", "cudnn"),
    "launch": ("sdpa",),
    "dispatch": ("sdpa",),
}
"""Of which nothing can be predicted: tried too, and told only where they help."""
SENTENCES = {
    "sdpa": "attention that does not give its weights away (need_weights=False)",
    "cudnn": "let cuDNN choose among its convolutions (torch.backends.cudnn.benchmark = True)",
}
BOUND = " (tried as a bound: batches that cost nothing)"


@dataclass(kw_only=True)
class Runs:
    """What came of the runs of one fix, or of the program as it is."""

    seconds: list[Stretch] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    peak_bytes: int | None = None
    device: str = "cpu"
    nothing: str | None = None
    error: str | None = None


Run = Callable[[str | None, int | None], Runs]
"""Runs the program once, with a fix of this name and number, or as it is."""


def try_next(
    finding: Finding,
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    quiet: bool = False,
    seconds: float = 1.5,
    tell: Callable[[str], None] = lambda text: None,
) -> Finding:
    """The finding with what became of its proposals; `seconds` is the length of a measured stretch."""

    def run(fix: str | None, value: int | None) -> Runs:
        tell(f"trying {fix}" if fix is not None else "the program as it is")
        return run_once(program, arguments, fix=fix, value=value, module=module, quiet=quiet, seconds=seconds)

    return try_with(finding, run)


def try_with(finding: Finding, run: Run) -> Finding:
    """The same with any way to run the program."""
    from stoker.diagnose.tries import FIXES, fix_named

    measured = finding.measurements
    if measured is None or not finding.next:
        return finding
    told = [step.name for step in finding.next]
    also = [name for name in ALSO.get(finding.verdict, ()) if name not in told]
    device = measured.device
    names = [name for name in [*told, *also] if name in FIXES and (device == "cuda" or not fix_named(name).cuda_only)][:MOST_TRIES]
    base, by_name = run_in_turn(names, {name: value_of(name, measured) for name in names}, run)
    tried = {name: judge(name, base, runs) for name, runs in by_name.items()}
    steps = [_with(step, tried.get(step.name)) for step in finding.next]
    for name in also:
        one = tried.get(name)
        if one is not None and one.error is None and one.low > WORTH_TELLING:
            steps.append(Step(name=name, sentence=SENTENCES[name], predicted=None, tried=one))
    return msgspec.structs.replace(finding, next=steps)


def _with(step: Step, tried: Tried | None) -> Step:
    if tried is None:
        return step
    sentence = step.sentence + (BOUND if step.name == "cached" and tried.error is None else "")
    return msgspec.structs.replace(step, sentence=sentence, tried=tried)


def value_of(name: str, measured: Measurements) -> int | None:
    """The number that a fix is tried with: the one that is advised."""
    if name == "workers":
        return workers_to_use(measured, divide(measured))
    if name == "threads":
        by_threads = measured.fewer_threads
        return int(min(by_threads, key=lambda number: by_threads[number])) if by_threads else 1
    return None


def run_in_turn(names: Sequence[str], values: dict[str, int | None], run: Run) -> tuple[Runs, dict[str, Runs]]:
    """The program as it is, each fix, the program again; and, where that is quick, all fixes backwards and the program once more.

    So each fix has runs of the program before and after it, and what drifts evenly cancels out.
    """
    begin = now_ns()
    base = run(None, None)
    took = (now_ns() - begin) / 1e9
    if base.error is not None:
        return base, {name: Runs(error=f"the program as it is could not be measured: {base.error}") for name in names}
    by_name = {name: run(name, values.get(name)) for name in names}
    _join(base, run(None, None))
    if took <= QUICK_SECONDS:
        for name in reversed(names):
            if by_name[name].error is None and by_name[name].nothing is None:
                _join(by_name[name], run(name, values.get(name)))
        _join(base, run(None, None))
    return base, by_name


def _join(runs: Runs, more: Runs) -> None:
    if more.error is not None or more.nothing is not None:
        runs.error = runs.error or more.error
        return
    runs.seconds += more.seconds
    runs.losses += more.losses
    runs.peak_bytes = max(runs.peak_bytes or 0, more.peak_bytes or 0) or None


def judge(name: str, base: Runs, runs: Runs) -> Tried:
    """What a fix came to."""
    from stoker.diagnose.tries import fix_named

    fix = fix_named(name)
    if runs.error is not None or runs.nothing is not None:
        return Tried(speedup=NOTHING, low=NOTHING, high=NOTHING, losses="not compared", error=runs.error or runs.nothing)
    ratio, half = ratio_of(base.seconds, runs.seconds)
    ratio *= fix.samples_a_step
    losses, difference = compare(base.losses, runs.losses, fix.tolerance)
    return Tried(
        speedup=ratio,
        low=ratio * math.exp(-half),
        high=ratio * math.exp(half),
        losses=losses,
        largest_difference=difference,
        peak_bytes=runs.peak_bytes,
    )


def ratio_of(base: list[Stretch], tried: list[Stretch]) -> tuple[float, float]:
    """How many times faster, and twice the standard error of its logarithm.

    Runs i of a fix stand between runs i and i + 1 of the program.
    """
    logs = []
    for place, stretch in enumerate(tried):
        around = base[place : place + 2] or base[-1:]
        logs.append(statistics.fmean(math.log(one.median) for one in around) - math.log(stretch.median))
    half = 2 * math.sqrt(_variance(base) + _variance(tried))
    return math.exp(statistics.fmean(logs)), half


def _variance(stretches: list[Stretch]) -> float:
    """Of the mean of the logarithms of medians: by what steps differ within runs, or runs among themselves where that is more."""
    within = statistics.fmean((SE_OF_MEDIAN * _spread(one)) ** 2 / len(one.seconds) for one in stretches)
    between = statistics.variance([math.log(one.median) for one in stretches]) if len(stretches) > 1 else 0.0
    return max(within, between) / len(stretches)


def _spread(stretch: Stretch) -> float:
    return stretch.spread if math.isfinite(stretch.spread) else 1.0


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


def run_once(
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    fix: str | None = None,
    value: int | None = None,
    module: bool = False,
    quiet: bool = False,
    seconds: float = 1.5,
) -> Runs:
    """One run in a fresh process. What goes wrong there is told in the result, not raised."""
    from stoker.diagnose.scripts import ask, scratch_for
    from stoker.diagnose.tries.trial import START, Outcome, TrialRequest

    limit = LIMIT_SECONDS + 20 * seconds + (COMPILE_SECONDS if fix in ("compile", "graph") else 0.0)
    words = [str(one) for one in arguments]
    with scratch_for(program, module=module) as folder:
        request = TrialRequest(
            program=str(program), module=module, arguments=words, scratch=str(folder), fix=fix, value=value, stretch_seconds=seconds
        )
        try:
            outcome = ask(request, Outcome, quiet=quiet, start=START, limit_seconds=limit)
        except TrainError as error:
            return Runs(error=str(error))
    if outcome.error is None and len(outcome.seconds) < 2:
        raise StokerError(f"{program} was tried and gave {len(outcome.seconds)} times of steps; expected more.")
    return Runs(
        seconds=[Stretch(seconds=outcome.seconds)],
        losses=[outcome.losses],
        peak_bytes=outcome.peak_bytes,
        device=outcome.device,
        nothing=outcome.nothing,
        error=outcome.error,
    )
