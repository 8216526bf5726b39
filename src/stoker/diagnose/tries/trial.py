"""A trial: one run of the program in a fresh process, with a fix or as it is, until its steps have been measured.

It is the child of a diagnosis with a shorter plan: warm up, one clean stretch of the loop as it is, end. Losses are kept as the
program computes them, and read at the end, so that nothing waits for them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from stoker.clock import now_ns
from stoker.diagnose.boundaries import Times
from stoker.diagnose.child import Child, Request, _leave, _one_line
from stoker.diagnose.session import CACHED, CLEAN_STEPS, TRUE, Plan, Session
from stoker.diagnose.tries import fix_named
from stoker.diagnose.tries.fix import Fix
from stoker.diagnose.tries.seeds import set_seeds
from stoker.diagnose.workers import wait_for_workers
from stoker.errors import TrainError

START = "import sys; from stoker.diagnose.tries.trial import main; main(sys.argv[1:])"
CHUNKS = 8


class TrialRequest(Request, frozen=True, kw_only=True):
    """What is tried."""

    fix: str | None = None
    """None for the program as it is."""
    value: int | None = None
    stretch_seconds: float = 1.5


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    seconds: list[float] = []
    """Of each step; of a step on average, several times, where a GPU is used."""
    losses: list[float] = []
    peak_bytes: int | None = None
    """Of the device's memory, or of the process where there is no device."""
    device: str = "cpu"
    nothing: str | None = None
    """Why the fix changed nothing."""
    error: str | None = None


class TrialSession(Session):
    """A session whose only stretch is the loop as it is."""

    def __init__(self, *, on_done: Callable[[], None], fix: Fix | None, stretch_seconds: float) -> None:
        super().__init__(on_done=on_done)
        self.seconds: list[float] = []
        self._fix = fix
        self._stretch_seconds = stretch_seconds
        self._taken = True  # epochs do not end, in any trial, so that all see the same batches

    def take_control(self) -> None:
        """The training loop is known: change what the fix changes here, and measure."""
        super().take_control()
        if self._fix is not None:
            self._fix.begin(self.boundaries.roots, self.boundaries.optimizer)

    def _stretches(self) -> Plan:
        yield from self._warm_up()
        mode = TRUE
        if self._fix is not None and self._fix.caches and self._can_cache:
            self._collect()
            wait_for_workers(self._loader_iterator)
            self._fix.used, mode = True, CACHED
            yield from self._settle(mode, 2)
        if self.device == "cuda":
            yield from self._chunks()
            return
        steps: list[Times] = []
        yield from self._steps(mode, self._stretch_seconds, CLEAN_STEPS, steps)
        self.seconds = [one.without_data if mode.cached else one.seconds for one in steps]

    def _chunks(self) -> Plan:
        """Some steps between two waits for the device: the host runs ahead of it, so the time of one step says little."""
        mode = CACHED if self._fix is not None and self._fix.used and self._fix.caches else TRUE
        torch.cuda.synchronize()
        begin = now_ns()
        yield from self._settle(mode, 4)
        torch.cuda.synchronize()
        one = max(1e-6, (now_ns() - begin) / 4e9)
        length = max(3, int(self._stretch_seconds / CHUNKS / one))
        for _ in range(CHUNKS):
            broken = False
            begin = now_ns()
            for _ in range(length):
                times = yield mode
                broken |= times.broken
            torch.cuda.synchronize()
            if not broken or not self.seconds:
                self.seconds.append((now_ns() - begin) / 1e9 / length)


class Trial(Child):
    """The process of one trial."""

    def __init__(self, request: TrialRequest, connection: Connection) -> None:
        super().__init__(request, connection)
        self._fix = fix_named(request.fix)(request.value) if request.fix is not None else None
        self._trial = TrialSession(on_done=self._done, fix=self._fix, stretch_seconds=request.stretch_seconds)
        self.session = self._trial

    def run(self) -> NoReturn:
        """Run the program until its steps have been measured."""
        set_seeds()
        if self._fix is not None:
            self._fix.install()
        super().run()

    def _end(self, failure: str | None) -> NoReturn:
        try:
            self._scratch.remove()
            self.session.remove()
            if self.session.failure is not None:
                raise self.session.failure
            outcome = self._outcome(failure)
        except Exception as error:
            traceback.print_exception(error)
            told = f"{self._request.program} could not be measured: {type(error).__name__}: {_one_line(error)}"
            outcome = Outcome(error=failure or told)
        self._connection.send_bytes(msgspec.json.encode(outcome))
        self._connection.close()
        _leave()

    def _outcome(self, failure: str | None) -> Outcome:
        trial, fix = self._trial, self._fix
        steps = trial.boundaries.steps
        if failure is None and len(trial.seconds) < 4:
            raise TrainError(f"the program ended after {steps:,} steps; expected more than {CLEAN_STEPS} to measure.")
        return Outcome(
            seconds=trial.seconds,
            losses=[float(loss) for loss in trial.boundaries.losses],
            peak_bytes=peak_bytes(trial.device),
            device=trial.device,
            nothing=fix.nothing if fix is not None and not fix.used else None,
            error=failure,
        )


def peak_bytes(device: str) -> int | None:
    """The most memory so far: of the device, or of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = [line.split() for line in lines if line.startswith("VmHWM:")]
    return int(found[0][1]) * 1024 if found else None


def main(arguments: list[str]) -> NoReturn:
    """Run the request that the command line holds."""
    connection = Connection(int(arguments[0]), readable=False)
    Trial(msgspec.json.decode(arguments[1], type=TrialRequest), connection).run()
