"""What a page shows of runs, kept up to date from their files.

`Board` follows all runs of a folder, `FollowedRun` one of them. A metrics.jsonl is read once, from where the last reading ended, and its
curves are thinned while they are read: a run of a day needs as much memory as one of a minute.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import Any

import msgspec

from stoker._clock import now_utc
from stoker._disk import is_locked
from stoker.errors import TrainError
from stoker.train.early_stopping import guess_mode
from stoker.train.loggers import parse_line
from stoker.train.run import (
    CHECKPOINTS,
    LOSS,
    METRICS,
    NAME,
    RATE,
    SLOWDOWNS,
    WAIT,
    Record,
    find_runs,
    read_record,
    read_slowdowns,
    state_of,
)

MOST_POINTS = 300
"""Of a curve on the page; at least half of it once a curve is that long."""
MOST_SLOWDOWNS = 20
MOST_CURVES = 64
LONGEST_VALUE = 200
READ_BYTES, TAIL_BYTES = 1 << 20, 256
DEEPEST = 32
"""Levels of a configuration that the page shows; what is deeper is shown as text."""
UNREADABLE = (OSError, TrainError, ValueError, OverflowError, RecursionError)
"""What files of a run that are damaged, or that no run wrote, raise: integers of 400 digits, or lists in lists without end."""
DIAGNOSIS = "diagnosis.json"
"""A finding of `stoker diagnose --json`, if somebody put one into the folder of the run: the page shows the speed without loading."""


@dataclass(slots=True)
class ThinnedCurve:
    """A curve thinned to at most `MOST_POINTS` points, each the mean, least and greatest of `width` values.

    When it is full, neighbours are joined and the width doubles, so points depend on the values alone, not on when they were read.
    NaN and Inf are kept apart, as the steps at which they came.
    """

    width: int = 1
    steps: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    non_finite: list[int] = field(default_factory=list)
    last: float | None = None
    least: tuple[float, int] | None = None
    greatest: tuple[float, int] | None = None

    def add(self, step: int, value: float) -> None:
        """One more value."""
        self.last = value
        if not math.isfinite(value):
            if len(self.non_finite) < MOST_POINTS:
                self.non_finite.append(step)
            return
        if self.least is None or value < self.least[0]:
            self.least = (value, step)
        if self.greatest is None or value > self.greatest[0]:
            self.greatest = (value, step)
        if self.counts and self.counts[-1] < self.width:
            self.steps[-1], self.counts[-1] = step, self.counts[-1] + 1
            self.sums[-1] += value
            self.lows[-1], self.highs[-1] = min(self.lows[-1], value), max(self.highs[-1], value)
            return
        if len(self.counts) == MOST_POINTS:
            self._halve()
        self.steps.append(step)
        self.counts.append(1)
        for values in (self.sums, self.lows, self.highs):
            values.append(value)

    def _halve(self) -> None:
        self.width *= 2
        self.steps = self.steps[1::2]
        self.counts = list(map(add, self.counts[::2], self.counts[1::2]))
        self.sums = list(map(add, self.sums[::2], self.sums[1::2]))
        self.lows = list(map(min, self.lows[::2], self.lows[1::2]))
        self.highs = list(map(max, self.highs[::2], self.highs[1::2]))

    def as_dict(self) -> dict[str, list[Any]]:
        """Its points, for JSON; six digits are more than a page can show."""
        means = [total / count for total, count in zip(self.sums, self.counts, strict=True)]
        values = {"means": means} | ({"lows": self.lows, "highs": self.highs} if self.width > 1 else {})
        points: dict[str, list[Any]] = {name: [float(f"{value:.6g}") for value in numbers] for name, numbers in values.items()}
        return {"steps": self.steps, **points} | ({"non_finite": self.non_finite} if self.non_finite else {})


class FollowedRun:
    """One run. `refresh` reads what its files have now; `summary` and `detail` are what the page shows of it."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._forget()
        self._record: Record | None = None
        self._stamps: dict[str, object] = {}
        self._slowdowns: list[str] = []
        self._ceiling: float | None = None
        self._reason: str | None = None
        self._is_running = False
        self._checkpoint: dict[str, Any] | None = None

    def _forget(self) -> None:
        """Begin metrics.jsonl from its start: it is new, or was cut back when the run resumed."""
        self.curves: dict[str, ThinnedCurve] = {}
        self._offset, self._rest = 0, b""
        self._tail = b""  # the last bytes before the offset: they are others once the file was cut back and has grown again
        self._last_step: int | None = None
        self._last_time: str | None = None
        self._skipped = 0.0
        self._damaged = 0

    def refresh(self) -> bool:
        """Read what is new; whether anything of it changed what the page shows."""
        before = msgspec.json.encode([self.summary(), self._offset])
        try:
            if self._changed(NAME):
                self._record = read_record(self.path)
            self._reason = None
        except UNREADABLE as error:
            self._record, self._reason = None, str(error)[:LONGEST_VALUE]
        self._is_running = self._record is not None and self._record.last.ended is None and is_locked(self.path)
        try:
            self._read_metrics()
            if self._changed(SLOWDOWNS):
                self._slowdowns = [str(slowdown) for slowdown in read_slowdowns(self.path)]
            if self._changed(DIAGNOSIS):
                self._ceiling = read_ceiling(self.path / DIAGNOSIS)
            self._checkpoint = newest_checkpoint(self.path / CHECKPOINTS)
        except UNREADABLE as error:
            self._reason = str(error)[:LONGEST_VALUE]
        return msgspec.json.encode([self.summary(), self._offset]) != before

    def _changed(self, name: str) -> bool:
        """Whether a file is another one than at the last look, by its size and times."""
        try:
            stat = (self.path / name).stat()
            stamp: object = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError:
            stamp = None
        is_new = self._stamps.get(name, self) != stamp
        self._stamps[name] = stamp
        return is_new

    def _read_metrics(self) -> None:
        path = self.path / METRICS
        if not path.is_file():  # a FIFO would let the reader wait forever
            return
        with path.open("rb") as file:
            file.seek(self._offset - len(self._tail))
            if file.read(len(self._tail)) != self._tail:
                self._forget()
                file.seek(0)
            while data := file.read(READ_BYTES):
                self._offset += len(data)
                self._tail = (self._tail + data)[-TAIL_BYTES:]
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._add(line)
                if len(self._rest) > READ_BYTES:
                    self._rest = b"\x00"  # a line that no run writes; its end will not parse

    def _add(self, line: bytes) -> None:
        parsed = parse_line(line)
        if parsed is None:
            self._damaged += 1
            return
        step, time, values = parsed
        self._last_step, self._last_time = step, time or self._last_time
        for name, value in values.items():
            if name in self.curves or len(self.curves) < MOST_CURVES:
                self.curves.setdefault(name, ThinnedCurve()).add(step, value)
            if name == "skipped" and math.isfinite(value):
                self._skipped += value

    def summary(self) -> dict[str, Any]:
        """One row of the table; None is what is not known."""
        record, last = self._record, {name: curve.last for name, curve in self.curves.items()}
        rate, wait = last.get(RATE), last.get(WAIT)
        metric, best, best_step = self._best()
        free = rate / (1 - wait) if rate is not None and wait is not None and 0 <= wait < 1 else None
        return {
            "name": self.name,
            "state": state_of(record, is_running=self._is_running) if record else "damaged",
            "how": record.last.how if record else None,
            "started": record.sessions[0].started if record else None,
            "sessions": len(record.sessions) if record else 0,
            "last_time": self._last_time,
            "step": self._last_step,
            "epoch": _finite(last.get("epoch")),
            "loss": _finite(last.get(LOSS)),
            "metric": metric,
            "best": best,
            "best_step": best_step,
            "rate": _finite(rate),
            "data_free": _finite(free),
            "ceiling": self._ceiling,
            "wait": _finite(wait),
            "memory": _finite(last.get("memory")),
            "checkpoint": self._checkpoint,
            "skipped": int(self._skipped),
            "slowdowns": len(self._slowdowns),
            "reason": self._reason or (f"{self._damaged:,} lines of {METRICS} cannot be read" if self._damaged else None),
        }

    def _best(self) -> tuple[str | None, float | None, int | None]:
        for name in ["val_loss", *sorted(name for name in self.curves if name.startswith("val_")), LOSS]:
            curve, mode = self.curves.get(name), guess_mode(name)
            best = None if curve is None or mode is None else curve.least if mode == "min" else curve.greatest
            if best is not None:
                return name, *best
        return None, None, None

    def detail(self) -> dict[str, Any]:
        """What the page shows of a run that is selected: curves, configuration and events."""
        session = self._record.last if self._record else None
        facts: dict[str, Any] = {}
        if session is not None:
            facts = {"command": " ".join(session.command), "host": session.machine.host, "gpus": ", ".join(session.machine.gpus)}
            facts |= {"commit": session.git.commit[:12] + ("+changes" if session.git.dirty else "")} if session.git else {}
            facts |= dict(flatten(session.config)) | session.versions
        return {
            "curves": {name: curve.as_dict() for name, curve in self.curves.items()},
            "facts": {name: str(value)[:LONGEST_VALUE] for name, value in facts.items()},
            "slowdowns": self._slowdowns[-MOST_SLOWDOWNS:],
        }


class Board:
    """All runs of a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._runs: dict[Path, FollowedRun] = {}

    def refresh(self) -> bool:
        """Read what is new; whether anything changed."""
        runs = find_runs(self.folder)
        is_changed = runs.keys() != self._runs.keys()
        self._runs = {path: self._runs.get(path) or FollowedRun(path, shown_name(name)) for path, name in runs.items()}
        for run in self._runs.values():
            is_changed |= run.refresh()
        return is_changed

    def view(self, selected: Iterable[str] | None = None, *, most: int = 8) -> dict[str, Any]:
        """The rows of all runs, the newest first, and the details of those selected: the newest one where none is."""
        runs = sorted(self._runs.values(), key=lambda run: run.summary()["started"] or "", reverse=True)
        names = [run.name for run in runs[:1]] if selected is None else list(selected)
        details = {run.name: run.detail() for run in runs if run.name in names[:most]}
        return {"folder": str(self.folder), "now": now_utc(), "runs": [run.summary() for run in runs], "details": details}


def newest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The step and the time of the checkpoint that a run would resume from."""
    path = folder / "LATEST"
    if not path.is_file():  # a pipe never ends
        return None
    try:
        name, seconds = path.read_text(encoding="ascii").strip(), path.stat().st_mtime
        step = int(name.removeprefix("step-"))
    except (OSError, ValueError):
        return None
    return {"step": step, "seconds": round(seconds, 3)}


def read_ceiling(path: Path) -> float | None:
    """Steps per second without loading in a finding of `stoker diagnose --json`; None where they were not measured."""
    try:
        finding = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        windows = [finding["measurements"][name] for name in ("loop", "cached")]
        seconds = min(statistics.median(window["seconds"]) for window in windows)
    except (*UNREADABLE, KeyError, AttributeError, TypeError):
        return None
    return 1 / seconds if seconds > 0 else None


def shown_name(name: str) -> str:
    """Return the name of a folder as text that can be sent: bytes that are not UTF-8 as escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def flatten(values: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """The leaves of a configuration, by their dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value and depth < DEEPEST:
            yield from flatten(value, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}", value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
