"""Trials: run the program in a fresh process, with a fix or without one, and measure its steps on request.

`TrialProcess` is the parent's side: it starts the process, asks for measurement windows, and ends it. `TrialChild` is the child's side: the
child of a diagnosis with a shorter plan, which warms up and then measures a window whenever it is asked for one, so that another process
can run in between. Losses are kept as the program computes them and read at the end, so that nothing waits for them.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from stoker._clock import now_ns
from stoker.diagnose.api import scratch_for, start_child
from stoker.diagnose.child import Child, Request, one_line
from stoker.diagnose.fixes import Fix, fix_named, set_seeds
from stoker.diagnose.loaders import WatchedIterator
from stoker.diagnose.measurements import Stretch
from stoker.diagnose.recorder import Series
from stoker.diagnose.session import CACHED, REAL, Plan, Session, StepInput
from stoker.diagnose.windows import phases, warm_up
from stoker.errors import TrainError

START = "import sys; from stoker.diagnose.trials import main; main(sys.argv[1:])"
CHUNKS = 2
LEAST_STEPS = 4


class TrialRequest(Request, frozen=True, kw_only=True):
    """What is tried."""

    fix: str | None = None
    """None for the baseline."""
    value: int | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Steps of one window; none after the warm-up. The trial then waits for the next request."""

    seconds: list[float] = []
    """Of each step; of a step on average, several times, where a GPU is used."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The last message of a trial."""

    losses: list[float] = []
    peak_bytes: int | None = None
    """Of the device's memory, or of the process where there is no device."""
    unused_reason: str | None = None
    """Why the fix changed nothing."""
    error: str | None = None


Turn = Callable[[list[float]], float]
"""Sends the steps of a window and waits for the length of the next one in seconds; 0 where there is none."""


class TrialSession(Session):
    """A session that measures windows of the unchanged loop, each on request."""

    def __init__(self, *, on_done: Callable[[], None], fix: Fix | None, turn: Turn) -> None:
        super().__init__(on_done=on_done)
        self._fix = fix
        self._turn = turn
        self._looped = Series()
        self.endless = True  # epochs do not end, in any trial, so that all see the same batches

    def take_control(self) -> None:
        """The training loop is known: change what the fix changes here, and measure."""
        super().take_control()
        if self._fix is not None:
            self._fix.begin(self.hooks.roots, self.hooks.optimizer)

    def _real_batch(self, watched: WatchedIterator) -> Any:
        value = super()._real_batch(watched)
        return value if self._fix is None else self._fix.batch(value)

    def _make_plan(self) -> Plan:
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
            times += self.recorder.last_window(series, self.sources.found)

    def _chunks(self, mode: StepInput, stretch: float, times: list[float]) -> Plan:
        """Several steps between two synchronizations: the host runs ahead of the device, so the time of one step says little."""
        torch.cuda.synchronize()
        begin = now_ns()
        yield from self.skip(mode, LEAST_STEPS)
        torch.cuda.synchronize()
        one = max(1e-6, (now_ns() - begin) / 1e9 / LEAST_STEPS)
        length = max(LEAST_STEPS, int(stretch / CHUNKS / one))
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

    def __init__(self, request: TrialRequest, connection: Connection) -> None:
        super().__init__(request, connection)
        self._fix = fix_named(request.fix)(request.value) if request.fix is not None else None
        self._trial = TrialSession(on_done=self._done, fix=self._fix, turn=self._take_turn)
        self.session = self._trial

    def run(self) -> NoReturn:
        """Run the program until its steps have been measured."""
        set_seeds()
        if self._fix is not None:
            self._fix.install()
        super().run()

    def _take_turn(self, seconds: list[float]) -> float:
        self._connection.send_bytes(msgspec.msgpack.encode(Measured(seconds=seconds)))
        length: float = msgspec.msgpack.decode(self._connection.recv_bytes(), type=float)
        return length

    def _end(self, failure: str | None) -> NoReturn:
        try:
            self._scratch.remove()
            self.session.remove()
            if self.session.failure is not None:
                raise self.session.failure
            outcome = self._outcome(failure)
        except Exception as error:
            traceback.print_exception(error)
            message = f"{self._request.program} could not be measured: {type(error).__name__}: {one_line(error)}"
            outcome = Outcome(error=failure or message)
        self._leave_with(outcome)

    def _outcome(self, failure: str | None) -> Outcome:
        session, fix = self._trial, self._fix
        steps = session.hooks.steps
        if failure is None and not session.done:
            failure = f"the program ended after {steps:,} steps, before it could be compared; let it train longer."
        return Outcome(
            losses=[float(loss) for loss in session.hooks.losses],
            peak_bytes=peak_bytes(session.device),
            unused_reason=fix.unused_reason if fix is not None and not fix.used else None,
            error=failure,
        )


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
        module: bool = False,
        quiet: bool = False,
        limit_seconds: float,
    ) -> None:
        self._limit = limit_seconds
        self._name = str(program)
        self._outcome: Outcome | None = None
        self._open = contextlib.ExitStack()
        folder = self._open.enter_context(scratch_for(program, module=module))
        self._connection, other = Pipe()
        self._open.enter_context(self._connection)
        words = [str(one) for one in arguments]
        request = TrialRequest(program=self._name, module=module, arguments=words, scratch=str(folder), fix=fix, value=value)
        with other:
            self._child = start_child(request, START, other.fileno(), quiet=quiet)

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

    def _send(self, seconds: float) -> None:
        with contextlib.suppress(OSError):  # it has ended, and says why
            self._connection.send_bytes(msgspec.msgpack.encode(seconds))

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
