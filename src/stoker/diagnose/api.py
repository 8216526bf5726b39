"""A program of the user's, unchanged, in one child process: what it is -> what was measured of it -> what was found."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from stoker import _disk
from stoker._clock import now_ns
from stoker.diagnose.child import Answer, Request
from stoker.diagnose.hooks import leaves, own_frame, place_of
from stoker.diagnose.measurements import Measurements
from stoker.errors import BatchError, OptionError, TrainError

if TYPE_CHECKING:
    from stoker.diagnose.measurements import Finding

T = TypeVar("T", bound=msgspec.Struct)
CHECK_SECONDS = 3.0
"""How long is looked for what is wrong with the batches, beside speed."""
START = "import sys; from stoker.diagnose.child import main; main(sys.argv[1:])"


def diagnose_script(
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    quiet: bool = False,
    seconds: float | None = None,
) -> Finding:
    """Run a script (or, with `module`, a module by its name) until it is known what holds its training back."""
    from stoker.diagnose.verdict import conclude

    check_seconds = CHECK_SECONDS if seconds is None else min(CHECK_SECONDS, seconds)
    answer = _measure(program, arguments, module=module, quiet=quiet, seconds=seconds, check_seconds=check_seconds)
    return conclude(_known(answer, program), correctness=answer.wrong)


def measure_script(
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    quiet: bool = False,
    pace: float = 1.0,
    seconds: float | None = None,
) -> Measurements:
    """What a verdict is made of. All that the program prints goes to stderr, or nowhere when `quiet`.

    `pace` is the length of stretches as a share of what they usually are: less is sooner, and less sure.
    After `seconds` of measuring, stretches that have not begun are left out.
    """
    return _known(_measure(program, arguments, module=module, quiet=quiet, pace=pace, seconds=seconds), program)


def _measure(
    program: str | Path, arguments: Sequence[str], *, module: bool, quiet: bool, seconds: float | None, **options: float
) -> Answer:
    words = [str(one) for one in arguments]
    with scratch_for(program, module=module) as folder:
        request = Request(program=str(program), module=module, arguments=words, scratch=str(folder), seconds=seconds, **options)
        return ask(request, Answer, quiet=quiet)


def _known(answer: Answer, program: str | Path) -> Measurements:
    if answer.measurements is None:
        raise TrainError(answer.error or f"{program} gave no answer.")
    return answer.measurements


@contextlib.contextmanager
def scratch_for(program: str | Path, *, module: bool) -> Iterator[Path]:
    """The name of a folder for what a program writes, which is removed in the end. Raises where there is no such program."""
    if not module and not Path(program).is_file():
        raise OptionError(f"{program} is {'a folder' if Path(program).is_dir() else 'not there'}; expected a Python script.")
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"stoker-diagnose-{secrets.token_hex(8)}"
    try:
        yield folder
    finally:
        _disk.remove_folder(folder)


def start_child(request: Request, start: str, end: int, *, quiet: bool) -> subprocess.Popen[bytes]:
    """A process that runs `start` with a file descriptor and a request."""
    command = [sys.executable, "-c", start, str(end), msgspec.json.encode(request).decode()]
    # torch's profiler would write of itself; and sets go through their strings in the same order each time
    variables = {"PYTHONHASHSEED": "0", **os.environ, "KINETO_LOG_LEVEL": "99"}
    target = subprocess.DEVNULL if quiet else sys.stderr.fileno()
    return subprocess.Popen(command, pass_fds=[end], stdout=target, stderr=target, env=variables)


def ask(request: Request, kind: type[T], *, quiet: bool, start: str = START) -> T:
    """Start a child, and wait for its answer; raises where none comes."""
    reading, writing = Pipe(duplex=False)
    with reading:
        with writing:
            child = start_child(request, start, writing.fileno(), quiet=quiet)
        try:
            data = reading.recv_bytes()
        except EOFError:
            code = child.wait()
            raise TrainError(f"{request.program} ended with code {code} before anything was measured.") from None
        except BaseException:
            child.terminate()
            raise
        finally:
            child.wait()
    return msgspec.msgpack.decode(data, type=kind)


# A training step as a function, in a notebook or a test: the same stretches as for a script, on a loop of our own.


def diagnose_step(
    train_step: Callable[[Any], object], batches: Iterable[Any], *, valid_batches: Iterable[Any] | None = None
) -> Finding:
    """Call `train_step(batch)` until it is known what holds it back; `batches` are gone through as often as needed.

    The model is trained meanwhile: pass a step that works on a copy where that matters. `valid_batches` are looked at only for
    samples that are trained on, too.
    """
    from stoker.diagnose.correctness import audit_loaders, wrong_losses
    from stoker.diagnose.verdict import conclude

    measured = measure_step(train_step, batches)
    wrong = [*audit_loaders(batches, valid_batches, seconds=CHECK_SECONDS), *wrong_losses(measured.losses)]
    return conclude(measured, correctness=wrong)


def measure_step(train_step: Callable[[Any], object], batches: Iterable[Any], *, pace: float = 1.0) -> Measurements:
    """What a verdict is made of; `pace` as for scripts."""
    import sys

    from stoker.diagnose.loaders import Source, WatchedIterator
    from stoker.diagnose.session import Session

    if not callable(train_step):
        raise OptionError(f"train_step is {train_step!r}; expected a function that is given a batch and makes one step.")
    if not hasattr(batches, "__iter__"):
        raise OptionError(f"batches is {batches!r}; expected a loader or another iterable of batches.")
    session = Session(on_done=lambda: None, step_per_batch=True, pace=pace)
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
            raise BatchError("batches has none; expected an iterable that gives at least one.")
        return session.measurements()
    finally:
        session.remove()
