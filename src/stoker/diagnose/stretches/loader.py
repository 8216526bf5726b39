"""The loader by itself, while the loop waits: how fast it makes batches (D), and which part of making one takes the time."""

from __future__ import annotations

from stoker.clock import now_ns
from stoker.diagnose.stages import profile_loader
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
    """Which part of making a batch takes the time."""
    training = steps.training
    source = training.sources.found
    if source is None or source.loader is None:
        return
    try:
        training.ledger.profile = profile_loader(source.loader, seconds=steps.length(0.5))
    except Exception as error:  # the user's: a dataset may need what only its workers have
        if not source.loader.num_workers:
            raise
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        training.ledger.notes.append(f"The dataset works in its workers only ({told}), so making a batch could not be looked into.")
