"""The child process in which the user's program runs and is measured, and how it is started.

`run_child` starts a child in a sandbox with a `Request`, and waits for its `Answer`. In the child, `Child.run` runs the program as the
main module, with its own arguments and folder, while the `Session` measures it. When enough is measured, the child sends its answer and
exits at once: no more code of the program runs, and no checkpoint is written. `stoker audit` has a subclass of `Child`.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Generic, NoReturn, TypeVar

import msgspec
import psutil

from stoker._clock import now_ns
from stoker.diagnose.hooks import is_own, shown
from stoker.diagnose.loops import LONGER_EPOCHS
from stoker.diagnose.measurements import Measurements
from stoker.diagnose.other_processes import OtherProcesses
from stoker.diagnose.rewriting import rewrite_imports, run_main
from stoker.errors import OptionError, StokerError, TrainError
from stoker.sandbox import Sandbox, refusal

EXITED = "exited with code"
POLL_SECONDS = 0.5  # how often to check that the child still runs
ASKED_SECONDS = 5.0  # to answer after it was asked to end: to measure the rates of the machine takes 1.5 s
SHOWN_LINES = 40  # last lines of stderr that are shown of a script that fails, where its output is discarded
_exit = os._exit


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to run and how to measure it."""

    program: str  # a path, or the name of a module with `module=True`
    module: bool = False
    arguments: list[str] = []
    pace: float = 1.0  # scales the length of all measurement windows
    seconds: float | None = None  # time limit of measuring, from the first measured step
    check_seconds: float = 0.0  # time to search the batches for faults, after everything is measured
    avoid: tuple[str, ...] = ("compile",)  # fixes that are not measured


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements, or a one-line error that says why there are none."""

    measurements: Measurements | None = None
    wrong: list[str] = []  # faults of the batches
    error: str | None = None
    repeat_without: str | None = None  # a fix with which the program failed before everything was measured that a verdict needs
    complete: bool = True  # False: what is known so far, in case native code ends the process in a later window

    @property
    def is_of_use(self) -> bool:
        """Whether it says more than that measuring has begun."""
        return self.complete or self.measurements is not None


T = TypeVar("T", bound=Answer)


# ---- in the process that starts the child ----


def sandbox_for(program: str | Path, *, module: bool) -> Sandbox:
    """The sandbox of a program, not entered yet. Raises `OptionError` if there is no such program."""
    if not module and not Path(program).is_file():
        raise OptionError(f"{program} {'is a folder' if Path(program).is_dir() else 'does not exist'}; expected a Python script.")
    return Sandbox(None if module else Path(program))


def start_child(
    sandbox: Sandbox, request: Request, connection: int, *, quiet: bool, main: str = __name__, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a sandbox that calls `main` of a module with a file descriptor for its answer and a request.

    With `quiet` its output is discarded, except that its errors go to the file descriptor `stderr` if there is one.
    """
    enter_sandbox = "from stoker.sandbox import enter; enter(sys.argv.pop())"
    # Modules of the current folder must not hide those that stoker imports; the program gets its own path later.
    code = f"import sys; sys.path[: not sys.flags.safe_path] = []; {enter_sandbox}; from {main} import main; main(sys.argv[1:])"
    # Without the log lines of torch's profiler, and with the same order of sets of strings each time.
    environ = {"PYTHONHASHSEED": "0", **os.environ, "KINETO_LOG_LEVEL": "99"}
    output = subprocess.DEVNULL if quiet else sys.stderr.fileno()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            arguments = [str(connection), msgspec.json.encode(request).decode(), sandbox.plan(theirs.fileno())]
            child = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                pass_fds=[connection, theirs.fileno()],
                stdout=output,
                stderr=output if stderr is None else stderr,
                env=environ,
            )
        try:
            sandbox.wait_until_entered(ours)
        except BaseException:
            child.kill()
            child.wait()
            raise
    return child


def run_child(
    sandbox: Sandbox, request: Request, answer_type: type[T], *, quiet: bool, main: str = __name__, time_limit: float | None = None
) -> T:
    """Start a child in a sandbox and wait for its answer. Raises `TrainError` if it ends without one.

    `time_limit` is in seconds from the first measured step. At this limit and after Ctrl-C, the child is asked for what it knows, and
    its last incomplete answer is taken if it does not respond. If it ends after an incomplete answer, the `error` of this answer says
    how. Where it fails, the last lines that it wrote to stderr are shown also with `quiet`.
    """
    if not quiet:
        return _run_child(sandbox, request, answer_type, main, None, time_limit)
    with os.fdopen(os.memfd_create("stderr"), "rb") as stderr:
        failed = True
        try:
            answer = _run_child(sandbox, request, answer_type, main, stderr.fileno(), time_limit)
            failed = EXITED in (answer.error or "") or not answer.complete
            return answer
        finally:
            if failed:
                stderr.seek(0)
                for line in stderr.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]:
                    print(line, file=sys.stderr)


def _run_child(
    sandbox: Sandbox, request: Request, answer_type: type[T], main: str, stderr: int | None, time_limit: float | None
) -> T:
    reading, writing = Pipe(duplex=False)
    with reading:
        with writing:
            child = start_child(sandbox, request, writing.fileno(), quiet=stderr is not None, main=main, stderr=stderr)
        waiting = _Wait(child, reading, answer_type, time_limit)
        try:
            waiting.until_answered()
        except KeyboardInterrupt:
            waiting.ask("was interrupted")
            if waiting.answer is None or not waiting.answer.is_of_use:
                raise  # nothing was measured yet
        finally:
            waiting.end_child()
    answer, code = waiting.answer, child.returncode
    if answer is not None and answer.complete:
        return answer
    how = waiting.stopped or (f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}")
    if answer is None or not answer.is_of_use:
        raise TrainError(f"{request.program} {how} before anything was measured.")
    return msgspec.structs.replace(answer, error=f"{request.program} {how} while it was measured")


class _Wait(Generic[T]):
    """The wait for a child's answer: until it comes, the child ends, or its time is over."""

    def __init__(self, child: subprocess.Popen[bytes], reading: Connection, answer_type: type[T], time_limit: float | None) -> None:
        self.answer: T | None = None  # the last one, which may be incomplete
        self.stopped = ""  # why the child was asked to end, if it was
        self._child, self._reading, self._answer_type = child, reading, answer_type
        self._time_limit = time_limit
        self._until_ns: int | None = None  # the time limit, from the first message on

    def until_answered(self) -> None:
        """Wait for a complete answer, or the end of the child."""
        while not self._has_ended(POLL_SECONDS):
            if self._until_ns is not None and now_ns() > self._until_ns:
                self.ask(f"was stopped after its time limit of {self._time_limit:g} s")
                return

    def ask(self, why: str) -> None:
        """Ask the child for what it knows, and wait a while; native code that holds the interpreter lock never answers."""
        self.stopped = why
        if self._ends_within(ASKED_SECONDS / 10):  # a terminal has interrupted it already
            return
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGINT)
        self._ends_within(ASKED_SECONDS)

    def end_child(self) -> None:
        """End the child unless it has ended."""
        if self.answer is None or not self.answer.complete:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill() if self.stopped else self._child.terminate()
        self._child.wait()

    def _ends_within(self, seconds: float) -> bool:
        until = now_ns() + int(seconds * 1e9)
        while now_ns() < until:
            if self._has_ended(seconds / 10):
                return True
        return False

    def _has_ended(self, seconds: float) -> bool:
        """Wait some seconds for a message; whether a complete answer is there, or none will come."""
        try:
            # Processes that the program has started may keep the pipe open when the child is gone.
            if not self._reading.poll(seconds):
                return self._child.poll() is not None and not self._reading.poll()
            self.answer = msgspec.msgpack.decode(self._reading.recv_bytes(), type=self._answer_type)
        except EOFError:
            self._child.wait()
            return True
        if self._until_ns is None and self._time_limit is not None:
            self._until_ns = now_ns() + int(self._time_limit * 1e9)
        return self.answer.complete


# ---- in the child ----


class Child:
    """One run of one program. Subclasses have another session, and override `_answer`."""

    answer_type: type[Answer] = Answer
    main_name = "__main__"  # `__name__` in the program

    def __init__(self, request: Request, connection: Connection) -> None:
        from stoker.diagnose.session import Session
        from stoker.diagnose.windows import measure_all  # not needed in the process that starts the child

        self._request = request
        self._connection = connection
        self._pid = os.getpid()
        self._has_ended = False  # whether the program came to its own end
        self._others: OtherProcesses | None = None
        self.session = Session(measure_all, on_done=self._done, seconds=request.seconds, pace=request.pace, avoid=request.avoid)
        self.session.on_progress = self._send_so_far

    def run(self) -> NoReturn:
        """Run the program to its end, or until enough is measured."""
        if not faulthandler.is_enabled():
            faulthandler.enable()  # where native code aborts, the line that called it is shown
        self.session.install()
        rewrite_imports(self.session.sources)
        # The first optimizer imports it anyway: next to a thread of the program that holds the interpreter lock, that takes a minute.
        importlib.import_module("torch._dynamo")
        os._exit = self._leave_early
        words = [*(["-m"] if self._request.module else []), self._request.program, *self._request.arguments]
        self._others = OtherProcesses(words, self.session.hooks, end=self._end, end_in_fork=self._end_in_fork)
        self._others.install()
        failure: str | None = None
        status: object = 1  # the exit status of a fork of the program
        try:
            request = self._request
            run_main(request.program, request.arguments, self.session.sources, module=request.module, name=self.main_name)
            status = 0
        except SystemExit as end:
            status = end.code
            if end.code not in (None, 0):
                failure = f"{self._request.program} {EXITED} {end.code!r}"
        except KeyboardInterrupt:
            failure = f"{self._request.program} was interrupted"
            self._request = msgspec.structs.replace(self._request, check_seconds=0.0)  # the answer is waited for
        except BaseException as error:
            failure = f"{self._request.program}{describe(error)}"
            session = self.session
            if session.fix_on is None and session.lengthens_epochs and session.ranks is None:
                note = f"Epochs are as long as in the program, because it fails with longer ones: {failure}."
                self._leave_with(Answer(error=note, repeat_without=LONGER_EPOCHS))
            if session.fix_on is not None:  # caused by a fix
                note = f"the gain of {session.fix_on} could not be measured: {failure}."
                if session.repeats:
                    self._leave_with(Answer(error=note, repeat_without=session.fix_on))
                session.recorder.notes.append(note)
                failure = None  # everything that the verdict needs is measured
            elif not isinstance(error, StokerError):
                sys.excepthook(type(error), error.with_traceback(_from_own(error.__traceback__)), error.__traceback__)
        if os.getpid() != self._pid:  # a fork of the program, which ends as it would alone
            raise SystemExit(status)
        _join_threads()
        self._has_ended = True
        self._end(failure)

    def _leave_early(self, status: int) -> NoReturn:
        """Replaces `os._exit`, which would end this process without an answer."""
        if os.getpid() != self._pid:
            _exit(status)
        self._end(f"{self._request.program} {EXITED} {status}" if status else None)

    def _end_in_fork(self, failure: str) -> NoReturn:
        """End the diagnosis from a fork of the program: its parent waits for it, and others do for both."""
        self._connection.send_bytes(msgspec.msgpack.encode(self.answer_type(error=failure)))
        program = psutil.Process(self._pid)
        for process in (*program.children(recursive=True), program):
            if process.pid != os.getpid():
                with contextlib.suppress(psutil.Error):
                    process.kill()
        _exit(0)

    def _done(self) -> None:
        """End the program: enough is measured."""
        if os.getpid() == self._pid:
            self._end(None)

    def _send_so_far(self, measured: Measurements | None) -> None:
        if os.getpid() == self._pid:
            self._connection.send_bytes(msgspec.msgpack.encode(Answer(measurements=measured, complete=False)))

    def _end(self, failure: str | None) -> NoReturn:
        """Send the answer, or why there is none, and end this process. `failure` is how the program failed, if it did."""
        program = self._request.program
        with contextlib.suppress(ValueError):  # the program may train in another thread, which cannot set it
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not end the answer
        try:
            self.session.remove()
            if self.session.failure is not None:
                raise self.session.failure
            answer = self._answer(failure)
        except StokerError as error:
            started = self._others.started if self._others is not None and not self.session.hooks.steps else None
            answer = self.answer_type(error=failure or started or f"{program}: {error}")
        except Exception as error:
            traceback.print_exception(error)
            answer = self.answer_type(
                error=failure or f"{program} could not be measured: {type(error).__name__}: {one_line(error)}"
            )
        self._leave_with(answer)

    def _answer(self, failure: str | None) -> Answer:
        """The measurements and the faults of the batches."""
        session, ranks = self.session, self.session.ranks
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
        return Answer(measurements=measured, wrong=wrong)

    def _leave_with(self, answer: Answer) -> NoReturn:
        """Send the answer, and end this process and its workers. Exit functions run only if the program came to its own end."""
        # Not JSON: a loss may be NaN.
        self._connection.send_bytes(msgspec.msgpack.encode(answer))
        self._connection.close()
        if self._has_ended:
            atexit._run_exitfuncs()
        for worker in multiprocessing.active_children():
            worker.terminate()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        _exit(0)


def _join_threads() -> None:
    """Wait for the threads of a program whose main thread has ended, as Python does. Threads of a pool end with the process."""
    from concurrent.futures.thread import _threads_queues as pooled

    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon and thread not in pooled:
            thread.join()


def describe(error: BaseException) -> str:
    """Return an error of the program with the user's line that raised it, to be put after the name of the program."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    line = f" ({shown(lines[-1].filename)}:{lines[-1].lineno})" if lines else ""
    if isinstance(error, SyntaxError) and error.lineno:
        line = f" line {error.lineno}"
    raised = ":" if isinstance(error, StokerError) else f" raised {type(error).__name__}:"
    return f"{line}{raised} {one_line(error)}{refusal(error)}"


def _from_own(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first line of the user's code on; all of it if there is none."""
    first = trace
    while first is not None and not is_own(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or trace


def one_line(error: BaseException) -> str:
    """The message of an error in one line."""
    lines = str(error).strip().splitlines() or ["(no message)"]
    return lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"


def main(arguments: list[str]) -> NoReturn:
    """Run the request in the command line arguments."""
    connection = Connection(int(arguments[0]), readable=False)
    request = msgspec.json.decode(arguments[1], type=Request)
    Child(request, connection).run()
