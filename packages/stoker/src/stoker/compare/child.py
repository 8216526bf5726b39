"""One run of a training program: in a sandbox, in a fresh process, with an `Observer` that records it.

`run_program` starts the process and waits for what was `Observed`. `main` is the other side: it enters the sandbox, writes the files of
the version over those of the user, as this process alone sees them, and runs the program as the main module. An `Extension` runs it with
a change that is made from outside, or records more.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self, TypeVar

import msgspec

from stoker import _disk
from stoker._clock import now_ns
from stoker._lazy import import_first
from stoker.compare import ranks
from stoker.compare.checkpoint import pack_checkpoint
from stoker.compare.keeper import keep
from stoker.compare.observed import Observed, RunRequest
from stoker.errors import TrainError
from stoker.sandbox import Sandbox, enter, mirrored, original, refusal

Answer = TypeVar("Answer")
POLL_SECONDS = 0.5
SHOWN_LINES = 20  # last lines of stderr that are shown of a program that fails
ANSWERS = 200
"""The file descriptor on which a run answers to its sandbox."""
CODE = "import sys; sys.path[: not sys.flags.safe_path] = []; from stoker.compare import {module}; {module}.{call}"
"""Modules of the current folder must not hide those that stoker imports; the program gets its own path later."""
_exit = os._exit


class Extension(Protocol):
    """What another package does in a run.

    It is made in the process of the program, of the options of the request and a function that ends the run.
    """

    def run(self, request: RunRequest) -> None:
        """Run the program as the main module."""

    def answer(self) -> bytes:
        """Return what it has to say at the end of the run. Raises `TrainError` if the run does not count."""


# ---- in the process that compares ----


Start = Callable[[str, tuple[int, ...]], "subprocess.Popen[bytes] | Forked"]
"""Starts a process with the request and the plan, and the files for its answers and its output."""


def run_program(
    request: RunRequest, sandbox: Sandbox, *, python: str = sys.executable, environment: Mapping[str, str] | None = None,
    quiet: bool = True, time_limit: float | None = None, starter: Starter | None = None,
) -> Observed:  # fmt: skip
    """Run a program in a fresh process, or in a fork of `starter`. Raises `TrainError` with the reason if it fails."""
    request = msgspec.structs.replace(request, begin_ns=now_ns())
    handed = [] if request.checkpoint_to is None else [request.checkpoint_to]
    start = starter.start if starter is not None else functools.partial(_start_python, "child", python, environment or {}, handed)
    observed, output, errors = run_in_sandbox(request, sandbox, start, type_of=Observed, time_limit=time_limit)
    shows = not quiet and (request.observe or not request.hooks)
    if shows:
        sys.stderr.write(output + errors)
    if isinstance(observed, Observed) and observed.error is None:
        return msgspec.structs.replace(observed, output=output)
    if not shows:
        sys.stderr.write("".join(f"{line}\n" for line in errors.splitlines()[-SHOWN_LINES:]))
    raise TrainError(f"{request.program} {observed if isinstance(observed, str) else observed.error}")


def run_in_sandbox(
    request: msgspec.Struct, sandbox: Sandbox, start: Start | None = None, *, type_of: type[Answer], module: str = "child",
    time_limit: float | None = None,
) -> tuple[Answer | str, str, str]:  # fmt: skip
    """Run `main` of a module of this package. Returns its answer or how it ended without one, and what it printed."""
    start = start or functools.partial(_start_python, module, sys.executable, {}, [])
    with _memory_file("stdout") as stdout, _memory_file("stderr") as stderr:
        answer = _wait(*_start(request, sandbox, start, stdout.fileno(), stderr.fileno()), type_of, time_limit)
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return answer, texts[0], texts[1]


def _memory_file(name: str) -> Any:
    return os.fdopen(os.memfd_create(name), "rb")


def _start(
    request: msgspec.Struct, sandbox: Sandbox, start: Start, stdout: int, stderr: int
) -> tuple[subprocess.Popen[bytes] | Forked, Connection]:
    """Start the process, and wait until it is in its sandbox."""
    reading, writing = Pipe(duplex=False)
    ours, theirs = socket.socketpair()
    with ours, writing:
        with theirs:
            words = json.dumps([msgspec.json.encode(request).decode(), sandbox.plan(ANSWERS)])
            child = start(words, (writing.fileno(), theirs.fileno(), stdout, stderr))
        try:
            sandbox.wait_until_entered(ours)
        except BaseException:
            child.kill()
            child.wait()
            reading.close()
            raise
    return child, reading


def _start_python(
    module: str, python: str, environment: Mapping[str, str], handed: Sequence[int], words: str, files: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    connection, answers, stdout, stderr = files
    return subprocess.Popen(
        [python, "-c", CODE.format(module=module, call=f"main(*sys.argv[1:], {connection}, {answers})"), words],
        pass_fds=[connection, answers, *handed], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=_environment(environment),
    )  # fmt: skip


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    # As for `diagnose`: the same order of sets of strings each time.
    return {"PYTHONHASHSEED": "0", **os.environ, **changes}


class Starter:
    """A process that has imported torch and forks a process for each run: imports take longer than many runs. A context manager.

    Both sides of a comparison are forks of the same process, so none has an advantage by where its libraries are in memory. `modules`
    are imported as well, in this order: those that both programs import.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CODE.format(module="child", call=f"serve({theirs.fileno()})")], pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment({}),
            )  # fmt: skip
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as names:  # a broken pipe: the first run will say why
            names.write(json.dumps(list(modules)).encode())
        self._socket.recv(1)  # it has imported everything; nothing comes if it has failed, as the first run will say

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()

    def start(self, words: str, files: tuple[int, ...]) -> Forked:
        """Start a run with the connection, the socket of the sandbox, and the files of its output."""
        try:
            socket.send_fds(self._socket, [words.encode()], list(files))
            return Forked(self._socket, int(self._socket.recv(32)))
        except (OSError, ValueError):
            raise TrainError("the process that starts runs has ended.") from None


class Forked:
    """A process that a `Starter` has forked."""

    def __init__(self, answers: socket.socket, pid: int) -> None:
        self._answers, self._pid = answers, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises `subprocess.TimeoutExpired`."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("the run", timeout or 0.0)
        return code

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:  # its number is not given to another process before the exit code was sent
            with contextlib.suppress(ProcessLookupError):  # the exit code is about to be sent
                os.kill(self._pid, signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], timeout)[0]:
            try:
                self.returncode = int(self._answers.recv(32))
            except (OSError, ValueError):  # the starter has been killed, and the run with it
                self.returncode = -signal.SIGKILL
        return self.returncode


def _wait(
    child: subprocess.Popen[bytes] | Forked, reading: Connection, type_of: type[Answer], time_limit: float | None
) -> Answer | str:
    """Wait for the answer. Returns how the process ended if there is none."""
    until = None if time_limit is None else now_ns() + int(time_limit * 1e9)
    try:
        with reading:
            while not reading.poll(POLL_SECONDS):
                if child.poll() is not None and not reading.poll():
                    return _how(child.wait())
                if until is not None and now_ns() > until:
                    return f"was stopped after its time limit of {time_limit:,.0f} s"
            answer = msgspec.msgpack.decode(reading.recv_bytes(), type=type_of)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_SECONDS)  # it has answered and ends
            # A program that ends its keeper could leave something behind.
            return answer if (child.poll() or 0) >= 0 else _how(child.wait())
    except EOFError:
        return _how(child.wait())
    finally:
        if child.poll() is None:
            if isinstance(child, subprocess.Popen):
                child.terminate()  # a keeper ends all that the run has left
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_SECONDS)
            child.kill()
        child.wait()


def _how(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


# ---- in the process of the program ----


def write_version(request: RunRequest) -> None:
    """Replace files of the user by those of this version. The sandbox has been entered: only this process sees that."""
    for name in request.removed:
        if os.path.lexists(mirrored(name)):
            _disk.disk.unlink(Path(mirrored(name)))
    if request.files is None:
        return
    root = Path(request.files)
    for source in sorted(path for path in root.rglob("*") if path.is_file()):
        path = Path("/", source.relative_to(root))
        target = Path(mirrored(str(path)) if path.exists() else f"{mirrored(str(path.parent))}/{path.name}")
        _disk.make_folder(target.parent)
        _disk.write_file(target, source.read_bytes(), durable=False)


def serve(descriptor: int) -> NoReturn:
    """Fork a process for each run that is asked for on a socket, one after the other."""
    import stoker.compare.observer
    import stoker.compare.seeding  # noqa: F401 - what a run imports. Nothing is computed: threads would be missing in forks

    if modules := json.loads(sys.stdin.read() or "[]"):
        for name in modules:
            with contextlib.suppress(Exception):  # what cannot be imported alone is left to the program
                importlib.import_module(name)
        if threading.active_count() > 1:  # threads of Python would be missing in forks; OpenBLAS and Arrow start theirs again
            os.execv(sys.executable, sys.orig_argv)  # as before, with nothing more to read: without these modules
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    with socket.socket(fileno=descriptor) as requests:
        requests.send(b"r")
        while True:
            words, files, _, _ = socket.recv_fds(requests, 1 << 20, 4)
            if not words:
                _exit(0)
            pid = os.fork()
            if not pid:
                requests.close()
                for place, file in enumerate(files[2:], 1):
                    os.dup2(file, place)
                    os.close(file)
                main(words.decode(), *files[:2])
            for file in files:
                os.close(file)
            requests.send(str(pid).encode())
            ended = os.pidfd_open(pid)
            if requests.fileno() in select.select([ended, requests.fileno()], [], [])[0]:
                _exit(1)  # whoever asked has ended, and so does the run
            os.close(ended)
            requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def note_reads(opened: set[str]) -> None:
    """Note from now on which files Python opens to read, moves or links in this process."""
    # What C++ and Rust open, such as safetensors, is not seen. Held-out files do not rely on this.
    moves = ("os.rename", "os.link", "os.symlink")

    def note(event: str, details: tuple[Any, ...]) -> None:
        reads = event == "open" and not set(str(details[1] or "r")) & set("wax")
        if (reads or event in moves) and isinstance(details[0], str | bytes | os.PathLike):
            opened.add(str(Path.cwd() / os.fsdecode(details[0])))

    sys.addaudithook(note)


def received(words: str, descriptor: int, answers: int, type_of: type[Answer]) -> tuple[Connection, Answer, Any]:
    """Return the connection for the answer, the request, and the plan of the sandbox, whose answers go to `answers`."""
    text, plan = json.loads(words)
    os.dup2(answers, ANSWERS)
    os.close(answers)
    return Connection(descriptor, readable=False), msgspec.json.decode(text, type=type_of), plan


def main(words: str, descriptor: int, answers: int) -> NoReturn:
    """Enter the sandbox, and run the request. `descriptor` is for what was observed, `answers` for the sandbox."""
    connection, request, plan = received(words, descriptor, answers, RunRequest)
    if request.kept:
        keep()
    enter(plan)
    write_version(request)
    if not request.launcher:
        run_observed(request, connection.send_bytes)
    try:
        connection.send_bytes(ranks.launch(request))
    except TrainError as error:
        connection.send_bytes(ranks.failed(error))
    _exit(0)


def run_observed(request: RunRequest, send: Callable[[bytes], object]) -> NoReturn:
    """Run the program of a request in this process, and send what was observed."""
    pid, opened = os.getpid(), set[str]()

    def leave(error: str | None, *, finished: bool) -> NoReturn:
        """Send what was observed, and end this process: nothing else of the program runs."""
        answer = b""
        try:
            answer = extension.answer() if extension is not None and error is None else b""
        except TrainError as refused:
            error = str(refused)
        if error is None and request.checkpoint is not None and request.checkpoint_to is not None:
            error = pack_checkpoint(request.checkpoint, request.checkpoint_to)
        seen = observer.observed(error, finished=finished) if request.hooks else Observed(error=error, finished=finished)
        observed = msgspec.structs.replace(seen, answer=answer, inputs=sorted(map(original, opened)))
        send(msgspec.msgpack.encode(observed))
        for worker in multiprocessing.active_children():
            worker.terminate()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, OSError):  # the program has closed it
                stream.flush()
        _exit(0)

    def done() -> None:
        if os.getpid() == pid:  # not in a worker of a loader
            leave(None, finished=False)

    # torch may be imported from here on: it starts threads.
    from stoker.compare.observer import Observer
    from stoker.compare.seeding import draw_each_epoch, set_seeds

    observer = Observer(request, done)
    set_seeds(request.seed)
    if request.same_draws:
        draw_each_epoch()
    extension = _extension(request, done)
    if request.hooks:
        observer.install()
    if request.kept:
        note_reads(opened)
    error = run_to_end(request, run_main if extension is None else extension.run)
    if os.getpid() != pid:
        raise SystemExit(error is not None)
    leave(error, finished=True)


def run_to_end(request: RunRequest, run: Callable[[RunRequest], None]) -> str | None:
    """Run a program. Returns how it failed."""
    try:
        sys.argv = [request.program, *request.arguments]
        run(request)
    except SystemExit as end:
        return None if end.code in (None, 0) else f"ended with exit code {end.code!r}"
    except KeyboardInterrupt:
        return "was interrupted"
    except BaseException as failure:
        traceback.print_exc()
        return _describe(failure, request.hidden)
    return None


def run_main(request: RunRequest) -> None:
    """Run the program as the main module."""
    if request.module:
        import_first(Path.cwd())
        runpy.run_module(request.program, run_name="__main__", alter_sys=True)
    else:
        path = mirrored(str(Path(request.program).absolute()))
        sys.argv[0] = path
        import_first(Path(path).resolve().parent)
        runpy.run_path(path, run_name="__main__")


def _extension(request: RunRequest, done: Callable[[], None]) -> Extension | None:
    if not request.extension:
        return None
    module, _, name = request.extension.partition(":")
    extension: Extension = getattr(importlib.import_module(module), name)(request.options, done)
    return extension


def _describe(failure: BaseException, hidden: Sequence[str]) -> str:
    """An error of the program with the user's line that raised it."""
    from stoker.compare.observer import is_users

    if isinstance(failure, OSError) and isinstance(failure.filename, str):
        path = original(os.path.realpath(failure.filename))
        if any(path == held or path.startswith(f"{held}/") for held in hidden):
            return f"opened {failure.filename}, which is held out: only the evaluator may read it"
    lines = [frame for frame in traceback.extract_tb(failure.__traceback__) if is_users(frame.filename)]
    place = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno})" if lines else ""
    message = (str(failure).strip().splitlines() or ["(no message)"])[0]
    return f"raised {type(failure).__name__}{place}: {message}{refusal(failure)}"
