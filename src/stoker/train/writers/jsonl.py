"""metrics.jsonl: one JSON object a line, `{"step": 50, "time": "2026-11-15T16:20:00.123Z", "loss": 0.25, …}`.

Numbers that JSON lacks are the texts "NaN", "Infinity" and "-Infinity". Apart from `time`, the same training makes the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stoker.clock import now_utc
from stoker.errors import OptionError, TrainError
from stoker.files import LogFile

MAX_LINE_BYTES = 1 << 20
RESERVED = frozenset({"step", "time"})
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class JsonLines:
    """Appends to a file of JSON lines; what it has written survives the death of the process.

    `from_step` cuts a file that is there back to the lines of steps up to it, so that a run goes on from a checkpoint as if the
    steps after it had never been: lines of a step must be written before its checkpoint. Without it nothing is cut but a torn line.
    """

    def __init__(self, path: str | Path, *, from_step: int | None = None) -> None:
        self.path = Path(path)
        self._log = LogFile(self.path, keep=lambda line: from_step is None or _step_of(line, otherwise=from_step) <= from_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one line."""
        wrong = RESERVED & values.keys()
        if wrong:
            raise OptionError(f"{self.path}: a value is named {min(wrong)!r}, which each line has already. Give it another name.")
        numbers = {name: _encoded(value) for name, value in values.items()}
        self._log.append(msgspec.json.encode({"step": step, "time": now_utc(), **numbers}) + b"\n")

    def sync(self) -> None:
        """Return only when all lines would survive a power loss."""
        self._log.sync()

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
        entry = _decoded(line)
        if entry is None:
            damaged += 1
            continue
        last_step, time = entry.pop("step"), entry.pop("time", None)
        last_time = time if isinstance(time, str) else last_time
        for name, value in entry.items():
            number = _WORDS.get(value) if isinstance(value, str) else value
            if isinstance(number, int) and abs(number) > 2**63:
                continue  # no number of a training; some are beyond float64 too
            if isinstance(number, int | float) and not isinstance(number, bool):
                steps, values = curves.setdefault(name, ([], []))
                steps.append(last_step)
                values.append(float(number))
    return Lines(curves=curves, last_step=last_step, last_time=last_time, damaged=damaged)


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


def _step_of(line: bytes, *, otherwise: int) -> int:
    entry = _decoded(line)
    return otherwise if entry is None else int(entry["step"])


def _encoded(value: float) -> float | str:
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
