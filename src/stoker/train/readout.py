"""Readout: the numbers of each step, kept on the device and read some steps later, so that the host never waits for them.

Rows of a window are written by the device itself; a full window is copied to the host while the steps continue, and is read when
the copy has ended. On a CPU the same rows are simply there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from stoker._progress import TrainingProgress
from stoker.errors import TrainError
from stoker.train.loggers import Writer, Writers


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


# The log of a run: numbers go to all loggers, and to the bar.


class Log:
    """Where the numbers of a run go."""

    def __init__(self, writers: Sequence[Writer], bar: TrainingProgress | None = None) -> None:
        self._writers = Writers(writers)
        self._bar = bar
        self._rate: float | None = None
        self._loss: float | None = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of some steps, the last of them `step`."""
        self._rate, self._loss = values.get("rate", self._rate), values.get("loss", self._loss)
        self._writers.write(step, values)

    def draw(self, step: int, row: torch.Tensor | None, *, wait: float, epoch: int) -> None:
        """Show how far the training is."""
        if self._bar is not None:
            loss = float(row[0]) if row is not None else self._loss
            self._bar.update(step, loss=loss, rate=self._rate, wait=wait, epoch=epoch)

    def close(self) -> None:
        """End the bar and all writers."""
        if self._bar is not None:
            self._bar.close()
        self._writers.close()
