"""The loader by itself, while the loop waits: how fast it makes batches (D), and which part of making one takes the time."""

from __future__ import annotations

import functools

from stoker.clock import now_ns
from stoker.diagnose.profile import profile_iterable, profile_loader
from stoker.diagnose.steps import Steps
from stoker.diagnose.watched import Watched


def alone(steps: Steps, *, seconds: float) -> None:
    """D: batches one after the other, the queue thrown away first."""
    training, ledger = steps.training, steps.training.ledger
    watched = training.watched
    if watched is None:
        return
    for _ in range(training.queue + 1):
        _pull(watched)
    ledger.begin(ledger.loader_alone)
    begin, count = now_ns(), 0
    while count < 200 and (count < 4 or now_ns() - begin < steps.length(seconds) * 1e9):
        spent, whole = _pull(watched)
        if whole:
            ledger.loader_alone.append(spent)
        count += 1


def _pull(watched: Watched) -> tuple[float, bool]:
    """Seconds to make a batch and to let it go, and whether a pass went on with it."""
    start = now_ns()
    try:
        next(watched.iterator)
    except StopIteration:
        watched.restart()
        next(watched.iterator)
        return (now_ns() - start) / 1e9, False
    return (now_ns() - start) / 1e9, True


def look_into(steps: Steps) -> None:
    """Which part of making a batch takes the time, and what it reads."""
    training = steps.training
    source, watched = training.sources.found, training.watched
    if source is None or not source.gives_batches:
        return
    seconds, loader = steps.length(0.5), source.loader
    if loader is None:
        if watched is not None and training.can_repeat and _makes_batches(source.iterable):
            training.ledger.profile = profile_iterable(functools.partial(_pull, watched), seconds=seconds)
        return
    try:
        training.ledger.profile = profile_loader(loader, seconds=seconds)
    except Exception as error:  # the user's: a dataset may need what only its workers have
        if not loader.num_workers:
            raise
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        training.ledger.notes.append(f"The dataset works in its workers only ({told}), so making a batch could not be looked into.")


def _makes_batches(iterable: object) -> bool:
    """Whether going through it does the work, and not a list that has all batches or threads of our own."""
    return type(iterable).__module__.split(".")[0] not in ("builtins", "stoker")
