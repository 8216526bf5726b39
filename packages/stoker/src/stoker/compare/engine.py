"""The engine: versions of a program, each compared with the best one so far. All comparisons of Stoker are made by it.

    with Comparisons(Version(program="train.py"), ["--epochs", "3"]) as comparisons:
        receipt = comparisons.compare(Version(program="train.py", edits={"/home/me/train.py": b"..."}), budget=60)
        if receipt.status == 0:  # faster, with results that are equal or differ by rounding
            comparisons.accept()  # the version is BEFORE from now on

A version is made in the sandbox of its runs: no file of the user changes (sides.py). `Version.edits` are new contents of files, and
`Version.extension` changes the program from outside, in its process. Each comparison runs AFTER once with all observations and both
sides in alternation, A B B A, each in a fresh process. The observed run of BEFORE, and its run with other rounding, are made once per
BEFORE. `judge` makes the receipt of what was observed. It is pure. What a caller reads of a receipt:

- `receipt.speed`: `speedup`, the interval `low` to `high`, `p`, and `verdict` (faster, slower, same, unknown); None with a budget of 0.
- `receipt.losses.verdict`: `equal` bits; `rounding`, no more than reordered arithmetic explains; `tolerance`; `changed`; or `unknown`.
- `receipt.facts`: what else is the same or is not: samples, random numbers, weights, parameters, evaluation.
- `receipt.status` and `receipt.headline()`: the decision, and `str(receipt)`, `receipt.brief()`, `receipt.as_dict()` to show it.

A version that fails raises `TrainError`; BEFORE stays as it was. A comparison with `screen=True` ends after the first rounds if these show
no gain. That calls no equal version faster: further rounds are made only where a gain is possible, and all of them count.
"""

from __future__ import annotations

import functools
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Self

import msgspec

import stoker
from stoker._clock import now_ns, now_utc
from stoker.compare import BUDGET_SECONDS, WIDTH
from stoker.compare.child import Starter
from stoker.compare.evaluation import Judgement, Judging
from stoker.compare.facts import JUDGING, Fact, facts_of, repeats_of
from stoker.compare.losses import compare_losses
from stoker.compare.observed import Observed
from stoker.compare.quality import Quality, Repeat, final_loss, printed_metric, quality_of
from stoker.compare.receipt import Conditions, Receipt, SideResult
from stoker.compare.rounds import USUAL_PAIRS, Pairs, Speed, alternate, is_narrow, shows_no_gain, speed_of
from stoker.compare.sides import Side, Version, prepared
from stoker.compare.verdict import UNBIASED, Decision, check_requirements, decide, status_of
from stoker.errors import TrainError

OBSERVED_SECONDS = 12.0
"""Seconds of the first run, which sets the number of steps of all others."""
LIMIT_FACTOR, LIMIT_SECONDS = 10.0, 120.0
"""A run may take this many times as long as the first one, and this many seconds more: other kernels may have to be compiled."""
SAMPLES_DIFFER = 0.01  # relative difference of samples per step from which on speed is in samples
LEAST_STEPS = 4
STARTING_PROCESSES = ("torch._inductor", "triton")
"""Modules that may start processes or look for a GPU when they are imported."""
LEAST_TIMED = 20
"""Steps of a timed run, if the budget has no room for as many as were observed."""


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Repeats with other seeds, compared by a metric: a regular expression for what the program prints, or the final loss.

    Runs go to their end, unless the number of steps is given.
    """

    number: int
    metric: str | None = None
    higher: bool = False


class Comparisons:
    """Versions of a program, each compared with the best one so far. A context manager.

    `steps` are compared; by default, those of the first epoch and a third of the next, or what runs in `seconds`. With `until`, the steps
    that BEFORE makes in this many seconds. With `same_draws`, loaders with persistent workers draw the seeds that others draw, so that
    keeping workers changes no sample. With `judging` runs are confined, and an evaluator computes the metric of repeats with other seeds.
    """

    def __init__(
        self, before: Version, arguments: Sequence[str] = (), *, steps: int | None = None, until: float | None = None,
        seconds: float = OBSERVED_SECONDS, quiet: bool = True, same_draws: bool = False,
        progress: Callable[[str], object] = lambda line: None, judging: Judging | None = None,
    ) -> None:  # fmt: skip
        self.best = before
        self._arguments = [str(word) for word in arguments]
        self._steps, self._until, self._seconds = steps, until, seconds
        self._quiet, self._same_draws, self._progress = quiet, same_draws, progress
        self._judging = judging
        self._confined = None if judging is None else judging.held.hidden
        self._limit: float | None = None
        self._files = ExitStack()
        self._starter: Starter | None = None
        self._side: Side
        self._first: Observed | None = None  # of BEFORE
        self._perturbed: Observed | None = None
        self._last: tuple[Side, Observed] | None = None  # AFTER of the last comparison

    def __enter__(self) -> Self:
        self._side = self._files.enter_context(prepared(self.best, self._confined))
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def compare(
        self, after: Version, *, budget: float = BUDGET_SECONDS, width: float = WIDTH, tolerance: float | None = None,
        require: str = "", seeds: Seeds | None = None, screen: bool = False,
    ) -> Receipt:  # fmt: skip
        """Compare a version with the best one. No round starts after `budget` seconds. Raises `TrainError` if a version fails."""
        begin = now_ns()
        side = self._files.enter_context(prepared(after, self._confined))
        if self._judging is not None:
            self._judging.start(self._side, side)
        first = self._observe_before()
        self._last = None
        self._progress(f"observing {_title(after, 'AFTER')}")
        options: dict[str, Any] = {"whole": True} if first.finished and self._steps is None else {"steps": len(first.ends)}
        second = _trained(self._run(side, observe=True, **options), "AFTER")
        starts = self._start_forks(side, first, second) if budget else 0.0
        yardsticks = [] if first.losses == second.losses else [self._rounding().losses]
        samples = _samples_per_step(first, second)
        timed: Pairs[Observed] = Pairs()
        if budget:
            left = budget - (now_ns() - begin) / 1e9

            def enough(pairs: Pairs[Observed]) -> bool:
                speed = _speed(pairs, samples)
                return is_narrow(speed, width) or (screen and shows_no_gain(speed))

            def time_run(run_of: Side, name: str) -> Observed:
                self._progress(f"timing {name}")
                return self._run(run_of, forks=True, steps=steps)

            steps = _steps_of_round(first, second, left, starts)
            before = functools.partial(time_run, self._side, "BEFORE")
            timed = alternate(before, functools.partial(time_run, side, _title(after, "AFTER")), enough=enough, seconds=left)
        quality = None if seeds is None else self._quality(side, seeds, tolerance)
        self._last = side, second
        call = {"before": asdict(self.best), "after": asdict(after), "arguments": self._arguments}
        return judge(
            first,
            second,
            yardsticks,
            timed,
            quality,
            tolerance=tolerance,
            require=require,
            names=_names(self.best, after),
            call=call,
            judging=() if self._judging is None else self._judging.facts(first, second),
            judgement=None if self._judging is None else self._judging.judgement(),
        )

    def accept(self) -> None:
        """Make AFTER of the last comparison the best version."""
        if self._last is None:
            raise TrainError("no comparison has succeeded; expected one whose AFTER is accepted.")
        (self._side, self._first), self._perturbed = self._last, None
        self.best = self._side.version

    def _observe_before(self) -> Observed:
        """Run BEFORE once with all observations. The first such run says how many steps the others make."""
        if self._first is None:
            self._progress("observing BEFORE")
            begin = now_ns()
            self._first = _trained(
                self._run(self._side, observe=True, steps=self._steps, until=self._until, seconds=self._seconds), "BEFORE"
            )
            self._limit = LIMIT_FACTOR * (now_ns() - begin) / 1e9 + LIMIT_SECONDS
        return self._first

    def _start_forks(self, side: Side, first: Observed, second: Observed) -> float:
        """Start the process whose forks are timed, unless a version needs fresh interpreters.

        Returns the seconds of both versions to a first step.
        """
        fresh = first.ends[0] + second.ends[0]
        if self._judging is not None or not _can_fork(self._side, side) or first.variables or second.variables:
            self._starter = None
            return fresh
        try:
            if self._starter is None:
                self._starter = self._files.enter_context(Starter(_shared_modules(first, second)))
            # Not timed: memory that all runs share is read for the first time.
            limit = LIMIT_FACTOR + 2 * fresh
            warm_up = self._side.run(self._arguments, steps=LEAST_STEPS, quiet=self._quiet, time_limit=limit, starter=self._starter)
            if warm_up.device != first.device:
                raise TrainError("a module that both programs import has started the GPU, so that forks cannot use it.")
            return 2 * warm_up.ends[0]
        except TrainError:  # what the forks have imported cannot be used in a fork
            self._starter = None
            return fresh

    def _rounding(self) -> Observed:
        """Run BEFORE with each initial weight changed by one rounding error."""
        if self._perturbed is None:
            self._progress("running BEFORE with other rounding")
            self._perturbed = self._run(self._side, perturb=True, forks=True, steps=len(self._observe_before().ends))
        return self._perturbed

    def _quality(self, side: Side, seeds: Seeds, margin: float | None) -> Quality:
        """Run both sides with other seeds, and compare a metric."""
        steps = self._steps if self._until is None else len(self._observe_before().ends)

        def repeat(run_of: Side, name: str) -> Callable[[], Repeat]:
            numbers = iter(range(1, seeds.number + 1))

            def run() -> Repeat:
                seed = next(numbers)
                self._progress(f"running {name} with seed {seed} of {seeds.number}")
                if self._judging is not None:
                    observed, value = self._judging.run(run_of, self._arguments, quiet=self._quiet, seed=seed)
                    return Repeat(seed=seed, metric=value, losses=observed.losses)
                observed = self._run(run_of, seed=seed, steps=steps, whole=steps is None, limited=False)
                value = final_loss(observed.losses) if seeds.metric is None else printed_metric(observed.output, seeds.metric)
                return Repeat(seed=seed, metric=value, losses=observed.losses)

            return run

        pairs = alternate(repeat(self._side, "BEFORE"), repeat(side, "AFTER"), enough=lambda pairs: False, most=seeds.number)
        judged = self._judging is not None
        name = "metric of the evaluator" if judged else seeds.metric or "final loss"
        of_losses = seeds.metric is None and not judged
        quality = quality_of(pairs.before, pairs.after, name=name, higher=seeds.higher, margin=margin, of_losses=of_losses)
        # Weights that are averaged after training have another metric with the same losses. Whether AFTER took them from elsewhere is
        # a fact of the judge.
        return msgspec.structs.replace(quality, unexplained=0) if judged else quality

    def _run(self, side: Side, *, limited: bool = True, forks: bool = False, **options: Any) -> Observed:
        """Run a side. Observed runs are fresh interpreters, so their first step includes all imports; timed runs may be forks."""
        limit = self._limit if limited else None
        if self._judging is not None:  # each in a fresh interpreter: nothing of another run is in it
            return self._judging.watch(side, self._arguments, quiet=self._quiet, time_limit=limit, **options)
        starter = self._starter if forks else None
        return side.run(
            self._arguments, quiet=self._quiet, time_limit=limit, starter=starter, same_draws=self._same_draws, **options
        )  # fmt: skip


def _trained(run: Observed, name: str) -> Observed:
    if len(run.ends) < LEAST_STEPS:
        raise TrainError(f"{name} made {len(run.ends)} optimizer steps; expected at least {LEAST_STEPS}. Let it train longer.")
    return run


def _can_fork(*sides: Side) -> bool:
    """Whether runs may be forks of one process: if no version has another interpreter, environment, launcher or installed package."""
    versions = [side.version for side in sides]
    others = any(version.python or version.environment or version.launcher for version in versions)
    return not others and not any(side.changes_packages for side in sides)


def _shared_modules(first: Observed, second: Observed) -> list[str]:
    """Return which modules forks may share: those that both programs import, and whose import starts nothing.

    On a GPU, modules of torch alone: other packages may look for the GPU when they are imported, which no fork could then use.
    """
    both, packages = set(second.modules), ("torch.",) if "cuda" in (first.device, second.device) else ("",)
    return [
        name for name in first.modules if name in both and name.startswith(packages) and not name.startswith(STARTING_PROCESSES)
    ]


def _title(version: Version, name: str) -> str:
    return version.title or name


def _steps_of_round(first: Observed, second: Observed, seconds: float, starts: float) -> int:
    """Return the steps of a timed run: as many as were observed, or fewer, so that enough pairs of runs have room in the budget.

    `starts` are the seconds of a pair before its first steps.
    """
    step = sum((run.ends[-1] - run.ends[0]) / max(1, len(run.ends) - 1) for run in (first, second))
    most, room = min(len(first.ends), len(second.ends)), seconds / (USUAL_PAIRS + 1) - starts
    return max(min(most, LEAST_TIMED), min(most, int(room / max(step, 1e-9))))


def judge(
    first: Observed,
    second: Observed,
    yardsticks: Sequence[Sequence[float]],
    timed: Pairs[Observed],
    quality: Quality | None = None,
    *,
    tolerance: float | None = None,
    require: str = "",
    names: tuple[str, str] = ("BEFORE", "AFTER"),
    call: Mapping[str, Any] = MappingProxyType({}),
    judging: Sequence[Fact] = (),
    judgement: Judgement | None = None,
) -> Receipt:
    """Return the receipt of what was observed. Pure: the same observations give the same receipt.

    `first` and `second` are the observed runs of both, `yardsticks` losses of BEFORE with other rounding, and `timed` further runs.
    `judging` are facts about an evaluator. Where there is one, evaluations in the program itself judge nothing.
    """
    runs = [[run.losses for run in side] for side in (timed.before, timed.after)]
    repeats = [repeats_of("BEFORE", [first.losses, *runs[0]]), repeats_of("AFTER", [second.losses, *runs[1]])]
    yardsticks = [*yardsticks, *(runs[0] if repeats[0] is not None else [])]
    losses = compare_losses(first.losses, second.losses, yardsticks=yardsticks, epsilon=first.epsilon, tolerance=tolerance)
    facts = [fact for fact in facts_of(first, second, parted=losses.first) if judgement is None or fact.name not in JUDGING]
    facts += [*judging, *filter(None, repeats)]
    speed = _speed(timed, _samples_per_step(first, second)) if timed.before else None
    sides = (timed.before or [first], timed.after or [second])
    requirements = check_requirements(require, losses, facts, speed, quality, _memory_ratio(*sides))
    verdict = decide(losses, facts, speed, quality)
    if requirements and not any(fact.name in UNBIASED and fact.same is False for fact in facts):
        verdict = Decision(status=status_of(requirements), title=verdict.title, why=verdict.why)
    return Receipt(
        verdict=verdict,
        names=names,
        call=dict(call),
        losses=losses,
        facts=facts,
        speed=speed,
        quality=quality,
        requirements=requirements,
        judgement=judgement,
        before=_run(first, sides[0], timed.before),
        after=_run(second, sides[1], timed.after),
        conditions=_conditions(first, second, [*sides[0], *sides[1]]),
    )


def _speed(pairs: Pairs[Observed], samples: tuple[float, float] | None) -> Speed:
    return speed_of([run.step_seconds for run in pairs.before], [run.step_seconds for run in pairs.after], samples=samples)


def _samples_per_step(first: Observed, second: Observed) -> tuple[float, float] | None:
    """Return the samples per step of both, where they differ."""
    counts = [side.training.per_step for side in (first, second)]
    if not all(counts) or not all(count[-1] for count in counts):
        return None
    per_step = tuple(count[-1] / len(count) for count in counts)
    return (per_step[0], per_step[1]) if abs(per_step[1] / per_step[0] - 1) > SAMPLES_DIFFER else None


def _memory_ratio(before: Sequence[Observed], after: Sequence[Observed]) -> float | None:
    peaks = [statistics.median(run.device_bytes or run.host_bytes for run in side) for side in (before, after)]
    return peaks[1] / peaks[0] if peaks[0] else None


def _run(observed: Observed, runs: Sequence[Observed], timed: Sequence[Observed]) -> SideResult:
    return SideResult(
        losses=observed.losses,
        step_seconds=[run.step_seconds for run in timed],
        first_step=observed.ends[0],
        host_bytes=int(statistics.median(run.host_bytes for run in runs)),
        device_bytes=int(statistics.median(run.device_bytes for run in runs)),
        code=observed.code,
    )


def _conditions(first: Observed, second: Observed, runs: Sequence[Observed]) -> Conditions:
    # A package that one version alone imports is no other version.
    versions = [
        (name, first.packages[name], second.packages[name]) for name in sorted(first.packages.keys() & second.packages.keys())
    ]
    shares = [run.disturbed for run in runs if run.disturbed is not None]
    return Conditions(
        date=now_utc(),
        stoker=stoker.__version__,
        machine=f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        device=second.device,
        packages=second.packages,
        other_packages={name: [a, b] for name, a, b in versions if a != b},
        disturbed=statistics.median(shares) if shares else None,
    )


def _names(before: Version, after: Version) -> tuple[str, str]:
    return before.describe(), after.describe() if after != before else f"{after.describe()} again"
