"""Plots of runs: losses, metrics and throughput over steps, one colour per run, as SVG or PNG.

    plot            the curves of runs, as `stoker runs --plot` draws them
    save_plot       panels of curves
    save_figure     any figure of matplotlib

matplotlib (the extra `plot`) draws; it is imported on use. An SVG holds no date and no random names: the same numbers give the
same file.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._disk import write_file
from stoker._types import Array
from stoker.errors import OptionError
from stoker.train.loggers import read_lines
from stoker.train.run import LOSS, METRICS, RATE, WAIT, RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#8c564b", "#4d4d4d", "#a5aa00")
DPI = 96.0
WIDTH, HEIGHT = 480.0, 280.0
"""Of one panel, in pixels; its curves lie within the margins."""
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 34.0, 34.0
GAP, BORDER = 18.0, 20.0
MANY_POINTS, FEW_POINTS = 150, 40
MOST_PANELS = 12
LOG_RATIO = 30.0
"""Positive values that span more than this get a logarithmic axis."""
TITLES = {LOSS: "loss", RATE: "updates per second", WAIT: "wait for data", "lr": "learning rate", "norm": "gradient norm"}
SKIPPED = frozenset({"epoch", "seconds"})
STYLE = {"svg.hashsalt": "stoker", "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif", "savefig.dpi": 2 * DPI}

Curves = dict[str, tuple[list[int], list[float]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Values over steps.

    Args:
        colour: Number of the colour; curves of one run share it.
        steps: Where the values are.
        values: One per step; NaN and Inf leave a gap.
        dashed: Draw a dashed line, as for validation.
        smooth: Draw more than 150 points as their running mean, above a faint line of all of them.

    Example:
        >>> Curve(colour=0, steps=[1, 2, 3], values=[3.0, 2.0, 1.5]).dashed
        False
    """

    colour: int
    steps: Sequence[int]
    values: Sequence[float]
    dashed: bool = False
    smooth: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Curves that share their axes.

    Args:
        title: What is shown.
        curves: The curves.
        from_zero: Let the values begin at zero, on a linear axis.
        percent: Show values as percentages.

    Example:
        >>> Panel(title="loss", curves=[Curve(colour=0, steps=[1, 2], values=[1.0, 0.5])]).title
        'loss'
    """

    title: str
    curves: Sequence[Curve]
    from_zero: bool = False
    percent: bool = False


def plot(runs: Sequence[RunSummary], path: str | Path, *, title: str | None = None) -> Path:
    """Plot runs into an .svg or .png file. Damaged runs and those without numbers are left out."""
    check_plot(path)
    read = [(run, read_lines(run.path / METRICS).curves) for run in runs if run.state != "damaged"]
    drawn = [(run, curves) for run, curves in read if curves]
    if not drawn:
        raise OptionError(f"none of {len(runs):,} runs has numbers to draw. Give a folder of runs that have a {METRICS}.")
    panels = _panels([curves for _, curves in drawn])
    names = [run.name for run, _ in drawn]
    note = "solid: training · dashed: validation" if any(curve.dashed for panel in panels for curve in panel.curves) else ""
    return save_plot(
        path,
        panels,
        title=title or (names[0] if len(names) == 1 else f"{len(names)} runs"),
        legend=names if len(names) > 1 else [],
        note=note,
    )


def check_plot(path: str | Path) -> None:
    """Refuse a path that no plot can be saved under, before anything is computed for it.

    Args:
        path: Where the plot is to go.

    Raises:
        OptionError: The name ends in neither .svg nor .png, its folder does not exist, or matplotlib is not installed.

    Example:
        >>> check_plot("runs.pdf")
        Traceback (most recent call last):
        stoker.errors.OptionError: runs.pdf has the suffix '.pdf'; expected .svg or .png.
    """
    suffix = Path(path).suffix
    if suffix not in (".svg", ".png"):
        raise OptionError(f"{path} has the suffix {suffix!r}; expected .svg or .png.")
    if not Path(path).absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {Path(path).parent}. Make it first.")
    _matplotlib()


def save_plot(path: str | Path, panels: Sequence[Panel], *, title: str, legend: Sequence[str] = (), note: str = "") -> Path:
    """Draw panels of curves into an .svg or .png file.

    Args:
        path: Where the plot goes.
        panels: Two in a row.
        title: Above all.
        legend: Names of the colours.
        note: A line below the legend.

    Returns:
        The path.

    Example:
        >>> panel = Panel(title="loss", curves=[Curve(colour=0, steps=[1, 2], values=[1.0, 0.5])])  # doctest: +SKIP
        >>> save_plot("loss.svg", [panel], title="First run")  # doctest: +SKIP
    """
    check_plot(path)
    with _matplotlib().rc_context(STYLE):
        return save_figure(path, draw(panels, title=title, legend=legend, note=note))


def save_figure(path: str | Path, figure: Figure) -> Path:
    """Save a figure of matplotlib as .svg or .png. Equal figures give equal files.

    Args:
        path: Where it goes.
        figure: What is saved.

    Returns:
        The path.

    Example:
        >>> save_figure("figure.svg", matplotlib.pyplot.figure())  # doctest: +SKIP
    """
    check_plot(path)
    path, buffer = Path(path), io.BytesIO()
    metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
    with _matplotlib().rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a viewer may have a font with it
        figure.savefig(buffer, format=path.suffix[1:], metadata=metadata)
    write_file(path, buffer.getvalue(), durable=False)
    return path


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise OptionError("plots need matplotlib, which is not installed. Install it: pip install 'stoker[plot]'.") from None
    return matplotlib


def _panels(runs: Sequence[Curves]) -> list[Panel]:
    """Loss first, then metrics of validation, then what else there is; updates per second and waiting last."""
    names = {name: None for curves in runs for name in curves if name not in SKIPPED}
    tails = [name for name in (RATE, WAIT) if name in names]
    heads = [name for name in names if name not in tails and name != f"val_{LOSS}"]
    heads.sort(key=lambda name: (0 if name == LOSS else 1 if name.startswith("val_") else 2, name))
    if LOSS not in names and f"val_{LOSS}" in names:
        heads.insert(0, LOSS)
    panels = []
    for name in [*heads[: MOST_PANELS - len(tails)], *tails]:
        curves = [
            Curve(colour=number, steps=found[kind][0], values=found[kind][1], dashed=kind.startswith("val_"))
            for number, found in enumerate(runs)
            for kind in ((name, f"val_{LOSS}") if name == LOSS else (name,))
            if kind in found
        ]
        panels.append(Panel(title=TITLES.get(name, name), curves=curves, from_zero=name in (RATE, WAIT), percent=name == WAIT))
    return panels


def draw(panels: Sequence[Panel], *, title: str, legend: Sequence[str] = (), note: str = "") -> Figure:
    """A figure with a title, a legend that names the colours, and the panels, two in a row."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = min(2, max(1, len(panels)))
    rows = math.ceil(len(panels) / columns)
    width = 2 * BORDER + columns * WIDTH + (columns - 1) * GAP
    places: list[tuple[float, float]] = []  # of the names of the legend, in lines that are not wider than the figure
    x, y = BORDER, 0.0
    for name in legend:
        size = 34 + 6.4 * len(name)
        if x + size > width - BORDER and x > BORDER:
            x, y = BORDER, y + 18
        places.append((x, y))
        x += size + 12
    top = BORDER + 30 + (places[-1][1] + 18 if places else 0) + (18 if note else 0)
    height = top + rows * HEIGHT + max(0, rows - 1) * GAP + BORDER
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    write_text(figure, BORDER, BORDER + 12, title, fontsize=12, fontweight="bold")
    for number, (name, (x, y)) in enumerate(zip(legend, places, strict=True)):
        ends, at = [x / width, (x + 20) / width], 1 - (BORDER + 32 + y) / height
        line = Line2D(ends, [at, at], color=colour_of(number), linewidth=2.2)
        line.set_transform(figure.transFigure)
        figure.add_artist(line)
        write_text(figure, x + 26, BORDER + 36 + y, name)
    if note:
        write_text(figure, BORDER, top - 8, note, fontsize=8, color="#666666")
    for number, panel in enumerate(panels):
        x = BORDER + number % columns * (WIDTH + GAP) + LEFT
        y = top + number // columns * (HEIGHT + GAP) + TOP
        across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        _draw_panel(figure.add_axes((x / width, 1 - (y + down) / height, across / width, down / height)), panel)
    return figure


def write_text(figure: Figure, x: float, y: float, text: str, **style: Any) -> None:
    """Text at a place in pixels from the upper left; names are shown as they are, never as formulas."""
    width, height = figure.get_size_inches() * DPI
    figure.text(x / width, 1 - y / height, _shown(text), parse_math=False, **style)


def colour_of(number: int) -> str:
    """The colour of a run; after the last one they begin again."""
    return COLOURS[number % len(COLOURS)]


def _draw_panel(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    is_log = _scale(axes, panel)
    axes.set_title(_shown(panel.title) + (" (log)" if is_log else ""), loc="left", fontweight="bold", parse_math=False)
    axes.set_xlabel("step", loc="right", fontsize=8, color="#666666", labelpad=1)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color="#888888")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, percent=panel.percent)))
    if is_log:
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    for curve in panel.curves:
        steps, values = (np.asarray(numbers, dtype=np.float64) for numbers in (curve.steps, curve.values))
        values = np.where(np.isfinite(values), values, np.nan)
        style: dict[str, Any] = {"color": colour_of(curve.colour), "dashes": (5, 3) if curve.dashed else (None, None)}
        if len(values) <= MANY_POINTS:
            axes.plot(steps, values, linewidth=1.4, marker="o" if len(values) <= FEW_POINTS else None, markersize=4, **style)
            continue
        if curve.smooth:
            axes.plot(*_thin(steps, values), color=style["color"], linewidth=0.8, alpha=0.25)
            values = _smooth(values, is_log=is_log)
        axes.plot(*_thin(steps, values), linewidth=1.4 if curve.smooth else 1.1, **style)
    ends = [step for curve in panel.curves for step in (*curve.steps[:1], *curve.steps[-1:])]
    first, last = min(ends, default=0), max(ends, default=1) or 1
    # A run that begins near zero is shown from zero on.
    first = 0 if first < 0.2 * last else first
    axes.set_xlim(first, max(first + 1, last))


def _scale(axes: Any, panel: Panel) -> bool:
    """Set the limits of the values; returns whether their axis is logarithmic."""
    values = [value for curve in panel.curves for value in curve.values if math.isfinite(value)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low > 0 and high / low > LOG_RATIO and not panel.from_zero:
        axes.set_yscale("log", nonpositive="mask")
        axes.set_ylim(max(low / 1.1, 1e-100), min(high * 1.1, 1e100))  # beyond that, ticks would overflow
        return True
    low = min(0.0, low) if panel.from_zero else low
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low if panel.from_zero and low == 0 else low - room, high + room)
    return False


def _thin(steps: Array, values: Array) -> tuple[Array, Array]:
    """The lowest and the highest value of each pixel, which is all that can be seen."""
    size = math.ceil(len(values) / (WIDTH - LEFT - RIGHT))
    if size <= 2:
        return steps, values
    kept: list[int] = []
    for start in range(0, len(values), size):
        some = values[start : start + size]
        found = np.flatnonzero(~np.isnan(some))
        ends = {int(found[some[found].argmin()]), int(found[some[found].argmax()])} if len(found) else {0}
        kept += sorted(start + end for end in ends)
    return steps[kept], values[kept]


def _smooth(values: Array, *, is_log: bool) -> Array:
    """The mean over a twenty-fifth of the curve around each value, of logarithms where these are drawn."""
    if is_log:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.where(values > 0, values, np.nan))
        return np.asarray(np.exp(_smooth(logs, is_log=False)))
    count = len(values)
    reach = max(2, count // 50)
    # As far to one side as to the other where it can be, so that the ends of a slope are hardly bent.
    places = np.arange(count)
    near = np.maximum(reach // 2, np.minimum(reach, np.minimum(places, count - 1 - places)))
    low, high = np.maximum(0, places - near), np.minimum(count, places + near + 1)
    is_known = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(is_known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(is_known)])
    means = (sums[high] - sums[low]) / np.maximum(1, counts[high] - counts[low])
    return np.where(is_known, means, np.nan)


def tick_label(value: float, *, percent: bool = False) -> str:
    """A number beside an axis, as short as it can be: 5k, 2.5M, 1e-3, 12.5 %."""
    if percent:
        return f"{100 * value:.4g} %"
    size = abs(value)
    if size and (size < 1e-2 or size >= 1e12):
        digits, _, power = f"{value:.2e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    unit, scale = next(((unit, scale) for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)) if size >= scale), ("", 1.0))
    return f"{value / scale:.6g}{unit}"


def _shown(text: str) -> str:
    """Text as an XML file may hold it."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
