"""Runs: the folders of trainings, each summed up in one line of a table. A damaged one is listed with the reason."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stoker.clock import now_utc
from stoker.errors import OptionError, TrainError
from stoker.files import is_locked
from stoker.printable import printable
from stoker.train.record import NAME, Record, read_record
from stoker.train.run import METRICS
from stoker.train.stopping import Mode, guess_mode
from stoker.train.writers.jsonl import Lines, read_lines
from stoker.units import readable_seconds

if TYPE_CHECKING:
    from rich.table import Table

State = Literal["running", "finished", "stopped", "killed", "damaged"]

LOSS, RATE, WAIT = "loss", "rate", "wait"
"""Names under which a trainer writes the loss of the training, updates a second, and the share of time spent waiting for data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """One run in short; None is what is not known."""

    path: Path
    name: str
    """The path within the folder that was searched."""
    state: State
    how: str | None = None
    """What its last session says of its end."""
    started: str | None = None
    seconds: float | None = None
    """Time that all its sessions worked on it."""
    step: int | None = None
    metric: str | None = None
    best: float | None = None
    best_step: int | None = None
    loss: float | None = None
    """The last one of the training."""
    rate: float | None = None
    """Updates a second: the median of what was written."""
    wait: float | None = None
    """The mean share of time spent waiting for data."""
    reason: str | None = None
    """What is damaged."""


def collect(folder: str | Path, *, metric: str | None = None) -> list[RunSummary]:
    """All runs in a folder (or the one that it is), the earliest first, damaged ones without a start last.

    `best` is that of `metric`; without one, of `val_loss`, another metric of validation, or the training's loss.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise OptionError(f"{folder} is no folder. Give a run, or a folder of runs.")
    found = [_summary(path, folder, metric) for path in _run_folders(folder)]
    return sorted(found, key=lambda run: (run.started is None, run.started or "", run.name))


def _run_folders(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        if NAME in files or METRICS in files:
            yield Path(place)
            folders.clear()  # a run holds no runs
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def _summary(path: Path, folder: Path, metric: str | None) -> RunSummary:
    name = path.name if path == folder else str(path.relative_to(folder))
    try:
        is_running = is_locked(path)  # looked at first: a run that ends meanwhile has its end in what is read next
        lines = read_lines(path / METRICS)
        record = read_record(path)
        seconds = _seconds(record, lines, is_running=is_running)
        return _summed_up(path, name, record, lines, metric, seconds=seconds, is_running=is_running)
    except Exception as error:  # whatever a file holds: one run that cannot be read must not hide the others
        reason = str(error) if isinstance(error, TrainError | OSError) else f"{type(error).__name__}: {error}"
        return RunSummary(path=path, name=name, state="damaged", reason=_short(reason))


def _summed_up(
    path: Path, name: str, record: Record, lines: Lines, metric: str | None, *, seconds: float, is_running: bool
) -> RunSummary:
    best_name, best, best_step = _best(lines, metric)
    how = record.last.how
    state: State = (
        "running" if is_running else "killed" if how is None else "finished" if how in ("finished", "early") else "stopped"
    )
    return RunSummary(
        path=path,
        name=name,
        state=state,
        how=how,
        started=record.sessions[0].started,
        seconds=seconds,
        step=record.last.last_step if record.last.last_step is not None else lines.last_step,
        metric=best_name,
        best=best,
        best_step=best_step,
        loss=_values(lines, LOSS)[-1] if _values(lines, LOSS) else None,
        rate=_median(_values(lines, RATE)),
        wait=_mean(_values(lines, WAIT)),
        reason=f"{lines.damaged:,} lines of {METRICS} cannot be read" if lines.damaged else None,
    )


def _seconds(record: Record, lines: Lines, *, is_running: bool) -> float:
    """A session that was killed worked until its last line, as far as is known."""
    total = 0.0
    for session in record.sessions:
        is_last = session is record.last
        ended = session.ended or (now_utc() if is_last and is_running else lines.last_time if is_last else None)
        if ended is not None:
            total += max(0.0, (_time(ended) - _time(session.started)).total_seconds())
    return total


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _best(lines: Lines, metric: str | None) -> tuple[str | None, float | None, int | None]:
    validated = sorted(name for name in lines.curves if name.startswith("val_"))
    for name in [metric] if metric is not None else ["val_loss", *validated, LOSS]:
        mode = guess_mode(name) or ("min" if metric is not None else None)
        if name in lines.curves and mode is not None:
            return name, *_best_of(*lines.curves[name], mode)
    return metric, None, None


def _best_of(steps: Sequence[int], values: Sequence[float], mode: Mode) -> tuple[float | None, int | None]:
    finite = [(value, step) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    if not finite:
        return None, None
    return (min if mode == "min" else max)(finite, key=lambda pair: pair[0])


def _values(lines: Lines, name: str) -> list[float]:
    return lines.curves.get(name, ([], []))[1]


def _median(values: Sequence[float]) -> float | None:
    ordered = sorted(value for value in values if math.isfinite(value))
    return ordered[len(ordered) // 2] if ordered else None


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else None


def table(runs: Sequence[RunSummary]) -> Table:
    """The runs as a table for a terminal; below it what is damaged."""
    from rich.table import Table
    from rich.text import Text

    metrics = {run.metric for run in runs if run.best is not None}
    best_title = f"best {_short(metrics.pop() or '')}" if len(metrics) == 1 else "best"
    damaged = [f"{printable(run.name)}: {printable(run.reason)}" for run in runs if run.reason is not None]
    caption = Text("\n".join(damaged), style="red") if damaged else None
    shown = Table(box=None, header_style="bold", pad_edge=False, caption=caption, caption_justify="left")
    shown.add_column("run", overflow="fold", min_width=12)
    for title in ("state", "started (UTC)"):
        shown.add_column(title, no_wrap=True)
    for title in ("took", "step", best_title, "loss", "it/s", "wait"):
        shown.add_column(Text(printable(title)), justify="right", no_wrap=True)
    for run in runs:
        best = "" if run.best is None else f"{run.best:.4g}" + (f" {_short(run.metric or '')}" if best_title == "best" else "")
        how = f" ({run.how})" if run.how not in (None, "finished") else ""
        shown.add_row(
            Text(printable(run.name)),
            Text(printable(_short(run.state + how)), style=STYLES[run.state]),
            Text(printable((run.started or "")[:16].replace("T", " "))),
            "" if run.seconds is None else readable_seconds(run.seconds) if run.seconds >= 1 else "< 1 s",
            _shown(run.step, ","),
            Text(printable(best)),
            _shown(run.loss, ".4g"),
            _shown(run.rate, ",.0f" if run.rate and run.rate >= 100 else ".3g"),
            _shown(run.wait, ".0%").replace("%", " %"),
        )
    return shown


LONGEST = 200
STYLES = {"running": "cyan", "finished": "green", "stopped": "yellow", "killed": "red", "damaged": "red"}


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _short(text: str) -> str:
    """A text of a file, as much of it as a table holds."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
