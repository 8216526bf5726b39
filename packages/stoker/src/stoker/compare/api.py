"""The comparison of two versions: runs that are observed, rounds that are timed, repeats with other seeds, and the receipt of all."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import stoker
from stoker._clock import now_ns, now_utc
from stoker.compare.facts import facts_of, repeats_of
from stoker.compare.losses import LossComparison, compare_losses
from stoker.compare.observed import Observed
from stoker.compare.quality import Quality, Repeat, check_pattern, final_loss, printed_metric, quality_of
from stoker.compare.receipt import Conditions, Receipt, SideResult
from stoker.compare.rounds import Pairs, alternate, is_narrow, speed_of
from stoker.compare.sides import Side, Version, prepared
from stoker.compare.verdict import Decision, check_requirements, decide, status_of
from stoker.errors import OptionError, TrainError

OBSERVED_SHARE = 0.1  # of the budget, for the first run
DEFAULT_OBSERVED = 12.0  # seconds of the first run, where only results are compared
LIMIT_FACTOR, LIMIT_SECONDS = 10.0, 120.0
"""A run may take this many times as long as the first one, and this many seconds more: other kernels may have to be compiled."""
SAMPLES_DIFFER = 0.01  # relative difference of samples per step from which on speed is in samples
LEAST_STEPS = 4


def compare_versions(
    before: str | Path | Version,
    after: str | Path | Version,
    arguments: Sequence[str],
    *,
    steps: int | None,
    budget: float,
    width: float,
    seeds: int,
    metric: str | None,
    higher: bool,
    tolerance: float | None,
    require: str,
    quiet: bool,
    progress: Callable[[str], object],
) -> Receipt:
    """Compare two versions. The arguments are those of `stoker.compare`."""
    _check(steps=steps, budget=budget, width=width, seeds=seeds, tolerance=tolerance)
    check_requirements(require, LossComparison(verdict="unknown"), [], None, None, None)
    seconds = (budget or DEFAULT_OBSERVED / OBSERVED_SHARE) * OBSERVED_SHARE
    if metric is not None:
        check_pattern(metric)
        if not seeds:
            raise OptionError(
                "metric was given without seeds; expected both: one run says nothing about a metric.", parameter="metric"
            )
    versions = tuple(one if isinstance(one, Version) else Version(program=str(one)) for one in (before, after))
    options: dict[str, Any] = {
        "steps": steps, "budget": budget, "width": width, "seeds": seeds, "metric": metric, "higher": higher, "tolerance": tolerance,
        "require": require,
    }  # fmt: skip
    words = [str(word) for word in arguments]
    begin = now_ns()
    with prepared(versions[0]) as a, prepared(versions[1]) as b:
        runner = _Runner(a, b, words, quiet, progress)
        first, second = runner.observe(steps, seconds)
        number = min(len(first.ends), len(second.ends))
        yardsticks = [] if first.losses == second.losses else [runner.perturbed(number).losses]
        left = budget - (now_ns() - begin) / 1e9
        samples = _samples_per_step(first, second)
        timed: Pairs[Observed] = Pairs()
        if budget:
            timed = runner.rounds(number, left, lambda pairs: is_narrow(_speed(pairs, samples), width))
        quality = None if not seeds else runner.quality(seeds, steps, metric=metric, higher=higher, margin=tolerance)
    call = {"before": asdict(versions[0]), "after": asdict(versions[1]), "arguments": words, **options}
    return judge(
        first, second, yardsticks, timed, quality, tolerance=tolerance, require=require, names=_names(*versions), call=call
    )


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
) -> Receipt:
    """Return the receipt of what was observed. Pure: the same observations give the same receipt.

    `first` and `second` are the observed runs of both, `yardsticks` losses of BEFORE with other rounding, and `timed` further runs.
    """
    runs = [[run.losses for run in side] for side in (timed.before, timed.after)]
    repeats = [repeats_of("BEFORE", [first.losses, *runs[0]]), repeats_of("AFTER", [second.losses, *runs[1]])]
    yardsticks = [*yardsticks, *(runs[0] if repeats[0] is not None else [])]
    losses = compare_losses(first.losses, second.losses, yardsticks=yardsticks, epsilon=first.epsilon, tolerance=tolerance)
    facts = [*facts_of(first, second, parted=losses.first), *filter(None, repeats)]
    speed = _speed(timed, _samples_per_step(first, second)) if timed.before else None
    sides = (timed.before or [first], timed.after or [second])
    requirements = check_requirements(require, losses, facts, speed, quality, _memory_ratio(*sides))
    verdict = decide(losses, facts, speed, quality)
    if requirements:
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
        before=_run(first, sides[0], timed.before),
        after=_run(second, sides[1], timed.after),
        conditions=_conditions(first, second, [*sides[0], *sides[1]]),
    )


def _check(**values: Any) -> None:
    """Check numbers before anything runs."""
    for name, least in (("steps", LEAST_STEPS), ("seeds", 2)):
        if values[name] and values[name] < least:
            raise OptionError(f"{name} is {values[name]}; expected at least {least}.", parameter=name)
    if values["budget"] < 0:
        raise OptionError(f"budget is {values['budget']}; expected seconds, or 0 to compare results only.", parameter="budget")
    for name in ("width", "tolerance"):
        if values[name] is not None and not values[name] > 0:
            raise OptionError(f"{name} is {values[name]}; expected a number above 0.", parameter=name)


class _Runner:
    """Runs both sides with the same arguments."""

    def __init__(self, before: Side, after: Side, arguments: list[str], quiet: bool, progress: Callable[[str], object]) -> None:
        self._before, self._after, self._arguments, self._quiet, self._progress = before, after, arguments, quiet, progress
        self._limit: float | None = None

    def observe(self, steps: int | None, seconds: float) -> tuple[Observed, Observed]:
        """Run both once with all observations. The first run says how many steps the others make."""
        self._progress("observing BEFORE")
        begin = now_ns()
        first = self._run(self._before, observe=True, steps=steps, seconds=seconds)
        self._limit = LIMIT_FACTOR * (now_ns() - begin) / 1e9 + LIMIT_SECONDS
        if len(first.ends) < LEAST_STEPS:
            raise TrainError(
                f"BEFORE made {len(first.ends)} optimizer steps; expected at least {LEAST_STEPS}. Let it train longer."
            )
        self._progress("observing AFTER")
        second = self._run(self._after, observe=True, **({"whole": True} if first.finished else {"steps": len(first.ends)}))
        if len(second.ends) < LEAST_STEPS:
            raise TrainError(
                f"AFTER made {len(second.ends)} optimizer steps; expected at least {LEAST_STEPS}. Let it train longer."
            )
        return first, second

    def perturbed(self, steps: int) -> Observed:
        """Run BEFORE with each initial weight changed by one rounding error."""
        self._progress("running BEFORE with other rounding")
        return self._run(self._before, perturb=True, steps=steps)

    def rounds(self, steps: int, seconds: float, enough: Callable[[Pairs[Observed]], bool]) -> Pairs[Observed]:
        """Time both sides in turn."""

        def timed(side: Side, name: str) -> Callable[[], Observed]:
            def run() -> Observed:
                self._progress(f"timing {name}")
                return self._run(side, steps=steps)

            return run

        return alternate(timed(self._before, "BEFORE"), timed(self._after, "AFTER"), enough=enough, seconds=seconds)

    def quality(self, seeds: int, steps: int | None, *, metric: str | None, higher: bool, margin: float | None) -> Quality:
        """Run both sides with other seeds, to their end unless `steps` is given, and compare a metric."""

        def repeat(side: Side, name: str) -> Callable[[], Repeat]:
            numbers = iter(range(1, seeds + 1))

            def run() -> Repeat:
                seed = next(numbers)
                self._progress(f"running {name} with seed {seed} of {seeds}")
                observed = self._run(side, seed=seed, steps=steps, whole=steps is None, limited=False)
                value = final_loss(observed.losses) if metric is None else printed_metric(observed.output, metric)
                return Repeat(seed=seed, metric=value, losses=observed.losses)

            return run

        pairs = alternate(repeat(self._before, "BEFORE"), repeat(self._after, "AFTER"), enough=lambda pairs: False, most=seeds)
        return quality_of(
            pairs.before, pairs.after, name=metric or "final loss", higher=higher, margin=margin, of_losses=metric is None
        )

    def _run(self, side: Side, *, limited: bool = True, **options: object) -> Observed:
        return side.run(self._arguments, quiet=self._quiet, time_limit=self._limit if limited else None, **options)


def _speed(pairs: Pairs[Observed], samples: tuple[float, float] | None) -> Any:
    return speed_of([run.step_seconds for run in pairs.before], [run.step_seconds for run in pairs.after], samples=samples)


def _samples_per_step(first: Observed, second: Observed) -> tuple[float, float] | None:
    """SeenSamples per step of both, where they differ."""
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
        first_step=statistics.median(run.ends[0] for run in runs),
        host_bytes=int(statistics.median(run.host_bytes for run in runs)),
        device_bytes=int(statistics.median(run.device_bytes for run in runs)),
        code=observed.code,
    )


def _conditions(first: Observed, second: Observed, runs: Sequence[Observed]) -> Conditions:
    names = sorted(first.packages.keys() | second.packages.keys())
    versions = [(name, first.packages.get(name, "none"), second.packages.get(name, "none")) for name in names]
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


def compare_again(
    receipt: Receipt, *, quiet: bool = True, progress: Callable[[str], object] = lambda line: None
) -> tuple[Receipt, list[str]]:
    """Run the comparison of a receipt again. Returns the new receipt, and what does not hold."""
    call = dict(receipt.call)
    before, after = (Version(**call.pop(name)) for name in ("before", "after"))
    again = compare_versions(before, after, call.pop("arguments"), **call, quiet=quiet, progress=progress)
    wrong = [f"the code of {name} is another one" for name, old, new in _codes(receipt, again) if old != new]
    if again.verdict.status != receipt.verdict.status:
        wrong.append(f"the status is {again.verdict.status}, not {receipt.verdict.status}")
    if again.losses.verdict != receipt.losses.verdict:
        wrong.append(f"losses are {again.losses.verdict}, not {receipt.losses.verdict}")
    a, b = receipt.speed, again.speed
    if a is not None and b is not None and a.known and b.known and (a.low > b.high or b.low > a.high):
        wrong.append(f"the speed-up is {b.low:.3g} to {b.high:.3g}, not {a.low:.3g} to {a.high:.3g}")
    return again, wrong


def _codes(receipt: Receipt, again: Receipt) -> Iterator[tuple[str, Mapping[str, str], Mapping[str, str]]]:
    yield "BEFORE", receipt.before.code, again.before.code
    yield "AFTER", receipt.after.code, again.after.code
