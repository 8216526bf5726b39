"""The log of a run: the numbers of each step, from the device to metrics.jsonl.

    Readout                  the numbers of each step, read some steps later, so that the host never waits for them
    Log                      gives them to metrics.jsonl, to the loggers and to the progress bar
    JsonLines, read_lines    metrics.jsonl, written and read

Rows of a window are written by the device itself; a full window is copied to the host while the steps continue, and is read when
the copy has ended. On a CPU the same rows are simply there.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from stoker._clock import now_utc
from stoker._disk import LogFile
from stoker._progress import TrainingProgress
from stoker.errors import OptionError, TrainError
from stoker.train.loggers import Writer


class Window(NamedTuple):
    """The numbers of some steps, the first of them `first`."""

    first: int
    names: tuple[str, ...]
    rows: torch.Tensor
    """`[steps, names]`, on the host."""

    def column(self, name: str) -> list[float]:
        """One number of each step."""
        values: list[float] = self.rows[:, self.names.index(name)].tolist()
        return values

    def means(self, kept: list[bool]) -> dict[str, float]:
        """The mean of each number over some of the steps."""
        return dict(zip(self.names, self.rows[torch.tensor(kept)].double().mean(0).tolist(), strict=True))


class _UnderWay(NamedTuple):
    first: int
    device_rows: torch.Tensor
    host_rows: torch.Tensor
    copied: Any


class Readout:
    """A row of numbers a step; the first step says which."""

    def __init__(self, device: torch.device, *, capacity: int) -> None:
        self._names: tuple[str, ...] = ()
        self._known: Collection[str] = ()
        self._capacity = capacity
        self._rows = torch.zeros(capacity, 0, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._on_device = device.type == "cuda"
        self._host_rows: list[list[float]] = []  # of a CPU: numbers that need not be waited for
        self._under_way: deque[_UnderWay] = deque()
        self.first = 0
        """The step of the first row of the window."""
        self.count = 0
        """Rows in the window; code that replays a recorded graph counts here."""

    def record(self, values: Mapping[str, torch.Tensor]) -> None:
        """Write the row of a step. Device work only, also within a graph; `count` is the caller's to move."""
        if values.keys() != self._known:
            self._begin_columns(values)
        if self._on_device:
            self._rows.index_copy_(0, self._place, torch.stack([value.float() for value in values.values()])[None])
            self._place.add_(1)
        else:
            self._host_rows[self.count :] = [[value.item() for value in values.values()]]

    def _begin_columns(self, values: Mapping[str, torch.Tensor]) -> None:
        if self._names:
            raise TrainError(
                f"the loss function returns {', '.join(values)} now, but {', '.join(self._names)} before. Return the same."
            )
        self._names, self._known = tuple(values), dict(values).keys()
        self._rows = torch.zeros(self._capacity, len(values), device=self._rows.device)

    def tensors(self) -> list[torch.Tensor]:
        """What steps must find as it was when they are tried out; rows past the place are written over."""
        return [self._place]

    def latest(self) -> torch.Tensor | None:
        """The row of the last step, where it can be had without waiting."""
        if self._on_device:
            return self._under_way[-1].host_rows[-1] if self._under_way and self._under_way[-1].copied.query() else None
        return self._filled()[-1] if self.count else None

    def _filled(self) -> torch.Tensor:
        """The rows of the window so far."""
        if self._on_device:
            return self._rows[: self.count]
        return torch.tensor(self._host_rows, dtype=torch.float32).reshape(self.count, len(self._names))

    def take(self) -> None:
        """End the window, and begin a new one with the next step."""
        if not self.count:
            return
        rows = self._filled().clone()
        host, copied = rows, None
        if self._on_device:
            host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            host.copy_(rows, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        self._under_way.append(_UnderWay(self.first, rows, host, copied))
        self.begin(self.first + self.count)

    def drop(self) -> None:
        """Forget windows that have not been read: what came after an update that must not take place."""
        self._under_way.clear()

    def begin(self, first: int) -> None:
        """Begin an empty window with this step."""
        self.first, self.count, self._host_rows = first, 0, []
        self._place.zero_()

    def ready(self, *, wait: bool = False) -> list[Window]:
        """Windows that have arrived since the last call; with `wait` all that were taken."""
        windows = []
        while self._under_way:
            first, _, rows, copied = self._under_way[0]
            if copied is not None and not (wait or copied.query()):
                break
            if copied is not None:
                copied.synchronize()
            self._under_way.popleft()
            windows.append(Window(first, self._names, rows))
        return windows

    def window(self) -> Window:
        """The window that grows, on a device where one need not wait for it."""
        return Window(self.first, self._names, self._filled())

    def state_dict(self) -> dict[str, Any]:
        """What has not been read yet: windows under way and the one that grows, as tensors on the device."""
        under_way = [{"first": one.first, "rows": one.device_rows} for one in self._under_way]
        return {"names": list(self._names), "under_way": under_way, "first": self.first, "rows": self._filled()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what had not been read when the state was saved."""
        self._under_way.clear()
        if state["names"]:
            self._names = tuple(state["names"])
            self._known = dict.fromkeys(self._names).keys()
            # A window may have been longer before, and continues to the end of one of now.
            self._capacity += len(state["rows"])
            self._rows = torch.zeros(self._capacity, len(self._names), device=self._rows.device)
        for one in state["under_way"]:
            self._under_way.append(_UnderWay(one["first"], one["rows"], one["rows"].cpu(), None))
        rows = state["rows"]
        self.begin(state["first"])
        self.count = len(rows)
        if self._on_device:
            self._rows[: self.count].copy_(rows)
            self._place.fill_(self.count)
        else:
            self._host_rows = rows.tolist()


# The log of a run: its numbers go to metrics.jsonl, to all loggers, and to the bar.


class Log:
    """Where the numbers of a run go. A writer that fails is dropped, with one warning that says why; it never stops the run."""

    def __init__(self, writers: Iterable[Writer], bar: TrainingProgress | None = None) -> None:
        self._writers = list(writers)
        for writer in self._writers:
            if isinstance(writer, type) or not all(callable(getattr(writer, name, None)) for name in ("write", "close")):
                raise OptionError(
                    f"loggers holds {writer!r}; expected what has write(step, values) and close(), such as TensorBoard(…)."
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


# metrics.jsonl: one JSON object a line, `{"step": 50, "time": "2026-11-15T16:20:00.123Z", "loss": 0.25, …}`.
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
            raise OptionError(f"{self.path}: a value is named {min(wrong)!r}, which each line has already. Give it another name.")
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
