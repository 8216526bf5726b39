"""Draws the figures of the documentation with stoker itself: `python docs/images/draw.py` writes the SVG files next to it.

Windows, batches and orders come from stoker, so a figure shows what the code does. Colours of middle brightness on a transparent
background are readable in light and dark mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from stoker.sampling.views import Lengths

HERE = Path(__file__).parent

INK = "#78818c"
PLAIN, INPUT, TARGET, THIRD = "#87909b", "#2f7fc1", "#d9772b", "#2f9e74"
BANDS = ("#2f7fc1", "#2aa0a8", "#5aa846", "#c2911f", "#d9662b", "#b04a9a")
CELL, STEP, HEIGHT = 22, 25, 22
SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Picture:
    """Shapes and words, collected into one SVG file."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        code: bool = False,
        size: int = 13,
        bold: bool = False,
        anchor: str = "start",
        color: str = INK,
    ) -> None:
        """A line of words; `y` is where the letters stand."""
        style = f' font-family="{MONO}"' if code else ""
        style += ' font-weight="600"' if bold else ""
        style += f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}"{style}>{escape(words)}</text>')

    def cell(self, x: float, y: float, color: str, label: object = "", *, height: int = HEIGHT) -> None:
        """A step that is there."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{CELL}" height="{height}" rx="4" fill="{color}"/>')
        if label != "":
            self.text(x + CELL / 2, y + height / 2 + 4, str(label), size=11, anchor="middle", color="#fff")

    def bar(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """A filled bar."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{color}"/>')

    def hollow(self, x: float, y: float, *, height: int = HEIGHT) -> None:
        """A place without a step: padding."""
        self._parts.append(
            f'<rect x="{x + 0.75:g}" y="{y + 0.75:g}" width="{CELL - 1.5:g}" height="{height - 1.5:g}" rx="4" fill="none" '
            f'stroke="{INK}" stroke-width="1.2" stroke-dasharray="3 2.5" opacity="0.75"/>'
        )

    def step(self, x: float, y: float, color: str | None, label: object) -> None:
        """A step, or padding where there is no colour."""
        if color is None:
            self.hollow(x, y)
        else:
            self.cell(x, y, color, label)

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

    def svg(self) -> str:
        """The file."""
        title = escape(self.title)
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{SANS}" role="img" aria-label="{title}">'
        return "\n".join([head, f"<title>{title}</title>", *self._parts, "</svg>"]) + "\n"


def spans(view: Any, *lengths: int) -> list[tuple[int, int]]:
    """First step and number of steps of every sample that a view has over series of these lengths."""
    offsets = np.cumsum([0, *lengths])
    samples = view.over(Lengths(num_series=len(lengths), num_steps=int(offsets[-1]), offsets=offsets))
    found = samples.locate(np.arange(samples.num_samples))
    return list(zip(found.starts.tolist(), found.counts.tolist(), strict=True))


def draw_windows() -> Picture:
    """Windows over one series: with a kept tail, and with a target."""
    steps, left = 21, 16
    picture = Picture(800, 398, "Windows over a series of 21 steps")
    notes = left + (steps + 2) * STEP + 12
    for i in range(steps):
        picture.cell(left + i * STEP, 10, PLAIN, i)
    picture.text(notes, 26, "a series of 21 steps")
    top = 54
    for view, note in (
        (stoker.Windows(8, stride=5), "the tail: 6 steps, 2 masked"),
        (stoker.Windows(8, stride=4, horizon=3), "1 target, 2 masked"),
    ):
        target = f", horizon={view.horizon}" if view.horizon else ""
        picture.text(left, top + 14, f"Windows({view.length}, stride={view.stride}{target})", code=True, size=14, bold=True)
        top += 26
        for start, count in spans(view, steps):
            for i in range(view.span):
                color = INPUT if i < view.length else TARGET
                picture.step(left + (start + i) * STEP, top, color if i < count else None, start + i)
            if count < view.span:
                picture.text(notes, top + 16, note)
            top += HEIGHT + 6
        top += 16
    picture.legend(left, top, [(INPUT, "window"), (TARGET, "target"), (None, "padding, masked")])
    return picture


def draw_segments() -> Picture:
    """Segments of two series, the next step being the target."""
    lengths, left, apart = (21, 5), 16, 4
    view = stoker.Segments(8, shift=1)
    picture = Picture(850, 322, "Segments of two series, each with the steps that follow as targets")
    begins = np.cumsum([0, *lengths]).tolist()

    def place(series: int, step: int) -> float:
        return float(left + (begins[series] + step + apart * series) * STEP)

    for series, length in enumerate(lengths):
        picture.text(place(series, 0), 20, f"a series of {length} steps")
        for i in range(length):
            picture.step(place(series, i), 28, PLAIN, i)
    picture.text(left, 88, f"Segments({view.length}, shift={view.shift})", code=True, size=14, bold=True)
    for first, count in spans(view, *lengths):
        series = int(first >= begins[1])
        start = first - begins[series]
        top = 100 + start // view.length * 62
        for i in range(view.length):
            picture.step(place(series, start + i), top, INPUT if i < count else None, start + i)
            picture.step(place(series, start + i), top + HEIGHT + 3, TARGET if i + 1 < count else None, start + i + 1)
    picture.legend(left, 294, [(INPUT, "segment"), (TARGET, "target: the segment shifted by one step"), (None, "padding, masked")])
    return picture


def draw_sequences() -> Picture:
    """The same four series as a padded and as a packed batch."""
    lengths, left = (7, 11, 3, 5), 16
    store = stoker.Store.from_arrays(x=[np.arange(length) for length in lengths])
    picture = Picture(740, 316, "Four series as a padded and as a packed batch")
    batch = next(iter(stoker.Feed(store, stoker.Sequences(16), batch_size=4)))
    picture.text(left, 20, "Sequences(16)", code=True, size=14, bold=True)
    rows, width = batch["x"].shape
    right = left + width * STEP + 14
    for column, words in enumerate(("lengths", "mask")):
        picture.text(right + column * 84, 20, words, code=True)
    for row in range(rows):
        top = 34 + row * (HEIGHT + 5)
        for i in range(width):
            there = bool(batch["mask"][row, i])
            picture.step(left + i * STEP, top, BANDS[row] if there else None, int(batch["x"][row, i]))
        picture.text(right + 30, top + 16, str(int(batch["lengths"][row])), code=True, anchor="middle")
        marks = "".join("1" if one else "0" for one in batch["mask"][row].tolist())
        picture.text(right + 84, top + 16, marks, code=True)
    picture.text(left, 166, "as wide as the longest of the batch: [4, 11]; with buckets=(8, 16) it would be [4, 16]")
    batch = next(iter(stoker.Feed(store, stoker.Sequences(16, layout="packed"), batch_size=4)))
    top = 236
    picture.text(left, top - 22, 'Sequences(16, layout="packed")', code=True, size=14, bold=True)
    ends = batch["cu_seqlens"].tolist()
    for row, (start, end) in enumerate(pairwise(ends)):
        for i in range(start, end):
            picture.step(left + i * STEP, top - 8, BANDS[row], int(batch["x"][i]))
    for end in ends:
        x = left + end * STEP - 1.5
        picture.line(x, top - 12, x, top + 24)
        picture.text(x, top + 40, str(end), code=True, anchor="middle")
    picture.text(
        left, top + 66, "all steps end to end: [26]; the numbers are cu_seqlens, where each sample begins and the last one ends"
    )
    return picture


def draw_batch() -> Picture:
    """A batch of windows with targets, whose last row holds no sample."""
    store = stoker.Store.from_arrays(x=[np.arange(21), np.arange(9)])
    view = stoker.Windows(8, stride=4, horizon=3)
    feed = stoker.Feed(store, view, batch_size=6)
    batch = next(iter(feed))
    left, top = 16, 62
    picture = Picture(620, 262, "A batch of windows with targets")
    right = left + view.length * STEP + 22
    behind = right + view.horizon * STEP + 22
    picture.text(left, 22, "x [6, 8]", code=True, bold=True)
    picture.text(left, 42, "mask [6, 8]", code=True)
    picture.text(right, 22, "x_target [6, 3]", code=True, bold=True)
    picture.text(right, 42, "target_mask [6, 3]", code=True)
    picture.text(behind + 92, 42, "lengths", code=True, anchor="middle")
    picture.text(behind + 172, 42, "valid", code=True, anchor="middle")
    for row in range(feed.batch_size):
        y = top + row * (HEIGHT + 6)
        for i in range(view.length):
            picture.step(left + i * STEP, y, INPUT if batch["mask"][row, i] else None, int(batch["x"][row, i]))
        for i in range(view.horizon):
            there = bool(batch["target_mask"][row, i])
            picture.step(right + i * STEP, y, TARGET if there else None, int(batch["x_target"][row, i]))
        picture.text(behind + 92, y + 16, str(int(batch["lengths"][row])), code=True, anchor="middle")
        picture.text(behind + 172, y + 16, str(bool(batch["valid"][row])), code=True, anchor="middle")
    picture.legend(left, 238, [(INPUT, "mask is True"), (TARGET, "target_mask is True"), (None, "0, and the mask is False")])
    return picture


NUM_SAMPLES, PANEL_WIDTH, PANEL_HEIGHT = 240, 330, 132


def draw_orders() -> Picture:
    """Which sample comes when, in each order: dots are samples, and the strip below is what the training loop gets."""
    lengths = 4 + (np.arange(NUM_SAMPLES) * 7919 % NUM_SAMPLES) ** 2 * 86 // NUM_SAMPLES**2  # scattered, most of them short
    samples = stoker.Sequences(100).over(
        Lengths(num_series=NUM_SAMPLES, num_steps=int(lengths.sum()), offsets=np.concatenate([[0], np.cumsum(lengths)]))
    )
    weights = np.where(np.arange(NUM_SAMPLES) // 40 == 3, 5.0, 1.0)
    by_number = np.arange(NUM_SAMPLES) * len(BANDS) // NUM_SAMPLES
    by_length = np.argsort(np.argsort(lengths, kind="stable")) * len(BANDS) // NUM_SAMPLES
    panels: tuple[tuple[Any, str, str], ...] = (
        (stoker.Sequential(), "Sequential()", "as stored: a batch is consecutive"),
        (stoker.Shuffle(seed=0), "Shuffle(seed=0)", "a batch comes from the whole store"),
        (
            stoker.BlockShuffle(seed=0, block=8, window=80),
            "BlockShuffle(seed=0, block=8, window=80)",
            "a third of the store at a time, in blocks of 8",
        ),
        (stoker.Weighted(weights, seed=0), "Weighted(weights, seed=0)", "samples 120 to 159 have five times the weight"),
        (stoker.ByLength(seed=0, group=16), "ByLength(seed=0, group=16)", "here up is longer: groups of similar length"),
    )
    picture = Picture(760, 690, "Five orders: which sample comes when")
    for number, (order, words, note) in enumerate(panels):
        x, y = 24 + number % 2 * 370, 46 + number // 2 * 228
        plan = order.over(samples, batch_size=16)
        numbers = plan.numbers(0, 0, plan.num_positions)
        is_length = "ByLength" in words
        heights = lengths[numbers] / lengths.max() * NUM_SAMPLES if is_length else numbers
        colors = (by_length if is_length else by_number)[numbers]
        draw_panel(picture, x, y, heights, colors)
        picture.text(x, y - 10, words, code=True, bold=True)
        picture.text(x, y + PANEL_HEIGHT + 46, note)
    legend = (
        "right: position in the epoch",
        "up: index of the sample",
        "strip: what the training loop gets, in order",
        "",
        "one colour is one part of the store",
        "(ByLength: one class of lengths)",
    )
    for i, line in enumerate(legend):
        picture.text(414, 46 + 2 * 228 + 24 + i * 20, line)
    return picture


def draw_panel(picture: Picture, x: float, y: float, heights: Any, colors: Any) -> None:
    """Dots over a strip."""
    scale = PANEL_WIDTH / NUM_SAMPLES
    picture.frame(x - 4, y - 2, PANEL_WIDTH + 8, PANEL_HEIGHT + 4)
    for band, color in enumerate(BANDS):
        places = [(x + (i + 0.5) * scale, heights[i]) for i in np.flatnonzero(colors == band).tolist()]
        picture.strokes(color, [(a, y + PANEL_HEIGHT - 2 - (h / NUM_SAMPLES) * (PANEL_HEIGHT - 4)) for a, h in places])
        picture.strokes(color, [(a, y + PANEL_HEIGHT + 10) for a, _ in places], down=16, width=scale + 0.1)


def draw_ranks() -> Picture:
    """One order, shared by one, two and three ranks, stopped in the middle and resumed."""
    left, colors = 150, (INPUT, TARGET, THIRD)
    store = stoker.Store.from_arrays(x=[[i] for i in range(26)])

    def make(rank: int, world: int) -> stoker.Feed:
        given = {"distributed": stoker.feed.Distributed(rank=rank, world_size=world), "returns": stoker.feed.Returns(index=True)}
        return stoker.Feed(store, stoker.Segments(1), batch_size=4, order=stoker.Shuffle(seed=0), **given)

    def steps_of(world: int, state: Any = None) -> list[list[list[int]]]:
        """For each step and each rank, the numbers of the samples."""
        feeds = [make(rank, world) for rank in range(world)]
        for feed in feeds:
            if state is not None:
                feed.load_state_dict(state)
        return [[[n for n in batch["sample"].tolist() if n >= 0] for batch in step] for step in zip(*feeds, strict=True)]

    half = make(0, 2)
    next(iter(half))
    rows = (("1 rank", steps_of(1), 0), ("2 ranks", steps_of(2), 0), ("... then 3 ranks", steps_of(3, half.state_dict()), 8))
    picture = Picture(840, 236, "One order, shared by one, two and three ranks")
    for row, (words, steps, position) in enumerate(rows):
        y = 24 + row * 62
        picture.text(16, y + 16, words, bold=True)
        if row == 1:
            steps = steps[:1]
            picture.text(left + 8 * STEP + 12, y + 16, "stopped: state_dict() has position 8")
            picture.line(left + 8 * STEP - 1.5, y - 6, left + 8 * STEP - 1.5, y + 88, dashed=True)
        for step in steps:
            begin = position
            for rank, numbers in enumerate(step):
                for number in numbers:
                    picture.step(left + position * STEP, y, colors[rank], number)
                    position += 1
            picture.line(left + begin * STEP, y + 28, left + position * STEP - 3, y + 28)
    picture.legend(left, 206, [(color, f"rank {rank}") for rank, color in enumerate(colors)])
    picture.text(left + 310, 218.5, "a line is one step of all ranks")
    return picture


def draw_split() -> Picture:
    """The samples around a boundary: which are kept, and why the others are not."""
    steps, warm_up, left, top = 26, 2, 16, 64
    view = stoker.Windows(4, horizon=2, tail="drop")
    store = stoker.Store.from_arrays(x=[np.arange(steps)])
    split = stoker.split.chronological(store, view, fractions=(0.5, 0.5), warm_up=warm_up)
    kept = {int(number): name for name, part in split.subsets.items() for number in part.runs.resolve(np.arange(len(part)))}
    picture = Picture(850, 442, "Samples before, over and after a boundary")
    for i in range(steps):
        picture.cell(left + i * STEP, 24, PLAIN, i)
    boundary = left + steps // 2 * STEP - 1.5
    picture.text(boundary - 8, 16, "train", anchor="end", bold=True)
    picture.text(boundary + 8, 16, "valid", bold=True)
    notes = left + steps * STEP + 14
    numbers = range(max(n for n in kept if kept[n] == "train") - 1, min(n for n in kept if kept[n] == "valid") + 2)
    for row, number in enumerate(numbers):
        y = top + row * (HEIGHT + 8)
        is_kept = number in kept
        for step in range(number - warm_up, number + view.span):
            color = THIRD if step < number else INPUT if step < number + view.length else TARGET
            if is_kept:
                picture.cell(left + step * STEP, y, color, step)
            else:
                picture.cell(left + step * STEP, y + 7, color, height=8)
        purged = number + view.length <= steps // 2
        words = f"{kept[number]}" if is_kept else "purged" if purged else "embargoed"
        picture.text(notes, y + 16, words, bold=is_kept)
    picture.line(boundary, 4, boundary, top + len(numbers) * (HEIGHT + 8), dashed=True)
    picture.legend(left, 414, [(THIRD, "warm-up of its features"), (INPUT, "window"), (TARGET, "target")])
    picture.text(left + 430, 426.5, "thin: the sample is in no part")
    return picture


def draw_store() -> Picture:
    """Rows of raw files in any order, and the columns that a pack makes of them."""
    rows = (("b", 1, 41), ("a", 1, 20), ("c", 1, 7), ("a", 2, 21), ("b", 2, 43), ("a", 3, 24), ("b", 3, 40), ("c", 2, 9))
    colors = dict(zip("abc", (INPUT, TARGET, THIRD), strict=True))
    series = {name: [value for key, _, value in sorted(rows) if key == name] for name in colors}
    store = stoker.Store.from_arrays(close=list(series.values()))
    picture = Picture(840, 262, "Rows of raw files become the columns of a store")
    picture.text(16, 22, "raw files: rows in any order", bold=True)
    for column, words in enumerate(("series", "time", "close")):
        picture.text(32 + column * 58, 46, words, code=True, anchor="middle", size=12)
    for row, entries in enumerate(rows):
        for column, entry in enumerate(entries):
            picture.cell(21 + column * 58, 54 + row * (HEIGHT + 3), colors[entries[0]], entry)
    picture.text(222, 150, "stoker pack", code=True, bold=True)
    picture.line(222, 160, 306, 160)
    picture.line(298, 154, 306, 160)
    picture.line(298, 166, 306, 160)
    left = 340
    picture.text(left, 22, "a store: one flat file per column", bold=True)
    offsets = store.offsets.tolist()
    for column, (name, values) in enumerate((("close", store.column("close").tolist()), ("time", [t for _, t, _ in sorted(rows)]))):
        y = 54 + column * 44
        picture.text(left, y + 16, f"{name}.npy", code=True, size=12)
        for place, value in enumerate(values):
            key = "abc"[int(np.searchsorted(offsets, place, side="right")) - 1]
            picture.cell(left + 100 + place * STEP, y, colors[key], int(value))
    for place in offsets:
        picture.line(left + 100 + place * STEP - 1.5, 44, left + 100 + place * STEP - 1.5, 132)
        picture.text(left + 100 + place * STEP - 1.5, 158, str(place), code=True, anchor="middle")
    picture.text(left, 158, "offsets.npy", code=True, size=12)
    picture.text(left, 196, "manifest.json", code=True, size=12)
    picture.text(left + 104, 196, "lists the files with their hashes; replacing it is the commit")
    picture.text(left, 236, "A series is a slice of each column, and a sample is a slice of a series.")
    picture.text(left, 256, "Files are mapped into memory: opening a store reads none of the values.")
    return picture


def draw_removals() -> Picture:
    """A step as it is, without a suspect, and without all of them, above the time in which the GPU is busy."""
    rows = (
        ("now", 13.5, PLAIN, "your loop, unchanged"),
        ("without loading", 6.0, INPUT, "7.5 ms less: data"),
        ("without waits", 13.4, INPUT, "next to nothing: reading values is not the bottleneck"),
        ("without all", 5.8, THIRD, "what is left is the step itself"),
        ("GPU busy", 3.2, TARGET, "less than 0.8 of what is left: the host limits it, 2.6 ms of launches"),
    )
    picture = Picture(800, 250, "Time of a step with suspects removed")
    picture.text(16, 22, "milliseconds of a step", bold=True)
    for row, (name, milliseconds, color, note) in enumerate(rows):
        y = 40 + row * 42
        picture.text(16, y + 18, name)
        picture.bar(130, y, milliseconds * 20, 26, color)
        picture.text(138, y + 18, f"{milliseconds:g}", color="#fff", bold=True)
        picture.text(140 + milliseconds * 20, y + 18, note)
    return picture


def draw_stage(picture: Picture, y: float, title: str, words: str, files: str) -> None:
    """A line of a path: what happens, and the files where it does."""
    picture.text(20, y, title, bold=True)
    picture.text(140, y, words)
    picture.text(picture.width - 20, y, files, code=True, size=12, anchor="end")


def draw_batch_path() -> Picture:
    """How a batch is made: slices of columns, in the order of a function, gathered into a slot and copied to the device."""
    lengths, batch_size, left = (9, 5, 12), 3, 20
    starts = np.cumsum([0, *lengths]).tolist()
    view, order = stoker.Windows(4, stride=3, tail="drop"), stoker.Shuffle(seed=0)
    samples = view.over(Lengths(num_series=len(lengths), num_steps=starts[-1], offsets=np.array(starts)))
    numbers = order.over(samples, batch_size=batch_size).numbers(0, 0, samples.num_samples).tolist()
    chosen = numbers[batch_size : 2 * batch_size]
    picture = Picture(860, 524, "How a batch is made")

    draw_stage(picture, 22, "1 store", "a column is one flat array; offsets say where each series starts", "store/store.py")
    for series, length in enumerate(lengths):
        for step in range(length):
            picture.cell(left + (starts[series] + step) * STEP, 34, BANDS[2 * series], starts[series] + step)
    for start in starts:
        picture.line(left + start * STEP - 1.5, 30, left + start * STEP - 1.5, 64)
    draw_stage(picture, 104, "2 view", "a sample is a slice, computed from its number", "sampling/views.py")
    for number, (start, count) in enumerate(spans(view, *lengths)):
        y, x = 116 + number % 2 * 26, left + start * STEP
        color = TARGET if number in chosen else INK
        picture.frame(x, y, count * STEP - 3, HEIGHT)
        picture.text(
            x + (count * STEP - 3) / 2, y + 16, f"sample {number}", size=12, anchor="middle", color=color, bold=number in chosen
        )
    draw_stage(picture, 204, "3 order", "from position to sample: a function of (seed, epoch)", "sampling/orders.py permutation.py")
    for position, number in enumerate(numbers):
        picture.cell(left + position * STEP, 216, TARGET if number in chosen else PLAIN, number)
    for batch in range(0, len(numbers), batch_size):
        end = min(batch + batch_size, len(numbers))
        picture.line(left + batch * STEP, 244, left + end * STEP - 3, 244)
        picture.text(left + (batch + end) / 2 * STEP - 1.5, 260, f"batch {batch // batch_size}", size=12, anchor="middle")
    picture.text(left + len(numbers) * STEP + 14, 232, "ranks share the positions; the state of a feed is seed, epoch and position")
    draw_stage(picture, 300, "4 gather", "a thread copies the slices into a slot of pinned memory", "feed/prefetch.py gather.py")
    located = dict(enumerate(spans(view, *lengths)))
    for row, number in enumerate(chosen):
        start, count = located[number]
        series = int(np.searchsorted(starts, start, side="right")) - 1
        for step in range(count):
            picture.cell(left + 70 + step * STEP, 312 + row * (HEIGHT + 4), BANDS[2 * series], start + step)
        picture.text(left, 328 + row * (HEIGHT + 4), f"sample {number}", size=12)
    notes = (
        "values are scaled while they are copied (feed/scaling.py)",
        "lengths, masks and categories come with them (padding.py, categories.py)",
        "a slot is used again when no tensor refers to it",
    )
    for line, words in enumerate(notes):
        picture.text(left + 190, 328 + line * 26, words)
    draw_stage(picture, 424, "5 device", "copied in a separate stream, or gathered on the GPU", "feed/gather.py device.py")
    draw_stage(picture, 464, "6 step", "forward, backward, clip, NaN guard, optimizer, EMA", "train/fit.py step.py ema.py")
    draw_stage(
        picture, 504, "7 checkpoint", "weights, optimizer, random states and the position of the feed", "train/checkpoint.py"
    )
    return picture


def draw_verdict_path() -> Picture:
    """How a verdict is made: a script in a sandbox, windows in alternation, and a rule over what they measured."""
    left = 20
    picture = Picture(860, 600, "How a verdict is made")

    draw_stage(picture, 22, "1 child", "the script runs unchanged, in a process and a sandbox", "diagnose/child.py sandbox/")
    draw_stage(picture, 58, "2 loop", "the loop that draws batches and updates weights is found", "diagnose/loops.py")
    draw_stage(
        picture, 94, "3 session", "hooks time each phase of a step; the session hands out batches", "diagnose/hooks.py session.py"
    )
    draw_stage(picture, 130, "4 windows", "as it is, without a suspect, or with a fix, in turn", "diagnose/windows.py experiments/")
    windows = (
        ("as it is", 13.5, PLAIN),
        ("no loading", 6.0, INPUT),
        ("as it is", 13.6, PLAIN),
        ("no loading", 6.1, INPUT),
        ("as it is", 13.4, PLAIN),
        ("4 workers", 6.9, THIRD),
    )
    base, width = 258, 116
    for place, (name, milliseconds, color) in enumerate(windows):
        x = left + place * (width + 10)
        steps = 8
        for step in range(steps):
            picture.bar(x + step * (width / steps), base - 6 * milliseconds, width / steps - 3, 6 * milliseconds, color)
        picture.text(x + width / 2, base + 18, name, size=12, anchor="middle")
        picture.text(x + width / 2, base - 6 * milliseconds - 6, f"{milliseconds:g} ms", size=12, anchor="middle", color=color)
    picture.line(left, base + 1.5, left + 6 * (width + 10) - 10, base + 1.5)
    picture.text(
        left, 306, "A bar is a step. Each pair of windows gives one difference, so a machine that slows down slows both sides."
    )
    draw_stage(
        picture,
        344,
        "5 measured",
        "one value, from which the verdict can be made again",
        "diagnose/recorder.py measurements.py",
    )
    draw_stage(picture, 380, "6 rule", "a pure function: the step, divided among causes", "diagnose/division.py rare.py rule.py")
    parts = (("data 7.5 ms", 7.5, INPUT), ("launches 2.6", 2.6, TARGET), ("computing 3.4", 3.4, PLAIN))
    x = float(left)
    for words, milliseconds, color in parts:
        picture.bar(x, 394, milliseconds * 54 - 3, 26, color)
        picture.text(x + 8, 412, words, size=12, color="#fff", bold=True)
        x += milliseconds * 54
    picture.text(
        left, 442, "Waste (data, copies, waits, Python, launches) of at least 10 % comes before work. In doubt there is no verdict."
    )
    draw_stage(picture, 480, "7 advice", "fixes for the cause, with the speed-up that was measured", "diagnose/advice.py")
    draw_stage(
        picture, 516, "8 report", "the same finding on the terminal, as JSON, as a page", "diagnose/wording.py finding.py report.py"
    )
    draw_stage(
        picture,
        552,
        "9 proof",
        "--try, --apply: fixes in new processes, losses compared",
        "diagnose/trials.py patches.py",
    )
    picture.text(left, 588, "No file of the user has changed: the script could not change one.")
    return picture


PICTURES = {
    "store": draw_store,
    "removals": draw_removals,
    "windows": draw_windows,
    "segments": draw_segments,
    "sequences": draw_sequences,
    "batch": draw_batch,
    "orders": draw_orders,
    "ranks": draw_ranks,
    "split": draw_split,
    "batch_path": draw_batch_path,
    "verdict_path": draw_verdict_path,
}


def main(folder: Path = HERE) -> None:
    """Write all of them into a folder."""
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
