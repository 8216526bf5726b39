"""Comparison: two ways to do the same, measured side by side in one interleaved run, as a table, a picture and a record.

Ratios are taken pair by pair within a round, so that a neighbour's load hits both sides. The first round is not counted.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from stoker._clock import now_ns

if TYPE_CHECKING:
    from rich.table import Table

GREY, COLOUR = "#9a9a9a", "#0072b2"
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
    """A writer of a trainer that keeps steps a second, without the first windows, in which it compiles and captures."""

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
    """How many windows a training needs for as many that count."""
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


def as_record(lines: Sequence[Line], **told: Any) -> str:
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
    return json.dumps({**told, "lines": rows}, indent=1) + "\n"


def draw_bars(lines: Sequence[Line], *, title: str, names: tuple[str, str], note: str = "") -> str:
    """The lines as one SVG picture: two bars each, the longer the faster."""
    height = TOP + ROW * len(lines) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}" height="{height:g}" viewBox="0 0 {WIDTH:g} {height:g}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222222">',
        f'<rect width="{WIDTH:g}" height="{height:g}" fill="#ffffff"/>',
        f'<text x="20" y="30" font-size="17" font-weight="bold">{_text(title)}</text>',
    ]
    for number, (name, colour) in enumerate(zip(names, (GREY, COLOUR), strict=True)):
        x = 20 + number * 160
        parts.append(f'<rect x="{x}" y="44" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="54">{_text(name)}</text>')
    told = f"longer bars are faster; {note}" if note else "longer bars are faster"
    parts.append(f'<text x="{WIDTH - 20:g}" y="54" text-anchor="end" fill="#666666" font-size="11">{_text(told)}</text>')
    for number, line in enumerate(lines):
        parts += _bars(line, TOP + number * ROW)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(line: Line, y: float) -> list[str]:
    across = WIDTH - LABEL - VALUE - 40
    before, after = statistics.median(line.before), statistics.median(line.after)
    speeds = (before, after) if line.is_rate else (1 / before, 1 / after)
    parts = [
        f'<text x="20" y="{y + 18:g}" font-weight="bold">{_text(line.what)}</text>',
        f'<text x="20" y="{y + 34:g}" fill="#666666" font-size="11">{_text(line.note)}</text>',
    ]
    for number, (value, speed, colour) in enumerate(zip((before, after), speeds, (GREY, COLOUR), strict=True)):
        length = max(1.5, across * speed / max(speeds))
        top = y + 6 + 18 * number
        times = f"{line.speedup:.3g}x" if number else ""
        parts.append(f'<rect x="{LABEL:g}" y="{top:g}" width="{length:.1f}" height="14" fill="{colour}"/>')
        words = f'{shown(value)} {_text(line.unit)}<tspan dx="8" font-weight="bold">{times}</tspan>'
        parts.append(f'<text x="{LABEL + length + 6:.1f}" y="{top + 11:g}">{words}</text>')
    return parts


def _text(text: str) -> str:
    """Text within XML: names are shown, never obeyed."""
    return escape(text if text.isprintable() else text.encode("unicode_escape").decode("ascii"))


def machine(**others: Any) -> Mapping[str, Any]:
    """What a record says of where it was made."""
    import platform

    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"machine": platform.machine(), "gpu": gpu, "torch": torch.__version__, **others}
