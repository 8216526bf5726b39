"""The public functions: diagnose a script in a child process (child.py), or a training step as a function in this process.

Both return a `Finding`; its `measurements` are what the verdict is made of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from stoker._clock import now_ns
from stoker.diagnose.child import Answer, Request, run_child, sandbox_for
from stoker.diagnose.hooks import leaves, own_line
from stoker.errors import BatchError, OptionError, TrainError

if TYPE_CHECKING:
    from stoker.diagnose.finding import Finding

Batch = TypeVar("Batch")
TIME_LIMIT = 90.0  # seconds after the first step
CHECK_SECONDS = 3.0  # time to search the batches for faults


def diagnose_script(
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    quiet: bool = False,
    pace: float = 1.0,
    seconds: float | None = None,
    time_limit: float | None = TIME_LIMIT,
    with_compile: bool = False,
) -> Finding:
    """Run a training script until its bottleneck is known.

    The script runs unchanged in a child process, which ends as soon as enough is measured. Your files are as before afterwards.

    Args:
        program: Path of the script, or the name of a module with `module=True`.
        arguments: Command line arguments of the script.
        module: Run a module, as `python -m` does.
        quiet: Discard what the script prints; otherwise it goes to stderr.
        pace: Scales the length of all measurement windows. Less is faster and less certain.
        seconds: Time limit of measuring. Windows that have not begun by then are left out.
        time_limit: Seconds after the first step at which the script is ended, whatever it does; None for no limit. The verdict is
            then that of the windows so far.
        with_compile: Where `torch.compile` would be advised, compile the model and measure its steps. Takes up to minutes.

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
    from stoker.diagnose.rule import conclude

    check_seconds = CHECK_SECONDS * min(1.0, pace)
    request = Request(
        program=str(program),
        module=module,
        arguments=list(map(str, arguments)),
        pace=pace,
        seconds=seconds,
        check_seconds=check_seconds if seconds is None else min(check_seconds, seconds),
        avoid=() if with_compile else ("compile",),
    )
    limit = None if with_compile else time_limit  # compiling takes minutes
    failed: dict[str, str] = {}  # why, by the experiment with which the script failed
    while True:
        with sandbox_for(program, module=module) as sandbox:
            answer = run_child(sandbox, request, Answer, quiet=quiet, time_limit=limit)
        if answer.repeat_without is None:
            break
        failed[answer.repeat_without] = answer.error or ""
        request = msgspec.structs.replace(request, avoid=(*request.avoid, answer.repeat_without))
    measured = answer.measurements
    if measured is None:
        raise TrainError(answer.error or f"{program} gave no answer.")
    early = [f"{answer.error}; only what was measured before is known."] if answer.error is not None else []
    notes = [*early, *failed.values(), *measured.notes, *sandbox.notes()]
    unused = {**measured.unused_fixes, **failed}  # what fails in this program is not advised
    measured = msgspec.structs.replace(measured, notes=notes, sandbox=sandbox.mode, unused_fixes=unused)
    return conclude(measured, correctness=answer.wrong)


def diagnose_step(
    train_step: Callable[[Batch], object],
    batches: Iterable[Batch],
    *,
    valid_batches: Iterable[Batch] | None = None,
    pace: float = 1.0,
) -> Finding:
    """Call a training step until its bottleneck is known, for example in a notebook or a test.

    The model is trained meanwhile: pass a step on a copy of the model if that matters.

    Args:
        train_step: Makes one step of a batch.
        batches: A loader or another iterable of batches, iterated as often as needed.
        valid_batches: Validation data, checked for samples that are also trained on.
        pace: Scales the length of all measurement windows. Less is faster and less certain.

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
    from stoker.diagnose.correctness import faults_of, wrong_losses
    from stoker.diagnose.loops import Source, WatchedIterator
    from stoker.diagnose.rule import conclude
    from stoker.diagnose.session import Session
    from stoker.diagnose.windows import measure_all

    if not callable(train_step):
        raise OptionError(f"train_step is {train_step!r}; expected a function of a batch that makes one step.")
    if not hasattr(batches, "__iter__"):
        raise OptionError(f"batches is {batches!r}; expected a loader or another iterable of batches.")
    session = Session(measure_all, on_done=lambda: None, step_per_batch=True, pace=pace)
    source = Source(batches, own_line(sys._getframe(1)))
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
        measured = session.measurements()
    finally:
        session.remove()
    wrong = [*faults_of(batches, valid_batches, seconds=CHECK_SECONDS * min(1.0, pace)), *wrong_losses(measured.losses)]
    return conclude(measured, correctness=wrong)
