"""Progress of long work on stderr: a live bar on a terminal, plain lines or nothing elsewhere.

progress            a bar for work in phases, such as packing
TrainingProgress    a bar for training steps
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self, TextIO

from stoker._clock import now_ns
from stoker._text import readable_seconds

if TYPE_CHECKING:
    from rich.progress import Progress

Show = Callable[[str, float, int], None]
"""Gets the phase, the share of it that is done, and the count so far."""


@contextlib.contextmanager
def progress(*, unit: str, enabled: bool = True) -> Iterator[Show]:
    """A function to report to. The bar shows the phase, its share, a rate in `unit` per second, and the time left."""
    if not enabled or not sys.stderr.isatty():
        yield lambda phase, share, count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<15}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn(f"{{task.fields[rate]}} {unit}/s"),
        TextColumn("left"),
        TimeRemainingColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=8) as bar:
        tasks: dict[str, TaskID] = {}

        def show(phase: str, share: float, count: int) -> None:
            if phase not in tasks:
                for earlier in tasks.values():
                    bar.update(earlier, visible=False)
                tasks[phase] = bar.add_task(phase, total=1.0, rate="0")
            elapsed = bar.tasks[list(tasks).index(phase)].elapsed or 0.0
            bar.update(tasks[phase], completed=share, rate=f"{count / elapsed:,.0f}" if elapsed > 0.2 else "…")

        yield show


# Progress of training: it gets numbers that the host has, so it never waits for the device. Called at each step, it draws at most ten
# times per second, and otherwise costs one reading of the clock.

DRAW_NS = 100_000_000
LINE_NS = 30_000_000_000
NEVER_NS = 2**63
SMOOTH_SECONDS = 5.0


class TrainingProgress:
    """Shows how far a run is: step, epoch, it/s, loss, the share of time that it waits for data, and the time left.

    `total` is the number of all updates, if it is known. Use it as a context, or `close` it.
    """

    def __init__(self, total: int | None, *, enabled: bool = True, epochs: int | None = None, file: TextIO | None = None) -> None:
        self.total = total
        self._epochs = epochs
        self._file = sys.stderr if file is None else file
        is_live = self._file.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self._bar = _make_bar(total, self._file) if enabled and is_live else None
        self._period_ns = LINE_NS if self._bar is None else DRAW_NS
        self._last_ns = now_ns()
        self._due_ns = self._last_ns if enabled else NEVER_NS
        self._last_step: int | None = None
        self._rate = 0.0
        self._seen: tuple[int, float | None, float | None, float | None, int | None] | None = None
        self._shown_step: int | None = None

    def update(
        self,
        step: int,
        *,
        loss: float | None = None,
        rate: float | None = None,
        wait: float | None = None,
        epoch: int | None = None,
    ) -> None:
        """Say that `step` updates are done. Without `rate` (updates per second) it is measured here.

        `wait` is a share of the time, from 0 to 1; `epoch` counts from 0. All are numbers of the host, never tensors.
        """
        self._seen = (step, loss, rate, wait, epoch)
        now = now_ns()
        if now >= self._due_ns:
            self._due_ns = now + self._period_ns
            if self._last_step is None and self._bar is None:
                self._last_ns, self._last_step = now, step  # where rates are measured from; a line comes later
            else:
                self._show(now)

    def _show(self, now: int) -> None:
        if self._seen is None or self._seen[0] == self._shown_step:
            return
        step, loss, rate, wait, epoch = self._seen
        seconds = (now - self._last_ns) / 1e9
        if rate is not None:
            self._rate = rate
        elif self._last_step is not None and seconds > 0:
            latest = (step - self._last_step) / seconds
            # The first rate is taken as it is; later ones count by how long they were measured.
            self._rate += (latest - self._rate) * (-math.expm1(-seconds / SMOOTH_SECONDS) if self._rate else 1.0)
        self._last_ns, self._last_step, self._shown_step = now, step, step
        parts = self._parts(step, loss, wait, epoch)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step, description=parts[0], text="  ".join(parts[1:]))
            self._bar.refresh()
        else:
            print(" · ".join(parts), file=self._file, flush=True)

    def _parts(self, step: int, loss: float | None, wait: float | None, epoch: int | None) -> list[str]:
        is_live, rate = self._bar is not None, self._rate
        of = "/" if is_live else " of "
        parts = [f"step {step:,}" + (f"{of}{self.total:,}" if self.total else "")]
        if epoch is not None:
            parts.insert(0 if is_live else 1, f"epoch {epoch + 1:,}" + (f"{of}{self._epochs:,}" if self._epochs else ""))
        if rate:
            parts.append(f"{rate:,.0f} it/s" if rate >= 100 else f"{rate:.3g} it/s" if rate >= 0.1 else f"{1 / rate:,.0f} s/it")
        if loss is not None:
            parts.append(f"loss {loss:.4g}")
        if wait is not None:
            parts.append(f"wait {100 * wait:.0f} %")
        if self.total and rate and step < self.total:
            parts.append(f"{readable_seconds(max(1, round((self.total - step) / rate)))} left")
        return parts

    def note(self, text: str) -> None:
        """Print a line that stays, above the bar; nothing where progress is off."""
        if self._due_ns == NEVER_NS:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._file, flush=True)

    def close(self) -> None:
        """Show the last numbers and leave them there."""
        if self._due_ns != NEVER_NS:
            self._show(now_ns())
            self._due_ns = NEVER_NS
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _make_bar(total: int | None, file: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # The numbers matter most: a narrow terminal takes its columns from the bar.
    bar = Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
        console=Console(file=file),
        auto_refresh=False,  # its thread would take the GIL from the loop
        expand=True,
        redirect_stdout=sys.stdout.isatty(),  # what goes to a file shall go there
    )
    bar.add_task("", total=total, text="")
    bar.start()
    return bar
