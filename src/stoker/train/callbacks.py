"""Callbacks: code of the user that a training run calls after each update or epoch.

    class Stop:
        def on_epoch_end(self, report):
            if report.metrics["val_loss"] < 0.1:
                report.stop()

    stoker.Trainer(model, loss, optimizer, callbacks=[Stop()])

A callback has one of the two methods, or both. With several ranks, each rank calls its own. What a callback raises ends the run. The state
of a callback is not saved: a resumed run calls new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class CallbackReport:
    """What a callback gets.

    Args:
        step: Updates so far.
        epoch: The number of the epoch, from 0.
        lr: Learning rate of the first parameter group.
        metrics: Metrics of the epoch, as the log has them: `loss`, and those of the validation with `val_`. After an update empty.
    """

    step: int
    epoch: int
    lr: float
    metrics: Mapping[str, float]
    read_loss: Callable[[], float]
    ask_to_stop: Callable[[], None]

    @property
    def loss(self) -> float:
        """The loss of the last update, or the mean of the epoch. On a GPU, to read it after an update waits for the update."""
        return self.metrics["loss"] if "loss" in self.metrics else self.read_loss()

    def stop(self) -> None:
        """End the run: it is saved, and `Result.stopped` is "callback". With ranks, all end as soon as one asks."""
        self.ask_to_stop()


class EpochCallback(Protocol):
    """Called after each epoch, when it is evaluated and, where that is due, saved."""

    def on_epoch_end(self, report: CallbackReport) -> None:
        """Called with the metrics of the epoch."""


class BatchCallback(Protocol):
    """Called after each update of the weights."""

    def on_batch_end(self, report: CallbackReport) -> None:
        """Called with the number of the update."""


Callback = EpochCallback | BatchCallback
METHODS = ("on_epoch_end", "on_batch_end")


def check_callbacks(given: Sequence[Callback]) -> tuple[Callback, ...]:
    """The callbacks; refuses what has neither method."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise OptionError(f"callbacks is {given!r}; expected a list of objects with on_epoch_end(report) or on_batch_end(report).")
    for number, one in enumerate(given):
        if isinstance(one, type) or not any(callable(getattr(one, name, None)) for name in METHODS):
            raise OptionError(
                f"callbacks[{number}] is {one!r}; expected an object with the method on_epoch_end(report) or on_batch_end(report)."
            )
    return tuple(given)


def methods_of(callbacks: Sequence[Callback], name: str) -> tuple[Callable[[CallbackReport], Any], ...]:
    """The methods of this name, of those callbacks that have it."""
    return tuple(method for one in callbacks if callable(method := getattr(one, name, None)))
