"""The child process, in which the user's program runs and is measured.

It is started with a file descriptor and a request. The program is the main module of this process, with its own arguments and folder.
When enough is measured, the child sends one message through the file descriptor and ends at once: nothing of the program runs after
that, and no checkpoint is written.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import multiprocessing
import os
import sys
import traceback
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

import msgspec

from stoker.diagnose.hooks import is_own, shown
from stoker.diagnose.loops import NO_EDITS, FileEdits, OwnLoader, rewrite_imports
from stoker.diagnose.measurements import Measurements
from stoker.errors import StokerError, TrainError

EXITED = "exited with code"
_exit = os._exit


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to run and how to measure it."""

    program: str  # a path, or the name of a module with `module=True`
    module: bool = False
    arguments: list[str] = []
    pace: float = 1.0  # scales the length of all measurement windows
    seconds: float | None = None  # time limit of measuring, from the first measured step
    check_seconds: float = 0.0  # time to look for faults in the batches, after everything is measured


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements, or one line that says why there are none."""

    measurements: Measurements | None = None
    wrong: list[str] = []  # faults of the batches
    error: str | None = None
    complete: bool = True  # False: what is known so far, sent in case that native code ends the process in a later window


class Child:
    """One run of one program."""

    def __init__(self, request: Request, connection: Connection, edits: FileEdits = NO_EDITS) -> None:
        from stoker.diagnose.measure_windows import measure_all
        from stoker.diagnose.session import Session  # torch is imported here

        self._request = request
        self._connection = connection
        self._edits = edits
        self._pid = os.getpid()
        self.session = Session(measure_all, on_done=self._done, seconds=request.seconds, pace=request.pace)
        self.session.on_progress = self._send_so_far

    def run(self) -> NoReturn:
        """Run the program to its end, or until enough is measured."""
        if not faulthandler.is_enabled():
            faulthandler.enable()  # where native code aborts, the line that called it is shown
        self.session.install()
        rewrite_imports(self.session.sources, self._edits)
        os._exit = self._leave_early
        _refuse_spawn()
        failure: str | None = None
        try:
            self._run_program()
        except SystemExit as end:
            if end.code not in (None, 0):
                failure = f"{self._request.program} {EXITED} {end.code!r}"
        except KeyboardInterrupt:
            failure = f"{self._request.program} was interrupted"
        except BaseException as error:
            lines = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
            line = f" ({shown(lines[-1].filename)}:{lines[-1].lineno})" if lines else ""
            if isinstance(error, SyntaxError) and error.lineno:
                line = f" line {error.lineno}"
            raised = f"raised {type(error).__name__}: " if not isinstance(error, StokerError) else ""
            failure = f"{self._request.program}{line}{' ' if raised else ': '}{raised}{one_line(error)}"
            session = self.session
            if session.fix_on is not None:  # caused by a fix; everything that the verdict needs is measured
                session.recorder.notes.append(f"the gain of {session.fix_on} could not be measured: {failure}.")
                failure = None
            elif not isinstance(error, StokerError):
                traceback.print_exception(error.with_traceback(_from_own(error.__traceback__)))
        if os.getpid() != self._pid:  # a fork of the program that has ended
            _exit(0)
        self._end(failure)

    def _run_program(self) -> None:
        request, watch = self._request, self.session.sources
        if request.module:
            spec = _find(request.program)
            sys.path[0] = str(Path.cwd())
        else:
            path = Path(request.program)
            sys.path[0] = str(path.resolve().parent)
            spec = ModuleSpec("__main__", None, origin=str(path))
        file = str(spec.origin)
        loader = OwnLoader("__main__", file, watch, self._edits)
        module = ModuleType("__main__")
        module.__file__, module.__loader__ = file, loader
        module.__spec__ = spec if request.module else None
        module.__package__ = spec.parent if request.module else None
        module.__dict__["__builtins__"] = __builtins__
        sys.argv = [file, *request.arguments]
        sys.modules["__main__"] = module
        loader.exec_module(module)

    def _leave_early(self, status: int) -> NoReturn:
        """In place of `os._exit`, which would end this process without an answer."""
        if os.getpid() != self._pid:
            _exit(status)
        self._end(f"{self._request.program} {EXITED} {status}" if status else None)

    def _done(self) -> None:
        """End the program: enough is measured."""
        if os.getpid() == self._pid:
            self._end(None)

    def _send_so_far(self, measured: Measurements) -> None:
        if os.getpid() == self._pid:
            self._connection.send_bytes(msgspec.msgpack.encode(Answer(measurements=measured, complete=False)))

    def _end(self, failure: str | None) -> NoReturn:
        session = self.session
        try:
            session.remove()
            if session.failure is not None:
                raise session.failure
            ranks = session.ranks
            found = session.recorder.of_rank(ranks.rank) if ranks is not None else None
            if ranks is None or found is None:
                measured = session.measurements()
            else:
                ranks.publish(found)
                measured = ranks.take_turns(session.measurements)
                measured = msgspec.structs.replace(measured, ranks=ranks.all()) if ranks.rank == 0 else measured
            wrong: list[str] = []
            if self._request.check_seconds:
                from stoker.diagnose.correctness import find_faults

                wrong = find_faults(session.sources, measured.losses, seconds=self._request.check_seconds)
            if failure is not None:
                notes = [f"{failure}; only what was measured before is known.", *measured.notes]
                measured = msgspec.structs.replace(measured, notes=notes)
            answer = Answer(measurements=measured, wrong=wrong)
        except StokerError as error:
            answer = Answer(error=failure or f"{self._request.program}: {error}")
        except Exception as error:
            traceback.print_exception(error)
            answer = Answer(error=f"{self._request.program} could not be measured: {type(error).__name__}: {one_line(error)}")
        self._leave_with(answer)

    def _leave_with(self, answer: msgspec.Struct) -> NoReturn:
        """Send the answer, and end this process and its workers without running more of the program."""
        # Not JSON: a loss may be NaN.
        self._connection.send_bytes(msgspec.msgpack.encode(answer))
        self._connection.close()
        for worker in multiprocessing.active_children():
            worker.terminate()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        _exit(0)


def _from_own(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first line of the user's on; whole if it has none."""
    first = trace
    while first is not None and not is_own(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or trace


def _refuse_spawn() -> None:
    """Let `torch.multiprocessing.spawn` say at once what to do: what other processes train cannot be measured from here."""
    import torch.multiprocessing as processes

    def refused(fn: object, args: object = (), nprocs: int = 1, *more: object, **named: object) -> NoReturn:
        raise TrainError(
            f"the training runs in processes started by torch.multiprocessing ({nprocs}), which cannot be measured. Call the function "
            "with the rank of the environment variable RANK instead, and run: torchrun --nproc-per-node "
            f"{nprocs} -m stoker diagnose {' '.join(sys.argv)}"
        )

    for owner in (processes, sys.modules["torch.multiprocessing.spawn"]):
        for name in ("spawn", "start_processes"):
            setattr(owner, name, refused)


def _find(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise TrainError(f"there is no module {name!r} that can be run from {Path.cwd()}.")
    return spec


def one_line(error: BaseException) -> str:
    """The message of an error in one line."""
    lines = str(error).strip().splitlines() or ["(no message)"]
    return lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"


def main(arguments: list[str]) -> NoReturn:
    """Run the request in the command line arguments."""
    connection = Connection(int(arguments[0]), readable=False)
    request = msgspec.json.decode(arguments[1], type=Request)
    Child(request, connection).run()
