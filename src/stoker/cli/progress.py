"""Progress of long work: a live bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Show = Callable[[str, float, int], None]
"""Gets the phase, the share of it that is done, and the count so far."""


def _quiet(phase: str, share: float, count: int) -> None:
    return None


@contextlib.contextmanager
def progress(*, unit: str, enabled: bool = True) -> Iterator[Show]:
    """A function to report to. The bar shows the phase, its share, a rate in `unit` a second, and the time left."""
    if not enabled or not sys.stderr.isatty():
        yield _quiet
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
            task = bar.tasks[list(tasks).index(phase)]
            elapsed = task.elapsed or 0.0
            rate = f"{count / elapsed:,.0f}" if elapsed > 0.2 else "…"
            bar.update(task.id, completed=share, rate=rate)

        yield show
