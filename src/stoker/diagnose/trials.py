"""Trials: run the program in a fresh process, with a fix or without one, and compare speed and losses.

`try_advice` (`stoker diagnose --try`) takes a finding and returns it with the result of each trial. `TrialProcess` is the parent's
side of a process: it starts it, asks for measurement windows, and ends it. `TrialChild` is the child's side: the child of a diagnosis
with a shorter plan, which warms up and then measures a window whenever it is asked for one, so that another process can run in between.
Losses are kept as the program computes them and read at the end, so that nothing waits for them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from stoker._clock import now_ns
from stoker.diagnose import wording
from stoker.diagnose.advice import value_of
from stoker.diagnose.child import Child, Request, sandbox_for, start_child
from stoker.diagnose.edit_sites import EditSites, SiteFinder
from stoker.diagnose.experiments.base import Fix
from stoker.diagnose.experiments.table import FIXES, fix_named
from stoker.diagnose.finding import Finding
from stoker.diagnose.loops import NO_EDITS, FileEdits, WatchedIterator
from stoker.diagnose.measurements import Advice, Losses, Stretch, TrialResult, Verdict
from stoker.diagnose.recorder import StepSeries
from stoker.diagnose.seeds import draw_each_epoch, set_seeds
from stoker.diagnose.session import CACHED, REAL, Plan, Session, StepInput
from stoker.diagnose.thresholds import RULE
from stoker.diagnose.windows import phases, warm_up
from stoker.errors import TrainError

CHUNKS = 2
LEAST_CHUNK = 4  # steps of a GPU between two synchronizations
LEAST_STEPS = 2  # of a window on a CPU: several windows are compared, and steps may be long


class TrialRequest(Request, frozen=True, kw_only=True):
    """What is tried."""

    fix: str | None = None  # None for the baseline.
    value: int | None = None
    find_sites: bool = False  # whether to find the lines that a patch would edit


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Steps of one window; none after the warm-up. The trial then waits for the next request."""

    seconds: list[float] = []  # of each step; of a step on average, several times, where a GPU is used
    losses: list[float] = []  # of the first steps


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The last message of a trial."""

    losses: list[float] = []
    peak_bytes: int | None = None  # of the device's memory, or of the process where there is no device
    unused_reason: str | None = None  # why the fix changed nothing
    error: str | None = None
    sites: EditSites | None = None


Turn = Callable[[list[float]], float]
"""Sends the steps of a window and waits for the length of the next one in seconds; 0 where there is none."""


class TrialSession(Session):
    """A session that measures windows of the unchanged loop, each on request."""

    def __init__(self, *, on_done: Callable[[], None], fix: Fix | None, turn: Turn) -> None:
        super().__init__(TrialSession.windows, on_done=on_done)
        self._fix = fix
        self._turn = turn
        self._looped = StepSeries()
        self.endless = True  # epochs do not end, in any trial, so that all see the same batches

    def take_control(self) -> None:
        """The training loop is known: change what the fix changes here, and measure."""
        super().take_control()
        if self._fix is not None:
            self._fix.begin(self.hooks.roots, self.hooks.optimizer)

    def _real_batch(self, watched: WatchedIterator) -> Any:
        give = functools.partial(super()._real_batch, watched)
        return give() if self._fix is None else self._fix.batch(give())

    def windows(self) -> Plan:
        """Measure until no further window is asked for."""
        yield from warm_up(self)
        yield from phases(self)  # losses are seen here; from here on nothing is recorded that costs time
        mode = REAL
        if self._fix is not None and self._fix.caches and self.can_cache:
            self.cache_batches()
            self._fix.used, mode = True, CACHED
        if self.has_short_steps(mode):
            self.hooks.pause()
        stretch = self._turn([])
        while stretch > 0:
            # Another process had the machine, and workers have filled their queue meanwhile.
            yield from self.skip(mode, max(3, self.queue + 1))
            times: list[float] = []
            yield from self._chunks(mode, stretch, times) if self.device == "cuda" else self._each(mode, stretch, times)
            stretch = self._turn(times)

    def _each(self, mode: StepInput, stretch: float, times: list[float]) -> Plan:
        """Every step by itself."""
        series = self._looped
        series.begin_window()
        before = len(series.steps)
        yield from self.record(mode, stretch, LEAST_STEPS, series)
        if mode.cached:
            times += [one.without_data for one in series.steps[before:]]
        else:
            times += self.recorder.last_window(series, self.sources.training)

    def _chunks(self, mode: StepInput, stretch: float, times: list[float]) -> Plan:
        """Several steps between two synchronizations: the host runs ahead of the device, so the time of one step says little."""
        torch.cuda.synchronize()
        begin = now_ns()
        yield from self.skip(mode, LEAST_CHUNK)
        torch.cuda.synchronize()
        one = max(1e-6, (now_ns() - begin) / 1e9 / LEAST_CHUNK)
        length = max(LEAST_CHUNK, int(stretch / CHUNKS / one))
        whole: list[float] = []
        every: list[float] = []
        for _ in range(CHUNKS):
            broken = False
            begin = now_ns()
            for _ in range(length):
                step = yield mode
                broken |= step.new_epoch
            torch.cuda.synchronize()
            every.append((now_ns() - begin) / 1e9 / length)
            if not broken:
                whole.append(every[-1])
        times += whole or every  # where epochs are short, their ends are part of all


class TrialChild(Child):
    """The process of one trial."""

    answer_type = Outcome

    def __init__(self, request: TrialRequest, connection: Connection) -> None:
        # Files of the user as in a patch that is applied; on disk they stay as they are. They are too long for the command line.
        super().__init__(request, connection, msgspec.msgpack.decode(connection.recv_bytes(), type=dict[str, bytes]))
        self._fix = (
            fix_named(request.fix)(request.value) if request.fix is not None else SiteFinder() if request.find_sites else None
        )
        self.session = TrialSession(on_done=self._done, fix=self._fix, turn=self._take_turn)

    def run(self) -> NoReturn:
        """Run the program until its steps have been measured."""
        set_seeds()
        draw_each_epoch()
        if self._fix is not None:
            self._fix.install()
        super().run()

    def _take_turn(self, seconds: list[float]) -> float:
        self._connection.send_bytes(msgspec.msgpack.encode(Measured(seconds=seconds, losses=self._losses())))
        length: float = msgspec.msgpack.decode(self._connection.recv_bytes(), type=float)
        return length

    def _answer(self, failure: str | None) -> Outcome:
        if failure is None and not self.session.done:
            steps = self.session.hooks.steps
            failure = f"the program ended after {steps:,} steps, before it could be compared; let it train longer."
        return Outcome(
            losses=self._losses(),
            peak_bytes=peak_bytes(self.session.device),
            unused_reason=self._fix.unused_reason if self._fix is not None and not self._fix.used else None,
            error=failure,
            sites=self._sites(),
        )

    def _losses(self) -> list[float]:
        return [float(loss) for loss in self.session.hooks.losses]

    def _sites(self) -> EditSites | None:
        found = self.session.sources.training
        return self._fix.sites(found.loader if found is not None else None) if isinstance(self._fix, SiteFinder) else None


def peak_bytes(device: str) -> int | None:
    """The most memory so far: of the device, or of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_reserved()  # what is kept for graphs is in no other number
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = [line.split() for line in lines if line.startswith("VmHWM:")]
    return int(found[0][1]) * 1024 if found else None


def main(arguments: list[str]) -> NoReturn:
    """Run the request on the command line."""
    connection = Connection(int(arguments[0]))
    TrialChild(msgspec.json.decode(arguments[1], type=TrialRequest), connection).run()


class TrialProcess:
    """A running trial, seen from the process that compares. Errors in it are in its outcome, not raised."""

    def __init__(
        self,
        program: str | Path,
        arguments: Sequence[str] = (),
        *,
        fix: str | None = None,
        value: int | None = None,
        find_sites: bool = False,
        edits: FileEdits = NO_EDITS,
        module: bool = False,
        quiet: bool = False,
        limit_seconds: float,
    ) -> None:
        self._limit = limit_seconds
        self._name = str(program)
        self._outcome: Outcome | None = None
        self.losses: list[float] = []  # so far
        self._open = contextlib.ExitStack()
        sandbox = self._open.enter_context(sandbox_for(program, module=module))
        self._connection, other = Pipe()
        self._open.enter_context(self._connection)
        words = [str(one) for one in arguments]
        request = TrialRequest(program=self._name, module=module, arguments=words, fix=fix, value=value, find_sites=find_sites)
        with other:
            self._child = start_child(sandbox, request, other.fileno(), quiet=quiet, main=__name__)
        self._send(dict(edits))

    def is_ready(self) -> bool:
        """Wait until it has warmed up; False where it has ended."""
        return self._outcome is None and self._receive() is not None

    def stretch(self, seconds: float) -> Stretch | None:
        """Measure steps for `seconds`; None where it has ended."""
        if self._outcome is not None:
            return None
        self._send(seconds)
        measured = self._receive()
        return Stretch(seconds=measured.seconds) if measured is not None else None

    def end(self) -> Outcome:
        """End it and return its outcome."""
        while self._outcome is None:
            self._send(0.0)
            self._receive()
        return self._outcome

    def _send(self, message: float | dict[str, bytes]) -> None:
        with contextlib.suppress(OSError):  # it has ended, and says why
            self._connection.send_bytes(msgspec.msgpack.encode(message))

    def _receive(self) -> Measured | None:
        try:
            if not self._connection.poll(self._limit):
                raise TrainError(f"{self._name} took more than {self._limit:,.0f} s and was stopped.")
            message: Measured | Outcome = msgspec.msgpack.decode(self._connection.recv_bytes(), type=Measured | Outcome)
        except (EOFError, OSError):
            message = Outcome(error=f"{self._name} ended with code {self._child.wait()} before anything was measured.")
        except TrainError as error:
            message = Outcome(error=str(error))
        except BaseException:
            self._close()
            raise
        self.losses = message.losses
        if isinstance(message, Measured):
            return message
        self._outcome = message
        self._close()
        return None

    def _close(self) -> None:
        self._open.close()
        if self._child.poll() is None:
            with contextlib.suppress(TimeoutError):
                self._child.terminate()
        self._child.wait()


# ---- comparing: each advised fix in a fresh process with the same seed, in turn with the baseline ----
#
# A speed-up is the median ratio of measurement windows next to each other in time. Rounds are added until its interval is narrow. The
# interval includes the difference between two processes of the baseline; where that is large, a fix and the baseline have a second
# process each. Losses are compared step by step with those of the baseline, which must first agree with itself.

NAN = float("nan")
WINDOWS = 4  # of `seconds`: short ones in turn, because processors change their speed
SURE_ROUNDS = 6  # from which on the smallest and the largest ratio are the ends of an interval of 95 %
MOST_ROUNDS = 16
LIMIT_SECONDS = 60.0
COMPILE_SECONDS = 180.0
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
    processes: int = 1  # of each
    outcome: Outcome


@dataclass(kw_only=True)
class BaselineRuns:
    """The program without a fix, in two processes."""

    difference: float = 0.0  # between the two, as the logarithm of a ratio
    varies: bool = False  # whether that is more than the difference of windows, so that a second process of each fix is needed
    losses: list[list[float]] = field(default_factory=list)


Start = Callable[[str | None, int | None], "TrialProcess"]  # starts the program with a fix of this name and value, or without one


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
    """The finding with a `TrialResult` for each advice that could be tried, each in a fresh process."""
    # Steps of each trial are measured for `seconds`; after `at_most` seconds no trial begins. `tell` gets a line before each process.

    def start(fix: str | None, value: int | None) -> TrialProcess:
        tell(f"trying {fix}" if fix is not None else "measuring the baseline")
        limit = LIMIT_SECONDS + 20 * seconds + (COMPILE_SECONDS if fix in ("compile", "graph") else 0.0)
        return TrialProcess(program, arguments, fix=fix, value=value, module=module, quiet=quiet, limit_seconds=limit)

    return try_with(finding, start, seconds=seconds, at_most=at_most)


def try_with(finding: Finding, start: Start, *, seconds: float = 1.5, at_most: float | None = None) -> Finding:
    """`try_advice` with any way to run the program."""
    measured = finding.measurements
    if measured is None or not finding.next:
        return finding
    advised = [step.name for step in finding.next]
    also = [name for name in ALSO.get(finding.verdict, ()) if name not in advised]
    device = measured.device
    names = [name for name in [*advised, *also] if name in FIXES and (device == "cuda" or not fix_named(name).cuda_only)]
    names = names[: RULE.max_trials]
    values = {name: value_of(name, measured, finding.verdict) for name in names}
    baseline, by_name = run_in_turn(names, values, start, seconds=seconds, at_most=at_most, repeat=True)
    tried = {name: judge(name, baseline, compared) for name, compared in by_name.items()}
    steps = []
    for step in finding.next:
        one = tried.get(step.name)
        bound = wording.TRIED_AS.get(step.name, "") if one is not None and one.error is None else ""
        steps.append(msgspec.structs.replace(step, sentence=step.sentence + bound, tried=one) if one is not None else step)
    for name in also:
        one = tried.get(name)
        if one is not None and one.error is None and one.low > RULE.trial_min_gain:
            steps.append(Advice(name=name, sentence=wording.advice(name), predicted=None, tried=one))
    # Whether the baseline ran at another speed when it was diagnosed than when fixes were tried.
    found = [one.step_seconds for one in tried.values() if one.step_seconds is not None]
    before, after = measured.loop.median, statistics.median(found) if found else NAN
    if before > 0 and after > 0 and abs(math.log(after / before)) > RULE.trial_speed_change:
        note = wording.TRIAL["speed_changed"].format(before=before * 1e3, after=after * 1e3)
        measured = msgspec.structs.replace(measured, notes=[*measured.notes, note])
    return msgspec.structs.replace(finding, next=steps, measurements=measured)


def run_in_turn(
    names: Sequence[str],
    values: dict[str, int | None],
    start: Start,
    *,
    seconds: float = 1.5,
    at_most: float | None = None,
    repeat: bool = False,
    more: Callable[[BaselineRuns, dict[str, Comparison]], Iterable[str]] = lambda baseline, by_name: (),
) -> tuple[BaselineRuns, dict[str, Comparison]]:
    """The baseline against baseline, and each fix against the baseline; `more` names further ones, given the results of these.

    With `repeat` a fix and the baseline have a second process each where processes of the baseline differ.
    """

    def all_names() -> Iterator[str]:
        yield from names
        yield from more(baseline, by_name)

    # One baseline process stays, and waits while the other has its turn. Where two cannot run at once (each needs more than half of
    # the memory, or the same port), they run one after the other.
    if not names:
        return BaselineRuns(), {}
    begin = now_ns()

    def is_late() -> bool:
        return at_most is not None and now_ns() - begin > at_most * 1e9

    baseline = BaselineRuns()
    by_name: dict[str, Comparison] = {}
    base = start(None, None)
    if not base.is_ready():
        why = wording.TRIAL["baseline_failed"].format(error=base.end().error)
        return baseline, {name: Comparison(outcome=Outcome(error=why)) for name in names}
    again = alternate(base, start(None, None), seconds)
    baseline.losses.append(again.outcome.losses)
    beside = again.outcome.error is None and bool(again.base) and bool(again.tried)
    if beside:
        ratio, half = ratio_of(again.base, again.tried)
        baseline.difference = abs(math.log(ratio))
        baseline.losses.append(base.losses)
        baseline.varies = baseline.difference > max(half, 2 * RULE.trial_processes)
    else:
        baseline.losses[:] = [base.end().losses]
    before = [] if beside else alone(start(None, None), seconds).tried
    for name in all_names():
        if is_late():
            by_name[name] = Comparison(outcome=Outcome(error=wording.TRIAL["no_time"]))
        elif beside:
            found = by_name[name] = alternate(base, start(name, values.get(name)), seconds)
            repeats = repeat and baseline.varies and bool(found.base) and bool(found.tried) and not is_late()
            if repeats or len(found.base) < len(found.tried):  # the program has come to its end
                baseline.losses.append(base.end().losses)
                base = start(None, None)
                base.is_ready()
            if repeats:
                second = alternate(base, start(name, values.get(name)), seconds)
                if second.base and second.tried:
                    found.base, found.tried, found.processes = [*found.base, *second.base], [*found.tried, *second.tried], 2
        else:
            by_name[name] = alone(start(name, values.get(name)), seconds)
            after = alone(start(None, None), seconds)
            by_name[name].base, before = [*before, *after.tried], after.tried
            baseline.losses.append(after.outcome.losses)
    if beside:
        baseline.losses.append(base.end().losses)
    return baseline, by_name


def alternate(base: TrialProcess, tried: TrialProcess, seconds: float) -> Comparison:
    """Windows of both in turn, each as often before the other as after it, until their ratio is sure."""
    before: list[Stretch] = []
    after: list[Stretch] = []
    sides = ((base, before), (tried, after))
    most = MOST_ROUNDS if tried.is_ready() else 0
    for number in itertools.count():
        paired = len(before) == len(after) == number  # else a program has come to its end
        if number >= most or not paired or (number >= SURE_ROUNDS and ratio_of(before, after)[1] <= RULE.trial_sure):
            break
        for side, into in sides if number % 2 == 0 else sides[::-1]:
            stretch = side.stretch(seconds / WINDOWS)
            if stretch is not None and stretch.seconds:
                into.append(stretch)
        if before and number == 0:  # fewer rounds where steps are long: a window has eight at least, with those that do not count
            window = max(seconds / WINDOWS, CHUNKS * LEAST_CHUNK * before[0].median)
            most = max(WINDOWS, int(MOST_ROUNDS * seconds / WINDOWS / window))
    return Comparison(base=before, tried=after, outcome=tried.end())


def alone(trial: TrialProcess, seconds: float) -> Comparison:
    """Windows of one process."""
    stretches = [trial.stretch(seconds / WINDOWS) for _ in range(SURE_ROUNDS)] if trial.is_ready() else []
    return Comparison(tried=[one for one in stretches if one is not None and one.seconds], outcome=trial.end())


def judge(name: str, baseline: BaselineRuns, compared: Comparison) -> TrialResult:
    """The result of a trial of a fix."""
    fix = fix_named(name)
    return judge_by(baseline, compared, tolerance=fix.tolerance, samples_per_step=fix.samples_per_step)


def judge_by(
    baseline: BaselineRuns,
    compared: Comparison,
    *,
    tolerance: float | None,
    samples_per_step: float = 1.0,
    max_error: float = RULE.trial_max_error,
) -> TrialResult:
    """The result of a trial; losses may differ by `tolerance`; `samples_per_step` is a factor on the samples of a step."""
    outcome = compared.outcome
    error = outcome.error or outcome.unused_reason
    if error is None and not (compared.base and compared.tried):
        error = wording.TRIAL["ended"]
    if error is not None:
        return TrialResult(speedup=NAN, low=NAN, high=NAN, losses="not compared", error=error)
    ratio, half = ratio_of(compared.base, compared.tried)
    half = math.hypot(half, 2 * math.hypot(baseline.difference, RULE.trial_processes) / math.sqrt(compared.processes))
    ratio *= samples_per_step
    if half > max_error:
        low, high = ratio * math.exp(-half), ratio * math.exp(half)
        message = wording.TRIAL["varies"].format(low=low, high=high)
        return TrialResult(speedup=NAN, low=NAN, high=NAN, losses="not compared", error=message)
    losses, difference = compare_losses(baseline.losses, [outcome.losses], tolerance)
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
    """The speed-up, and half of the 95 % interval of its logarithm: by pairs of windows, or by each side where one has more."""
    if len(base) == len(tried):
        logs = sorted(math.log(one.median / other.median) for one, other in zip(base, tried, strict=True))
        # The median of any distribution lies between these two of `number` values in 95 of 100 cases; fewer than six say less.
        number = len(logs)
        end = max(0, int((number - 1 - 1.96 * math.sqrt(number)) / 2))
        half = (logs[-1 - end] - logs[end]) / 2 * max(1.0, SURE_ROUNDS / number)
        return math.exp(statistics.median(logs)), half if number > 1 else 2 * math.hypot(base[0].error, tried[0].error)
    sides = [[math.log(one.median) for one in side] for side in (base, tried)]
    errors = [statistics.stdev(side) / math.sqrt(len(side)) if len(side) > 1 else 0.0 for side in sides]
    return math.exp(statistics.fmean(sides[0]) - statistics.fmean(sides[1])), 2 * math.hypot(*errors)


def compare_losses(base: list[list[float]], tried: list[list[float]], tolerance: float | None) -> tuple[Losses, float | None]:
    """How losses differ, step by step, and the largest relative difference."""
    # Where the baseline does not agree with baseline from run to run, losses cannot be compared.
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
