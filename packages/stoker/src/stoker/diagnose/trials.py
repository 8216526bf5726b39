"""Trials: `--try`, each advised fix in a fresh process, compared with the baseline (rounds.py, comparison.py).

`try_advice` takes a finding and returns it with the result of each trial. `TrialProcess` is the parent's side of a process: it starts
it, asks for measurement windows, and ends it. `TrialChild` is the child's side: the child of a diagnosis with a shorter plan, which warms
up and then measures a window whenever it is asked for one, so that another process can run in between. Losses are kept as the program
computes them and read at the end, so that nothing waits for them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import resource
import statistics
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from stoker._clock import now_ns
from stoker.compare.seeding import draw_each_epoch, set_seeds
from stoker.diagnose import wording
from stoker.diagnose.advice import value_of
from stoker.diagnose.child import Child, Request, sandbox_for, start_child
from stoker.diagnose.comparison import judge
from stoker.diagnose.edit_sites import EditSites, SiteFinder
from stoker.diagnose.experiments.base import Fix
from stoker.diagnose.experiments.table import FIXES, fix_named
from stoker.diagnose.finding import Finding
from stoker.diagnose.loops import WatchedIterator
from stoker.diagnose.measurements import Advice, Stretch, TrialResult, Verdict
from stoker.diagnose.recorder import StepSeries
from stoker.diagnose.rewriting import NO_EDITS, FileEdits
from stoker.diagnose.rounds import Rounds, TimedProcess
from stoker.diagnose.session import CACHED, REAL, Plan, Session, StepInput
from stoker.diagnose.thresholds import RULE
from stoker.diagnose.windows import phases, warm_up
from stoker.errors import TrainError

CHUNKS = 2
LEAST_CHUNK = 4  # steps of a GPU between two synchronizations
LEAST_STEPS = 2  # of a window on a CPU: several windows are compared, and steps may be long
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


def try_advice(
    finding: Finding,
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    seconds: float = 1.5,
    at_most: float | None = None,
    tell: Callable[[str], None] = lambda text: None,
    run: Callable[..., TimedProcess] | None = None,
    **options: Any,
) -> Finding:
    """Return the finding with a `TrialResult` for each advice that could be tried, each in a fresh process.

    Steps of each trial are measured for `seconds`; after `at_most` seconds no trial starts. `tell` gets a line before each process. `run`
    runs the program with `options`.
    """

    def start(fix: str | None = None, value: int | None = None) -> TimedProcess:
        tell(f"trying {fix}" if fix is not None else "measuring the baseline")
        limit = limit_of(seconds, compiles=fix in ("compile", "graph"))
        return (run or TrialProcess)(program, arguments, fix=fix, value=value, limit_seconds=limit, **options)

    measured = finding.measurements
    if measured is None or not finding.next:
        return finding
    advised = [step.name for step in finding.next]
    also = [name for name in ALSO.get(finding.verdict, ()) if name not in advised]
    names = [name for name in [*advised, *also] if name in FIXES and (measured.device == "cuda" or not FIXES[name].cuda_only)]
    if not names:
        return finding
    tried: dict[str, TrialResult] = {}
    with Rounds(start, seconds=seconds, at_most=at_most) as rounds:
        for name in names[: RULE.max_trials]:
            value, fix = value_of(name, measured, finding.verdict), FIXES[name]
            compared = rounds.compare(functools.partial(start, name, value))
            tried[name] = judge(rounds.baseline, compared, tolerance=fix.tolerance, samples_per_step=fix.samples_per_step)
    worked = {name: result for name, result in tried.items() if result.error is None}
    steps = []
    for step in finding.next:
        tried_as = wording.TRIED_AS.get(step.name, "") if step.name in worked else ""
        steps.append(msgspec.structs.replace(step, sentence=step.sentence + tried_as, tried=tried.get(step.name)))
    for name in also:
        if name in worked and worked[name].low > RULE.trial_min_gain:
            steps.append(Advice(name=name, sentence=wording.advice(name), predicted=None, tried=worked[name]))
    # Whether the baseline ran at another speed when it was diagnosed than when fixes were tried.
    times = [result.step_seconds for result in worked.values() if result.step_seconds is not None]
    before, after = measured.loop.median, statistics.median(times) if times else 0.0
    if before > 0 and after > 0 and abs(math.log(after / before)) > RULE.trial_speed_change:
        note = wording.TRIAL["speed_changed"].format(before=before * 1e3, after=after * 1e3)
        measured = msgspec.structs.replace(measured, notes=[*measured.notes, note])
    return msgspec.structs.replace(finding, next=steps, measurements=measured)


def limit_of(seconds: float, *, compiles: bool) -> float:
    """Return the time limit of a process whose steps are measured for some seconds per comparison."""
    return LIMIT_SECONDS + 20 * seconds + (COMPILE_SECONDS if compiles else 0.0)


# ---- in the process of a trial ----


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

    peak_bytes: int | None = None  # of the device's memory, or of the process where there is no device
    error: str | None = None  # why it ended before it was told to, or why the fix changed nothing
    sites: EditSites | None = None


class TrialSession(Session):
    """A session that measures windows of the unchanged loop, each on request.

    `turn` sends the steps of a window and waits for the length of the next one in seconds; 0 if there is none.
    """

    def __init__(self, *, on_done: Callable[[], None], fix: Fix | None, turn: Callable[[list[float]], float]) -> None:
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
            times += [step.without_data for step in series.steps[before:]]
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
        losses = [float(loss) for loss in self.session.hooks.losses]
        self._connection.send_bytes(msgspec.msgpack.encode(Measured(seconds=seconds, losses=losses)))
        length: float = msgspec.msgpack.decode(self._connection.recv_bytes(), type=float)
        return length

    def _answer(self, failure: str | None) -> Outcome:
        if failure is None and not self.session.done:
            steps = self.session.hooks.steps
            failure = f"the program ended after {steps:,} steps, before it could be compared; let it train longer."
        if failure is None and self._fix is not None and not self._fix.used:
            failure = self._fix.unused_reason
        source, sites = self.session.sources.training, None
        if isinstance(self._fix, SiteFinder):
            sites = self._fix.sites(source.loader if source is not None else None)
        return Outcome(peak_bytes=peak_bytes(self.session.device), error=failure, sites=sites)


def peak_bytes(device: str) -> int:
    """Return the most memory so far: of the device, or of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_reserved()  # what is kept for graphs is in no other number
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: list[str]) -> NoReturn:
    """Run the request on the command line."""
    connection = Connection(int(arguments[0]))
    TrialChild(msgspec.json.decode(arguments[1], type=TrialRequest), connection).run()


# ---- in the process that compares ----


class TrialProcess:
    """A running trial. If it fails, `error` says why; nothing is raised."""

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
        self.losses: list[float] = []
        self.peak_bytes: int | None = None
        self.error: str | None = None
        self.sites: EditSites | None = None
        self._limit, self._name, self._has_ended = limit_seconds, str(program), False
        self._open = contextlib.ExitStack()
        sandbox = self._open.enter_context(sandbox_for(program, module=module))
        self._connection, other = Pipe()
        self._open.enter_context(self._connection)
        words = [str(word) for word in arguments]
        request = TrialRequest(program=self._name, module=module, arguments=words, fix=fix, value=value, find_sites=find_sites)
        with other:
            self._child = start_child(sandbox, request, other.fileno(), quiet=quiet, main=__name__)
        self._send(dict(edits))

    def is_ready(self) -> bool:
        """Wait until it has warmed up; False if it has ended."""
        return self._receive() is not None

    def stretch(self, seconds: float) -> Stretch | None:
        """Measure steps for `seconds`; None if it has ended."""
        self._send(seconds)
        measured = self._receive()
        return Stretch(seconds=measured.seconds) if measured is not None else None

    def end(self) -> None:
        """End it."""
        while not self._has_ended:
            self.stretch(0.0)

    def _send(self, message: float | dict[str, bytes]) -> None:
        with contextlib.suppress(OSError):  # it has ended, and says why
            self._connection.send_bytes(msgspec.msgpack.encode(message))

    def _receive(self) -> Measured | None:
        if self._has_ended:
            return None
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
        if isinstance(message, Measured):
            self.losses = message.losses
            return message
        self.peak_bytes, self.error, self.sites = message.peak_bytes, message.error, message.sites
        self._close()
        return None

    def _close(self) -> None:
        self._has_ended = True
        self._open.close()
        if self._child.poll() is None:
            with contextlib.suppress(TimeoutError):
                self._child.terminate()
        self._child.wait()
