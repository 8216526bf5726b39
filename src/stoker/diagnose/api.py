"""Diagnose a script in a child process, or a training step as a function.

`diagnose_script` and `diagnose_step` return a `Finding`; `measure_script` and `measure_step` return the `Measurements` it is made of.
`sandbox_for`, `start_child` and `ask` start child processes for other commands, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import msgspec

from stoker._clock import now_ns
from stoker.diagnose.child import EXITED, Answer, Request
from stoker.diagnose.hooks import leaves, own_frame, place_of
from stoker.diagnose.measurements import Measurements
from stoker.diagnose.sandbox import ENTER, Sandbox
from stoker.errors import BatchError, OptionError, TrainError

if TYPE_CHECKING:
    from stoker.diagnose.finding import Finding

T = TypeVar("T", bound=msgspec.Struct)
Batch = TypeVar("Batch")
CHECK_SECONDS = 3.0  # time to look for faults in the batches
WAIT_SECONDS = 0.5  # between looks at whether the child still runs
SHOWN_LINES = 40  # of the errors of a script that fails, where its output is not shown
START = "import sys; from stoker.diagnose.child import main; main(sys.argv[1:])"


def diagnose_script(
    program: str | Path, arguments: Sequence[str] = (), *, module: bool = False, quiet: bool = False, seconds: float | None = None
) -> Finding:
    """Run a training script until its bottleneck is known.

    The script runs unchanged in a child process, which ends as soon as enough is measured. Your files are as before afterwards.

    Args:
        program: Path of the script, or the name of a module with `module=True`.
        arguments: Command line arguments of the script.
        module: Run a module, as `python -m` does.
        quiet: Discard what the script prints; otherwise it goes to stderr.
        seconds: Time limit of measuring. Windows that have not begun by then are left out.

    Returns:
        The verdict with its reason, and what to do next.

    Raises:
        OptionError: There is no such script.
        TrainError: The script failed or ended before anything could be measured.

    Example:
        >>> import stoker
        >>> finding = stoker.diagnose.diagnose_script("train.py", ["--epochs", "1"])  # doctest: +SKIP
        >>> finding.verdict  # doctest: +SKIP
        'data'
    """
    from stoker.diagnose.verdict import conclude

    check_seconds = CHECK_SECONDS if seconds is None else min(CHECK_SECONDS, seconds)
    measured, wrong = _measure(program, arguments, module=module, quiet=quiet, seconds=seconds, check_seconds=check_seconds)
    return conclude(measured, correctness=wrong)


def measure_script(
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    quiet: bool = False,
    pace: float = 1.0,
    seconds: float | None = None,
) -> Measurements:
    """Run a training script until everything is measured that a verdict needs.

    Args:
        program: Path of the script, or the name of a module with `module=True`.
        arguments: Command line arguments of the script.
        module: Run a module, as `python -m` does.
        quiet: Discard what the script prints; otherwise it goes to stderr.
        pace: Scales the length of all measurement windows. Less is faster and less certain.
        seconds: Time limit of measuring. Windows that have not begun by then are left out.

    Returns:
        The measurements, without a verdict.

    Raises:
        OptionError: There is no such script.
        TrainError: The script failed or ended before anything could be measured.

    Example:
        >>> import stoker
        >>> measured = stoker.diagnose.measure_script("train.py", pace=0.2)  # doctest: +SKIP
        >>> measured.loop.median  # doctest: +SKIP
        0.0124
    """
    return _measure(program, arguments, module=module, quiet=quiet, pace=pace, seconds=seconds)[0]


def _measure(
    program: str | Path, arguments: Sequence[str], *, module: bool, quiet: bool, seconds: float | None, **options: float
) -> tuple[Measurements, list[str]]:
    """The measurements of a script, and faults of its batches."""
    words = [str(one) for one in arguments]
    with sandbox_for(program, module=module) as sandbox:
        request = Request(program=str(program), module=module, arguments=words, seconds=seconds, **options)
        answer = ask(sandbox, request, Answer, quiet=quiet)
    measured = answer.measurements
    if measured is None:
        raise TrainError(answer.error or f"{program} gave no answer.")
    early = [f"{answer.error}; only what was measured before is known."] if answer.error is not None else []
    notes = [*early, *measured.notes, *sandbox.notes()]
    return msgspec.structs.replace(measured, notes=notes, sandbox=sandbox.mode), answer.wrong


def sandbox_for(program: str | Path, *, module: bool) -> Sandbox:
    """The sandbox of a program, not entered yet. Raises `OptionError` if there is no such program."""
    if not module and not Path(program).is_file():
        raise OptionError(f"{program} {'is a folder' if Path(program).is_dir() else 'does not exist'}; expected a Python script.")
    return Sandbox(None if module else Path(program))


def start_child(
    sandbox: Sandbox, request: Request, start: str, end: int, *, quiet: bool, errors: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a sandbox. It runs the code `start` with a file descriptor and a request as arguments.

    With `quiet` its output is dropped; its errors go to the file descriptor `errors` if there is one.
    """
    # Without the log lines of torch's profiler, and with the same order of sets of strings each time.
    variables = {"PYTHONHASHSEED": "0", **os.environ, "KINETO_LOG_LEVEL": "99"}
    target = subprocess.DEVNULL if quiet else sys.stderr.fileno()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            words = [str(end), msgspec.json.encode(request).decode(), sandbox.plan(theirs.fileno())]
            child = subprocess.Popen(
                [sys.executable, "-c", ENTER + start, *words],
                pass_fds=[end, theirs.fileno()],
                stdout=target,
                stderr=target if errors is None else errors,
                env=variables,
            )
        try:
            sandbox.watch(ours)
        except BaseException:
            child.kill()
            child.wait()
            raise
    return child


def ask(sandbox: Sandbox, request: Request, kind: type[T], *, quiet: bool, start: str = START) -> T:
    """Start a child in a sandbox and wait for its answer. Raises `TrainError` if it ends without one.

    If it ends after an answer that is not complete, the error of this answer says how. Where it exits with an error or a signal ends it,
    the last lines that it wrote to stderr are shown also with `quiet`.
    """
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(os.fdopen(os.memfd_create("stderr"), "rb")) if quiet else None
        try:
            answer = _ask(sandbox, request, kind, start, errors.fileno() if errors is not None else None)
        except TrainError:
            _show_end(errors)
            raise
        if EXITED in (getattr(answer, "error", None) or "") or not getattr(answer, "complete", True):
            _show_end(errors)
        return answer


def _show_end(errors: IO[bytes] | None) -> None:
    if errors is not None:
        errors.seek(0)
        for line in errors.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]:
            print(line, file=sys.stderr)


def _ask(sandbox: Sandbox, request: Request, kind: type[T], start: str, errors: int | None) -> T:
    answer: T | None = None
    reading, writing = Pipe(duplex=False)
    with reading:
        with writing:
            child = start_child(sandbox, request, start, writing.fileno(), quiet=errors is not None, errors=errors)
        try:
            # Processes that the program has started may keep the pipe open when the child is gone.
            while reading.poll(WAIT_SECONDS) or child.poll() is None or reading.poll():
                if reading.poll():
                    answer = msgspec.msgpack.decode(reading.recv_bytes(), type=kind)
                    if getattr(answer, "complete", True):
                        return answer
        except EOFError:
            pass
        except BaseException:
            child.terminate()
            raise
        finally:
            code = child.wait()
    how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
    if answer is None:
        raise TrainError(f"{request.program} {how} before anything was measured.")
    return msgspec.structs.replace(answer, error=f"{request.program} {how} while it was measured")


def diagnose_step(
    train_step: Callable[[Batch], object], batches: Iterable[Batch], *, valid_batches: Iterable[Batch] | None = None
) -> Finding:
    """Call a training step until its bottleneck is known, for example in a notebook or a test.

    The model is trained meanwhile: pass a step on a copy of the model if that matters.

    Args:
        train_step: Makes one step of a batch.
        batches: A loader or another iterable of batches, iterated as often as needed.
        valid_batches: Validation data, checked for samples that are also trained on.

    Returns:
        The verdict with its reason, and what to do next.

    Raises:
        OptionError: `train_step` is not callable, or `batches` is not iterable.
        BatchError: `batches` is empty.

    Example:
        >>> import stoker
        >>> finding = stoker.diagnose.diagnose_step(train_step, loader)  # doctest: +SKIP
        >>> print(finding)  # doctest: +SKIP
    """
    from stoker.diagnose.correctness import audit_loaders, wrong_losses
    from stoker.diagnose.verdict import conclude

    measured = measure_step(train_step, batches)
    wrong = [*audit_loaders(batches, valid_batches, seconds=CHECK_SECONDS), *wrong_losses(measured.losses)]
    return conclude(measured, correctness=wrong)


def measure_step(train_step: Callable[[Batch], object], batches: Iterable[Batch], *, pace: float = 1.0) -> Measurements:
    """Call a training step until everything is measured that a verdict needs.

    Args:
        train_step: Makes one step of a batch.
        batches: A loader or another iterable of batches, iterated as often as needed.
        pace: Scales the length of all measurement windows. Less is faster and less certain.

    Returns:
        The measurements, without a verdict.

    Raises:
        OptionError: `train_step` is not callable, or `batches` is not iterable.
        BatchError: `batches` is empty.

    Example:
        >>> import stoker
        >>> measured = stoker.diagnose.measure_step(train_step, loader, pace=0.2)  # doctest: +SKIP
        >>> measured.steps_seen  # doctest: +SKIP
        431
    """
    from stoker.diagnose.loops import Source, WatchedIterator
    from stoker.diagnose.measure_windows import measure_all
    from stoker.diagnose.session import Session

    if not callable(train_step):
        raise OptionError(f"train_step is {train_step!r}; expected a function of a batch that makes one step.")
    if not hasattr(batches, "__iter__"):
        raise OptionError(f"batches is {batches!r}; expected a loader or another iterable of batches.")
    session = Session(measure_all, on_done=lambda: None, step_per_batch=True, pace=pace)
    frame = own_frame(sys._getframe(1))
    source = Source(batches, place_of(frame) if frame is not None else None)
    session.hooks.install()
    session.hooks.find_roots()
    try:
        watched = WatchedIterator(session.sources, source, source.new_pass(), now_ns())
        for number, batch in enumerate(watched):
            train_step(batch)
            if number == 1:
                source.gives_batches = next(leaves(batch), None) is not None
                session.sources.select(source)
                session.take_control()
        while not session.done and source.can_repeat and source.nexts + session.hooks.steps:
            watched.restart()
            for batch in watched:
                train_step(batch)
        if session.failure is not None:
            raise session.failure
        if not source.nexts:
            raise BatchError("batches is empty; expected an iterable that gives at least one batch.")
        return session.measurements()
    finally:
        session.remove()
