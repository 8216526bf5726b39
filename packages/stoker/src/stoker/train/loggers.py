"""Loggers: where the metrics of a run go.

    Writer                                 what a logger can do
    JsonLines, read_lines                  metrics.jsonl, written and read; every run has one
    TensorBoard, Wandb                     imported when one is made, each an extra of stoker
    make_writer                            one of these by its name, as a config gives it
    Log                                    gives the numbers of a run to all of them, and to the progress bar

A logger that fails is dropped with a warning (`Log`); it never stops the training.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from stoker._clock import now_utc
from stoker._disk import LogFile
from stoker._progress import TrainingProgress
from stoker._text import how_to_install
from stoker.errors import OptionError, TrainError

if TYPE_CHECKING:
    import torch


class Writer(Protocol):
    """What a logger can do: it gets the metrics of a run as they come.

    For MLflow: `write` calls `mlflow.log_metrics(dict(values), step=step)` and `close` calls `mlflow.end_run()`; for trackio:
    `trackio.log(dict(values), step=step)` and `trackio.finish()`.

    Example:
        >>> class Printer:
        ...     def write(self, step, values):
        ...         print(step, values)
        ...     def close(self):
        ...         pass
        >>> Printer().write(50, {"loss": 0.5})
        50 {'loss': 0.5}
    """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of one step; steps do not go back."""

    def close(self) -> None:
        """Put away what is still held; nothing comes after."""


# Packages that only some need: imported when a writer is made, so that a missing one is known before training starts.


def import_extra(module: str, *, writer: str, extra: str) -> Any:
    """The module, or one line that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise OptionError(
            f"{writer} needs a package that is missing ({error}). {how_to_install(extra)}", parameter="writers"
        ) from error


class TensorBoard:
    """Writes scalars for TensorBoard. A resumed run hides what its folder has of the steps that are done again.

    Args:
        folder: Where the event files go.

    Example:
        >>> trainer = stoker.Trainer(model, loss, optimizer, callbacks=[TensorBoard("runs/a/events")])  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._module = import_extra("torch.utils.tensorboard", writer="TensorBoard", extra="tensorboard")
        self._events: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        if self._events is None:
            # Only now is the first step known: TensorBoard drops what earlier files have from it on.
            self._events = self._module.SummaryWriter(log_dir=str(self.folder), purge_step=step)
        for name, value in values.items():
            self._events.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        """Write the rest and close the file."""
        if self._events is not None:
            self._events.close()


class Wandb:
    """Logs to a run of Weights & Biases.

    Args:
        options: Those of `wandb.init`: project, name, id, resume, mode, config, …

    Example:
        >>> trainer = stoker.Trainer(model, loss, optimizer, callbacks=[Wandb(project="walks")])  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        module = import_extra("wandb", writer="Wandb", extra="wandb")
        self._run = module.init(**options)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


_MAKE: dict[str, Callable[[Path], Writer]] = {
    "tensorboard": lambda folder: TensorBoard(folder / "tensorboard"),
    "wandb": lambda folder: Wandb(name=folder.name, dir=str(folder)),
}
NAMES = tuple(_MAKE)


def make_writer(name: str, *, folder: str | Path) -> Writer:
    """The writer of this name, for the run in a folder."""
    if name not in _MAKE:
        raise OptionError.expected("writer", name, f"{', '.join(repr(name) for name in NAMES)}")
    return _MAKE[name](Path(folder).absolute())


# metrics.jsonl: one JSON object per line, `{"step": 50, "time": "2026-11-15T16:20:00.123Z", "loss": 0.25, …}`.
#
# Numbers that JSON lacks are the strings "NaN", "Infinity" and "-Infinity". Apart from `time`, the same training makes the same
# bytes.

MAX_LINE_BYTES = 1 << 20
RESERVED = frozenset({"step", "time"})
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class JsonLines:
    """Appends to a file of JSON lines; what it has written survives the death of the process.

    `from_step` cuts a file that is there back to the lines of steps up to it, so that a run continues from a checkpoint as if the
    steps after it had never been: lines of a step must be written before its checkpoint. Without it nothing is cut but a torn line.
    """

    def __init__(self, path: str | Path, *, from_step: int | None = None) -> None:
        self.path = Path(path)

        def keep(line: bytes) -> bool:
            entry = _decoded(line)
            return from_step is None or entry is None or entry["step"] <= from_step

        self._log = LogFile(self.path, keep=keep)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one line."""
        wrong = RESERVED & values.keys()
        if wrong:
            raise OptionError(
                f"{self.path}: a value is named {min(wrong)!r}, which each line has already. Give it another name.", path=self.path
            )
        numbers = {name: _encoded(value) for name, value in values.items()}
        self._log.append(msgspec.json.encode({"step": step, "time": now_utc(), **numbers}) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._log.close()


@dataclass(frozen=True, slots=True)
class Lines:
    """What a metrics.jsonl holds."""

    curves: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    """For each name its steps and values, in the order of the file."""
    last_step: int | None = None
    last_time: str | None = None
    damaged: int = 0
    """Whole lines that cannot be read; a torn last line is not one of them."""


def read_lines(path: Path) -> Lines:
    """Read a metrics.jsonl, also one that is being written. A file that is not there has no lines."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    last_step, last_time, damaged = None, None, 0
    for line in _whole_lines(path):
        parsed = parse_line(line)
        if parsed is None:
            damaged += 1
            continue
        last_step, time, numbers = parsed
        last_time = time or last_time
        for name, number in numbers.items():
            steps, values = curves.setdefault(name, ([], []))
            steps.append(last_step)
            values.append(number)
    return Lines(curves=curves, last_step=last_step, last_time=last_time, damaged=damaged)


def parse_line(line: bytes) -> tuple[int, str | None, dict[str, float]] | None:
    """The step, the time and the numbers of a line of metrics.jsonl; None for one that cannot be read."""
    entry = _decoded(line)
    if entry is None:
        return None
    step, time = entry.pop("step"), entry.pop("time", None)
    numbers = {}
    for name, value in entry.items():
        number = _WORDS.get(value) if isinstance(value, str) else value
        if isinstance(number, int) and abs(number) > 2**63:
            continue  # not a metric; some are beyond float64 too
        if isinstance(number, int | float) and not isinstance(number, bool):
            numbers[name] = float(number)
    return step, time if isinstance(time, str) else None, numbers


def _whole_lines(path: Path) -> Iterator[bytes]:
    if not path.exists():
        return
    if not path.is_file():  # a FIFO would let the reader wait forever
        raise TrainError(f"{path} is not a plain file.")
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            is_whole = len(line) < MAX_LINE_BYTES
            while not line.endswith(b"\n") and len(line) == MAX_LINE_BYTES:
                line = file.readline(MAX_LINE_BYTES)
            if line.endswith(b"\n"):
                yield line if is_whole else b""


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        entry = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    step = entry.get("step")
    return entry if isinstance(step, int) and not isinstance(step, bool) and -(2**63) <= step < 2**63 else None


def _encoded(value: float) -> float | str:
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


class Log:
    """Where the numbers of a run go. A writer that fails is dropped, with one warning that says why; it never stops the run."""

    def __init__(self, writers: Iterable[Writer], bar: TrainingProgress | None = None) -> None:
        self._writers = list(writers)
        for writer in self._writers:
            if isinstance(writer, type) or not all(callable(getattr(writer, name, None)) for name in ("write", "close")):
                raise OptionError(
                    f"loggers holds {writer!r}; expected what has write(step, values) and close(), such as TensorBoard(…).",
                    parameter="loggers",
                )
        self._bar = bar
        self._rate: float | None = None
        self._loss: float | None = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of some steps, the last of them `step`."""
        self._rate, self._loss = values.get("rate", self._rate), values.get("loss", self._loss)
        for writer in list(self._writers):
            try:
                writer.write(step, values)
            except Exception as error:  # a logger must not stop the run
                self._writers.remove(writer)
                _warn(writer, error, f"at step {step:,}; no further values are sent to it")

    def draw(self, step: int, row: torch.Tensor | None, *, wait: float, epoch: int) -> None:
        """Show how far the training is."""
        if self._bar is not None:
            loss = float(row[0]) if row is not None else self._loss
            self._bar.update(step, loss=loss, rate=self._rate, wait=wait, epoch=epoch)

    def close(self) -> None:
        """End the bar and all writers."""
        if self._bar is not None:
            self._bar.close()
        for writer in self._writers:
            try:
                writer.close()
            except Exception as error:
                _warn(writer, error, "as it was closed; its last numbers may be missing")
        self._writers.clear()


def _warn(writer: Writer, error: Exception, when: str) -> None:
    reason = " ".join(str(error).split()) or "no reason given"
    warnings.warn(f"writer {type(writer).__name__} failed {when}. {type(error).__name__}: {reason}", RuntimeWarning, stacklevel=3)
