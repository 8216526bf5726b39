"""Trials: `--try`, each advised fix in the program, compared with the program as it is by the engine of `stoker.compare`.

`try_advice` takes a finding and returns it with the result of each trial. `ProgramWithFix` is the extension of a run: it switches the fix
on from outside, when the training loop is known.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker._clock import now_ns
from stoker.compare.engine import Comparisons
from stoker.compare.observed import RunRequest
from stoker.compare.receipt import Receipt
from stoker.compare.sides import Version
from stoker.diagnose import wording
from stoker.diagnose.advice import value_of
from stoker.diagnose.edit_sites import SiteFinder
from stoker.diagnose.experiments.table import FIXES, fix_named
from stoker.diagnose.finding import Finding
from stoker.diagnose.hooks import StepHooks, copied, num_bytes
from stoker.diagnose.loops import Sources, WatchedIterator, length_of
from stoker.diagnose.measurements import Losses, TrialResult
from stoker.diagnose.rewriting import rewrite_imports, run_main
from stoker.diagnose.session import MAX_CACHED, MAX_CACHED_BYTES
from stoker.diagnose.thresholds import RULE
from stoker.errors import TrainError

NAN = float("nan")
TRIAL_SECONDS = 180.0  # in which rounds of one fix start: on a busy machine runs take longer
WIDTH = 0.1  # of the interval at which rounds end
OBSERVED_SECONDS = 4.0  # of the first run: it has enough steps to see what a fix does to the losses
LOSSES: dict[str, Losses] = {
    "equal": "equal", "rounding": "within tolerance", "tolerance": "within tolerance", "changed": "changed", "unknown": "not compared",
}  # fmt: skip


class Trials:
    """Versions of a program, compared with it one after the other until the time is over. A context manager."""

    def __init__(
        self, program: str | Path, arguments: Sequence[str], *, module: bool, quiet: bool, seconds: float, at_most: float | None,
        tell: Callable[[str], None], engine: Callable[..., Comparisons] = Comparisons,
    ) -> None:  # fmt: skip
        self._program, self._module, self._seconds = str(program), module, seconds
        self._until = None if at_most is None else now_ns() + int(at_most * 1e9)
        self._comparisons = engine(
            self.version(), arguments, seconds=OBSERVED_SECONDS, quiet=quiet, same_draws=True, progress=tell
        )  # fmt: skip

    def __enter__(self) -> Trials:
        self._comparisons.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._comparisons.__exit__(*error)

    def version(self, **changes: Any) -> Version:
        """Return a version of the program."""
        return Version(program=self._program, module=self._module, **changes)

    def compare(self, version: Version, tolerance: float | None) -> Receipt:
        """Compare a version with the program. Raises `TrainError` if one of them fails, or if the time is over."""
        left = math.inf if self._until is None else (self._until - now_ns()) / 1e9
        if left <= 0:
            raise TrainError(wording.TRIAL["no_time"])
        return self._comparisons.compare(version, budget=min(self._seconds, left), width=WIDTH, tolerance=tolerance, screen=True)


def try_advice(
    finding: Finding, program: str | Path, arguments: Sequence[str] = (), *, module: bool = False, quiet: bool = True,
    seconds: float = TRIAL_SECONDS, at_most: float | None = None, tell: Callable[[str], None] = lambda text: None,
    engine: Callable[..., Comparisons] = Comparisons,
) -> Finding:  # fmt: skip
    """Return the finding with a `TrialResult` for each advice that could be tried.

    Rounds of each trial start for `seconds`; after `at_most` seconds no trial starts. `tell` gets a line before each run.
    """
    measured = finding.measurements
    if measured is None or not finding.next:
        return finding
    advised = [step.name for step in finding.next]
    names = [name for name in advised if name in FIXES and (measured.device == "cuda" or not FIXES[name].cuda_only)]
    if not names:
        return finding
    tried: dict[str, TrialResult] = {}
    with Trials(
        program, arguments, module=module, quiet=quiet, seconds=seconds, at_most=at_most, tell=tell, engine=engine
    ) as trials:
        for name in names[: RULE.max_trials]:
            options = FixOptions(fix=name, value=value_of(name, measured, finding.verdict))
            tolerance = FIXES[name].tolerance
            tried[name] = tried_of(
                functools.partial(trials.compare, fixed(trials, options), tolerance), compares=tolerance is not None
            )
    worked = {name: result for name, result in tried.items() if result.error is None}
    steps = []
    for step in finding.next:
        tried_as = wording.TRIED_AS.get(step.name, "") if step.name in worked else ""
        steps.append(msgspec.structs.replace(step, sentence=step.sentence + tried_as, tried=tried.get(step.name)))
    # Whether the baseline ran at another speed when it was diagnosed than when fixes were tried.
    times = [result.step_seconds for result in worked.values() if result.step_seconds is not None]
    before, after = measured.loop.median, statistics.median(times) if times else 0.0
    if before > 0 and after > 0 and abs(math.log(after / before)) > RULE.trial_speed_change:
        note = wording.TRIAL["speed_changed"].format(before=before * 1e3, after=after * 1e3)
        measured = msgspec.structs.replace(measured, notes=[*measured.notes, note])
    return msgspec.structs.replace(finding, next=steps, measurements=measured)


def fixed(trials: Trials, options: FixOptions) -> Version:
    """Return the version of a program with a fix that is switched on from outside."""
    words = msgspec.json.encode(options).decode()
    return trials.version(extension=f"{__name__}:{ProgramWithFix.__name__}", options=words, title=f"with {options.fix}")


def tried_of(compare: Callable[[], Receipt], *, compares: bool = True) -> TrialResult:
    """Return what a receipt says of a trial, or why there is none. `compares` is False where a fix has other batches, so other losses."""
    try:
        receipt = compare()
    except TrainError as error:
        return TrialResult(speedup=NAN, low=NAN, high=NAN, losses="not compared", error=str(error).rstrip("."))
    speed, losses = receipt.speed, receipt.losses
    if speed is None:
        return TrialResult(speedup=NAN, low=NAN, high=NAN, losses="not compared", error=wording.TRIAL["no_time"])
    return TrialResult(
        speedup=speed.speedup,
        low=speed.low,
        high=speed.high,
        losses=LOSSES[losses.verdict] if compares else "not compared",
        largest_difference=losses.largest if compares and losses.steps else None,
        peak_bytes=receipt.after.device_bytes or receipt.after.host_bytes,
        step_seconds=statistics.median(receipt.before.step_seconds),
        repeats=not any(fact.name == "BEFORE again" for fact in receipt.facts),
        receipt=str(receipt),
    )


# ---- in the process of a trial ----


class FixOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried; without a fix, the lines are found that a patch would edit."""

    fix: str | None = None
    value: int | None = None


class ProgramWithFix:
    """The extension of a run that switches a fix on as soon as the training loop is known, or ends the run with the lines to edit."""

    def __init__(self, options: str, done: Callable[[], None]) -> None:
        chosen = msgspec.json.decode(options, type=FixOptions)
        self._fix = fix_named(chosen.fix)(chosen.value) if chosen.fix is not None else SiteFinder()
        self._done = done
        self._hooks = StepHooks()
        self._sources = Sources(self._hooks)
        self._kept: list[Any] = []

    def run(self, request: RunRequest) -> None:
        """Run the program as the main module."""
        self._fix.install()
        self._hooks.install(on_step=self._search)
        self._sources.watch_loaders()
        rewrite_imports(self._sources)
        run_main(request.program, request.arguments, self._sources, module=request.module)

    def answer(self) -> bytes:
        """Return the lines to edit. Raises `TrainError` if the fix has changed nothing."""
        fix, source = self._fix, self._sources.training
        if not fix.used:
            raise TrainError(fix.unused_reason)
        sites = fix.sites(source.loader if source is not None else None) if isinstance(fix, SiteFinder) else None
        return msgspec.msgpack.encode(sites)

    def _search(self) -> None:
        hooks, fix = self._hooks, self._fix
        hooks.end_step()
        if hooks.steps == 1:
            hooks.find_roots()
        if self._sources.find_training_loop():
            hooks.keep_roots()
            hooks.pause()
            self._sources.next_batch = self._kept_batch if fix.caches else lambda watched: fix.batch(next(watched.iterator))
            fix.begin(hooks.roots, hooks.optimizer)
            if isinstance(fix, SiteFinder):
                self._done()

    def _kept_batch(self, watched: WatchedIterator) -> Any:
        """Keep the first batches, and give them again in the epochs after it."""
        watched.given += 1
        if len(self._kept) < MAX_CACHED and num_bytes(self._kept) <= MAX_CACHED_BYTES and not self._fix.used:
            batch = next(watched.iterator)
            self._kept.append(copied(batch))
            return batch
        self._fix.used = True
        if watched.given > (length_of(watched.source.iterable) or math.inf):
            raise StopIteration
        return copied(self._kept[watched.given % len(self._kept)])
