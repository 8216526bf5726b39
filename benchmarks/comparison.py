"""Comparison: two ways to do the same, measured side by side in one interleaved run, as a table, a plot and a record.

Ratios are taken pair by pair within a round, so that a neighbour's load hits both sides. The first round is not counted.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stoker._clock import now_ns

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

GREY, COLOUR = "#9a9a9a", "#0072b2"
DPI = 96.0
WIDTH, LABEL, VALUE, ROW, TOP = 900.0, 330.0, 150.0, 56.0, 72.0


@dataclass(frozen=True, kw_only=True)
class Line:
    """One question: how long (or, with `is_rate`, how much a second) each way, round by round."""

    what: str
    unit: str
    before: Sequence[float]
    after: Sequence[float]
    is_rate: bool = False
    note: str = ""
    """What is known of the results of both: that they are equal, say."""

    @property
    def ratios(self) -> list[float]:
        """How many times faster, pair by pair."""
        pairs = zip(self.before, self.after, strict=True)
        return [after / before if self.is_rate else before / after for before, after in pairs]

    @property
    def speedup(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)


def interleave(
    before: Callable[[], object], after: Callable[[], object], *, rounds: int, count: int = 1
) -> tuple[list[float], list[float]]:
    """Seconds of each way, of one of `count` things that a call does, round by round."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for seconds, run in zip(found, (before, after), strict=True):
            begin = now_ns()
            run()
            elapsed = (now_ns() - begin) / 1e9
            if number:
                seconds.append(elapsed / count)
    return found


class Rates:
    """A writer of a trainer that keeps steps per second, without the first windows, in which it compiles and captures."""

    UNCOUNTED = 2

    def __init__(self) -> None:
        self._found: list[float] = []

    @property
    def seconds(self) -> list[float]:
        """Of a step, window by window."""
        return [1 / rate for rate in self._found[self.UNCOUNTED :]]

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Keep one window."""
        if "rate" in values:
            self._found.append(values["rate"])

    def close(self) -> None:
        """Nothing to close."""


def windows_for(rounds: int) -> int:
    """How many windows a training run needs for as many that count."""
    return rounds + Rates.UNCOUNTED


def shown(value: float) -> str:
    """A number as short as it can be said: 12,345, 123, 12.3 or 0.0123."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def make_table(lines: Sequence[Line], *, title: str, names: tuple[str, str]) -> Table:
    """The lines for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for name in (*names, "faster", "from - to"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        values = [f"{shown(statistics.median(side))} {line.unit}" for side in (line.before, line.after)]
        spread = f"{shown(min(line.ratios))} - {shown(max(line.ratios))}"
        table.add_row(Text(line.what), *values, Text(f"{line.speedup:.3g}x", style="bold"), spread)
    return table


def as_record(lines: Sequence[Line], **reported: Any) -> str:
    """All numbers for programs."""
    rows = [
        {
            "what": line.what,
            "unit": line.unit,
            "before": list(line.before),
            "after": list(line.after),
            "ratio": {"median": line.speedup, "min": min(line.ratios), "max": max(line.ratios)},
            "note": line.note,
        }
        for line in lines
    ]
    return json.dumps({**reported, "lines": rows}, indent=1) + "\n"


def draw_bars(lines: Sequence[Line], *, title: str, names: tuple[str, str], note: str = "") -> Figure:
    """The lines as a figure: two bars each, the longer the faster."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / DPI, (TOP + ROW * len(lines) + 24) / DPI), dpi=DPI)
    write_text(figure, 20, 30, title, fontsize=12, fontweight="bold")
    for number, (name, colour) in enumerate(zip(names, (GREY, COLOUR), strict=True)):
        _draw_bar(figure, 20 + number * 160, 44, 12, 12, colour)
        write_text(figure, 38 + number * 160, 54, name)
    reported = f"longer bars are faster; {note}" if note else "longer bars are faster"
    write_text(figure, WIDTH - 20, 54, reported, ha="right", color="#666666", fontsize=8)
    for number, line in enumerate(lines):
        _draw_line(figure, line, TOP + number * ROW)
    return figure


def write_text(figure: Figure, x: float, y: float, text: str, **style: Any) -> None:
    """Write text at a place in pixels from the upper left; names are shown as they are, never as formulas."""
    width, height = figure.get_size_inches() * DPI
    figure.text(x / width, 1 - y / height, text, parse_math=False, **style)


def _draw_line(figure: Figure, line: Line, y: float) -> None:
    across = WIDTH - LABEL - VALUE - 40
    before, after = statistics.median(line.before), statistics.median(line.after)
    speeds = (before, after) if line.is_rate else (1 / before, 1 / after)
    write_text(figure, 20, y + 18, line.what, fontweight="bold")
    write_text(figure, 20, y + 34, line.note, color="#666666", fontsize=8)
    for number, (value, speed, colour) in enumerate(zip((before, after), speeds, (GREY, COLOUR), strict=True)):
        length = max(1.5, across * speed / max(speeds))
        top = y + 6 + 18 * number
        times = f"   {line.speedup:.3g}x" if number else ""
        _draw_bar(figure, LABEL, top, length, 14, colour)
        write_text(figure, LABEL + length + 6, top + 11, f"{shown(value)} {line.unit}{times}")


def _draw_bar(figure: Figure, x: float, y: float, width: float, height: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    whole, tall = figure.get_size_inches() * DPI
    bar = Rectangle((x / whole, 1 - (y + height) / tall), width / whole, height / tall, color=colour, linewidth=0)
    bar.set_transform(figure.transFigure)
    figure.add_artist(bar)


def machine(**others: Any) -> Mapping[str, Any]:
    """What a record says of where it was made."""
    import platform

    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"machine": platform.machine(), "gpu": gpu, "torch": torch.__version__, **others}
