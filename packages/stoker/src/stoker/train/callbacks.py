"""Callbacks: code of the user that a training run calls after each update or epoch, or when it writes something.

With several ranks, each rank calls its own callbacks; only the first rank writes. What a callback raises ends the run. The state of a
callback is not saved: a resumed run calls new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.errors import OptionError
from stoker.train.loggers import Writer


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


class OpenCallback(Protocol):
    """Called before run.json is written, on the rank that writes it: for files that are to be kept with the run."""

    def on_open(self) -> None:
        """Called when the run is about to begin; a run that is refused or fails before that leaves no file."""


class SaveCallback(Protocol):
    """Called on every rank when a checkpoint is on the disk; the run waits for it."""

    def on_save(self, step: int, metrics: dict[str, float]) -> None:
        """Called with the step of the checkpoint and the metrics of the last epoch."""


Callback = EpochCallback | BatchCallback | OpenCallback | SaveCallback | Writer
METHODS = ("on_epoch_end", "on_batch_end", "write", "on_open", "on_save")
_EXPECTED = "with on_epoch_end(report), on_batch_end(report) or write(step, values)"


def check_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """Return the callbacks; refuse an object without any of the methods."""
    if isinstance(callbacks, str | Mapping) or not isinstance(callbacks, Sequence):
        raise OptionError(f"callbacks is {callbacks!r}; expected a list of objects {_EXPECTED}.", parameter="callbacks")
    for number, callback in enumerate(callbacks):
        if isinstance(callback, type) or not any(callable(getattr(callback, name, None)) for name in METHODS):
            raise OptionError(f"callbacks[{number}] is {callback!r}; expected an object {_EXPECTED}.", parameter="callbacks")
    return tuple(callbacks)


def methods_of(callbacks: Sequence[Callback], name: str) -> tuple[Callable[..., Any], ...]:
    """Return the methods of this name, of those callbacks that have it."""
    return tuple(method for callback in callbacks if callable(method := getattr(callback, name, None)))


def writers_of(callbacks: Sequence[Any]) -> list[Writer]:
    """Return the callbacks that get the metrics of the run as they come, such as `TensorBoard(…)`."""
    return [callback for callback in callbacks if callable(getattr(callback, "write", None))]
