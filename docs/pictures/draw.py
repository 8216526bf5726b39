"""Draws the pictures of the manual from what stoker really does: `python docs/pictures/draw.py` writes the SVG files beside it.

Windows, batches and orders are asked of stoker itself, so a picture cannot say anything else than the program. The colours are
of middle brightness and the ground is transparent: readable in light and in dark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from stoker.order.lengths import Lengths

HERE = Path(__file__).parent

INK = "#737c86"
PLAIN, INPUT, TARGET, THIRD, FOURTH = "#87909b", "#2f7fc1", "#d9772b", "#2f9e74", "#8a63d2"
BANDS = ("#2f7fc1", "#2aa0a8", "#5aa846", "#d3a02a", "#d9662b", "#b04a9a")
CELL, STEP, HEIGHT = 22, 25, 22
SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Picture:
    """Shapes and words, collected into one SVG file."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, *, code: bool = False, size: int = 13, bold: bool = False, anchor: str = "start",
             color: str = INK) -> None:  # fmt: skip
        """A line of words; `y` is where the letters stand."""
        font = MONO if code else SANS
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-family="{font}" font-size="{size}"{weight} text-anchor="{anchor}" fill="{color}">'
            f"{escape(words)}</text>"
        )

    def cell(self, x: float, y: float, color: str, label: object = "", *, height: int = HEIGHT) -> None:
        """A step that is there."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{CELL}" height="{height}" rx="4" fill="{color}"/>')
        if label != "":
            self.text(x + CELL / 2, y + height / 2 + 4, str(label), size=11, anchor="middle", color="#ffffff")

    def hollow(self, x: float, y: float, *, height: int = HEIGHT) -> None:
        """A place without a step: padding."""
        self._parts.append(
            f'<rect x="{x + 0.75:g}" y="{y + 0.75:g}" width="{CELL - 1.5:g}" height="{height - 1.5:g}" rx="4" fill="none" '
            f'stroke="{INK}" stroke-width="1.2" stroke-dasharray="3 2.5" opacity="0.75"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> None:
        """A thin line."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._parts.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{INK}" stroke-width="1.2" opacity="0.8"{dash}/>')

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        """A thin frame."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="none" stroke="{INK}" opacity="0.45"/>'
        )

    def strokes(self, color: str, places: Iterable[tuple[float, float]], *, down: float = 0, width: float = 3) -> None:
        """Many dots, or bars that reach `down`, of one colour."""
        path = "".join(f"M{x:.4g} {y:.4g}v{down:g}" if down else f"M{x:.4g} {y:.4g}h0" for x, y in places)
        cap = "butt" if down else "round"
        self._parts.append(f'<path d="{path}" stroke="{color}" stroke-width="{width:g}" stroke-linecap="{cap}" fill="none"/>')

    def legend(self, x: float, y: float, entries: Sequence[tuple[str | None, str]], *, gap: int = 30) -> None:
        """What colours mean; no colour is padding."""
        for color, words in entries:
            if color is None:
                self.hollow(x, y, height=16)
            else:
                self.cell(x, y, color, height=16)
            self.text(x + CELL + 7, y + 12.5, words)
            x += CELL + 7 + 7.1 * len(words) + gap

    def save(self, name: str) -> None:
        """Write it, if it has changed."""
        body = "\n".join(self._parts)
        (HERE / name).write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label="{escape(self.title)}">\n<title>{escape(self.title)}</title>\n{body}\n</svg>\n'
        )


def spans(view: Any, *lengths: int) -> list[tuple[int, int]]:
    """First step and number of steps of every sample that a view has over series of these lengths."""
    offsets = np.cumsum([0, *lengths])
    samples = view.over(Lengths(num_series=len(lengths), num_steps=int(offsets[-1]), offsets=offsets))
    found = samples.locate(np.arange(samples.num_samples))
    return list(zip(found.starts.tolist(), found.counts.tolist(), strict=True))


def draw_windows() -> None:
    """Windows over one series: with a kept tail, and with a target."""
    steps, left = 21, 24
    picture = Picture(820, 408, "Windows over a series of 21 steps")
    for i in range(steps):
        picture.cell(left + i * STEP, 14, PLAIN, i)
    picture.text(left + (steps + 3) * STEP + 16, 30, "a series of 21 steps")
    top = 62
    for view, words, row_note in (
        (stoker.Windows(8, stride=5), "Windows(8, stride=5)", ("", "", "", "the tail: 6 steps, 2 masked")),
        (stoker.Windows(8, stride=4, horizon=3), "Windows(8, stride=4, horizon=3)", ("", "", "", "1 target, 2 masked")),
    ):
        picture.text(left, top + 12, words, code=True, size=14, bold=True)
        top += 24
        for number, (start, count) in enumerate(spans(view, steps)):
            for i in range(view.span):
                x = left + (start + i) * STEP
                if i < count:
                    picture.cell(x, top, INPUT if i < view.length else TARGET, start + i)
                else:
                    picture.hollow(x, top)
            picture.text(left + (steps + 3) * STEP + 16, top + 16, row_note[number])
            top += HEIGHT + 6
        top += 16
    picture.legend(left, top + 2, [(INPUT, "window"), (TARGET, "target"), (None, "padding, masked")])
    picture.save("windows.svg")


def draw_segments() -> None:
    """Segments of two series, the next step being the target."""
    lengths, left = (21, 5), 24
    view = stoker.Segments(8, shift=1)
    picture = Picture(900, 262, "Segments of two series, each with the following steps as targets")
    ends = np.cumsum([0, *lengths]).tolist()

    def place(step: int) -> float:
        return left + step * STEP + (2 * STEP if step >= ends[1] else 0)

    for series, length in enumerate(lengths):
        for i in range(length):
            picture.cell(place(ends[series] + i), 34, PLAIN, i)
        picture.text(place(ends[series]), 22, f"series {series}: {length} steps")
    picture.text(left, 92, "Segments(8, shift=1)", code=True, size=14, bold=True)
    for start, count in spans(view, *lengths):
        series = int(start >= ends[1])
        top = 106 + (start - ends[series]) // view.length % 2 * 0
        for i in range(view.length):
            x = place(start + i)
            first = start - ends[series] + i
            if i < count:
                picture.cell(x, top, INPUT, first)
            else:
                picture.hollow(x, top)
            if i + 1 < count:
                picture.cell(x, top + HEIGHT + 3, TARGET, first + 1)
            else:
                picture.hollow(x, top + HEIGHT + 3)
    picture.save("segments.svg")


def main() -> None:
    """All of them."""
    draw: Callable[[], None]
    for draw in (draw_windows, draw_segments):
        draw()


if __name__ == "__main__":
    main()
