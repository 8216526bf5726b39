"""A training step as a function, in a notebook or a test: the same stretches as for a script, on a loop of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stoker.clock import now_ns
from stoker.diagnose.copies import leaves
from stoker.diagnose.measurements import Measurements
from stoker.diagnose.own import own_frame, place_of
from stoker.errors import BatchesInvalid, OptionError

if TYPE_CHECKING:
    from stoker.diagnose.finding import Finding


def step(train_step: Callable[[Any], object], batches: Iterable[Any], *, valid_batches: Iterable[Any] | None = None) -> Finding:
    """Call `train_step(batch)` until it is known what holds it back; `batches` are gone through as often as needed.

    The model is trained meanwhile: pass a step that works on a copy where that matters. `valid_batches` are looked at only for
    samples that are trained on, too.
    """
    from stoker.diagnose.conclude import conclude
    from stoker.diagnose.correctness import find_wrong, wrong_losses
    from stoker.diagnose.scripts import CHECK_SECONDS

    measured = measure_step(train_step, batches)
    wrong = [*find_wrong(batches, valid_batches, seconds=CHECK_SECONDS), *wrong_losses(measured.losses)]
    return conclude(measured, correctness=wrong)


def measure_step(train_step: Callable[[Any], object], batches: Iterable[Any], *, pace: float = 1.0) -> Measurements:
    """What a verdict is made of; `pace` as for scripts."""
    import sys

    from stoker.diagnose.session import Session
    from stoker.diagnose.watched import Source, Watched

    if not callable(train_step):
        raise OptionError(f"train_step is {train_step!r}; expected a function that is given a batch and makes one step.")
    if not hasattr(batches, "__iter__"):
        raise OptionError(f"batches is {batches!r}; expected a loader or another iterable of batches.")
    session = Session(on_done=lambda: None, every_turn=True, pace=pace)
    training = session.training
    frame = own_frame(sys._getframe(1))
    source = Source(batches, place_of(frame) if frame is not None else None)
    training.boundaries.install()
    training.boundaries.find_roots()
    try:
        watched = Watched(training.sources, source, source.fresh(), now_ns())
        for number, batch in enumerate(watched):
            train_step(batch)
            if number == 1:
                source.gives_batches = next(leaves(batch), None) is not None
                training.sources.take(source)
                session.take_control()
        while not session.done and source.can_repeat and source.nexts + training.boundaries.steps:
            watched.restart()
            for batch in watched:
                train_step(batch)
        if session.failure is not None:
            raise session.failure
        if not source.nexts:
            raise BatchesInvalid("batches has none; expected an iterable that gives at least one.")
        return training.measurements()
    finally:
        session.remove()
