"""Plots of runs: losses, metrics and throughput over steps, one colour per run, as SVG or PNG.

    plot            the curves of runs, as `stoker runs --plot` draws them
    save_plot       panels of curves

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
from stoker._text import how_to_install
from stoker._types import Array
from stoker.errors import OptionError
from stoker.train.loggers import read_lines
from stoker.train.run import LOSS, METRICS, RATE, WAIT, RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#8c564b", "#4d4d4d", "#a5aa00")
WIDTH, HEIGHT = 5.0, 2.9
"""Of one panel, in inches."""
DPI, QUICK_DPI = 200, 120
MARGINS = {"left": 0.75, "right": 0.15, "top": 0.72, "bottom": 0.85, "between": 0.85}
"""Of a quick plot, in inches: room for the title, the legend, and numbers of seven characters on the axes."""
MANY_POINTS, FEW_POINTS = 150, 40
MOST_PANELS = 12
LOG_RATIO = 30.0
"""Positive values that span more than this get a logarithmic axis."""
TITLES = {LOSS: "loss", RATE: "updates per second", WAIT: "wait for data", "lr": "learning rate", "norm": "gradient norm"}
SKIPPED = frozenset({"epoch", "seconds"})
STYLE = {"svg.hashsalt": "stoker", "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}
STYLE["path.simplify_threshold"] = 1.0

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
        times: The time of each step, datetime64: the axis then has dates instead of steps.
        axis: What the axis of steps or times is called.

    Example:
        >>> Panel(title="loss", curves=[Curve(colour=0, steps=[1, 2], values=[1.0, 0.5])]).title
        'loss'
    """

    title: str
    curves: Sequence[Curve]
    from_zero: bool = False
    percent: bool = False
    times: Array | None = None
    axis: str = "step"


def plot(runs: Sequence[RunSummary], path: str | Path, *, title: str | None = None) -> Path:
    """Plot runs into an .svg or .png file. Damaged runs and those without numbers are left out."""
    check_plot(path)
    read = [(run, read_lines(run.path / METRICS).curves) for run in runs if run.state != "damaged"]
    drawn = [(run, curves) for run, curves in read if curves]
    if not drawn:
        raise OptionError(
            f"none of {len(runs):,} runs has numbers to draw. Give a folder of runs that have a {METRICS}.", parameter="runs"
        )
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
        raise OptionError(f"{path} has the suffix {suffix!r}; expected .svg or .png.", path=path)
    if not Path(path).absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {Path(path).parent}. Make it first.", path=path)
    _matplotlib()


def save_plot(
    path: str | Path, panels: Sequence[Panel], *, title: str, legend: Sequence[str] = (), note: str = "", quick: bool = False
) -> Path:
    """Draw panels of curves into an .svg or .png file.

    Args:
        path: Where the plot goes.
        panels: Two in a row.
        title: Above all.
        legend: Names of the colours.
        note: A line below the legend.
        quick: Use fixed margins and fewer pixels, which takes less than half of the time: for hundreds of files.

    Returns:
        The path.

    Example:
        >>> panel = Panel(title="loss", curves=[Curve(colour=0, steps=[1, 2], values=[1.0, 0.5])])  # doctest: +SKIP
        >>> save_plot("loss.svg", [panel], title="First run")  # doctest: +SKIP
    """
    check_plot(path)
    path, buffer = Path(path), io.BytesIO()
    metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
    with _matplotlib().rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a viewer may have a font with it
        figure = draw(panels, title=title, legend=legend, note=note, quick=quick)
        figure.savefig(buffer, format=path.suffix[1:], metadata=metadata, dpi=QUICK_DPI if quick else DPI)
    write_file(path, buffer.getvalue(), durable=False)
    return path


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise OptionError(f"plots need matplotlib, which is not installed. {how_to_install('plot')}") from None
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


def draw(panels: Sequence[Panel], *, title: str, legend: Sequence[str] = (), note: str = "", quick: bool = False) -> Figure:
    """Make a figure with a title, a legend that names the colours, and the panels, two in a row. Names are never read as formulas."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = min(2, max(1, len(panels)))
    rows = math.ceil(len(panels) / columns)
    width, height = columns * WIDTH, rows * HEIGHT + 0.8
    figure = Figure(figsize=(width, height), layout=None if quick else "constrained")
    figure.suptitle(_shown(title), fontsize=12, fontweight="bold", parse_math=False)
    if legend:
        lines = [Line2D([], [], color=colour_of(number), linewidth=2.2) for number in range(len(legend))]
        named = figure.legend(lines, [" "] * len(legend), loc="outside lower left", ncols=3 * columns, frameon=False, title=note)
        for text, name in zip(named.get_texts(), legend, strict=True):  # a label that begins with "_" would be left out
            text.set_text(_shown(name))
            text.set_parse_math(False)
    elif note:
        figure.supxlabel(note, fontsize=8, color="#666666")
    grid: Any = figure.subplots(rows, columns, squeeze=False).reshape(-1) if panels else []
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, panel)
    for axes in grid[len(panels) :]:
        axes.remove()
    if quick:
        _set_margins(figure, rows, columns)
    return figure


def _set_margins(figure: Figure, rows: int, columns: int) -> None:
    """Place the panels of a quick plot: `constrained` measures all texts instead, by drawing the figure twice."""
    width, height = figure.get_size_inches()
    between = MARGINS["between"]
    inner_width = (width - MARGINS["left"] - MARGINS["right"] - (columns - 1) * between) / columns
    inner_height = (height - MARGINS["top"] - MARGINS["bottom"] - (rows - 1) * between) / rows
    figure.subplots_adjust(
        left=MARGINS["left"] / width,
        right=1 - MARGINS["right"] / width,
        bottom=MARGINS["bottom"] / height,
        top=1 - MARGINS["top"] / height,
        wspace=between / inner_width,
        hspace=between / inner_height,
    )


def colour_of(number: int) -> str:
    """The colour of a run; after the last one they begin again."""
    return COLOURS[number % len(COLOURS)]


def _draw_panel(axes: Any, panel: Panel) -> None:
    import matplotlib.dates
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    is_log = _scale(axes, panel)
    axes.set_title(_shown(panel.title) + (" (log)" if is_log else ""), loc="left", fontweight="bold", parse_math=False)
    # At the right the formatter of dates puts the date that all ticks share.
    axes.set_xlabel(panel.axis, loc="right" if panel.times is None else "left", fontsize=8, color="#666666", labelpad=1)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color="#888888")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if panel.times is not None:
        dates: Any = matplotlib.dates  # its classes have no types
        locator = dates.AutoDateLocator(minticks=3, maxticks=6)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if panel.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    for curve in panel.curves:
        values = np.asarray(curve.values, dtype=np.float64)
        steps = (
            np.asarray(curve.steps, dtype=np.float64)
            if panel.times is None
            else panel.times[np.asarray(curve.steps, dtype=np.int64)]
        )
        values = np.where(np.isfinite(values), values, np.nan)
        style: dict[str, Any] = {"color": colour_of(curve.colour), "dashes": (5, 3) if curve.dashed else (None, None)}
        if len(values) <= MANY_POINTS:
            axes.plot(steps, values, linewidth=1.4, marker="o" if len(values) <= FEW_POINTS else None, markersize=4, **style)
            continue
        if curve.smooth:
            axes.plot(steps, values, color=style["color"], linewidth=0.8, alpha=0.25)
            values = _smooth(values, is_log=is_log)
        axes.plot(steps, values, linewidth=1.4 if curve.smooth else 1.1, **style)
    ends = [step for curve in panel.curves for step in (*curve.steps[:1], *curve.steps[-1:])]
    first, last = min(ends, default=0), max(ends, default=1) or 1
    if panel.times is not None:
        if first < last:
            axes.set_xlim(panel.times[first], panel.times[last])
        return
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


def _smooth(values: Array, *, is_log: bool) -> Array:
    """The mean over a twenty-fifth of the curve around each value, of logarithms where these are drawn."""
    if is_log:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.where(values > 0, values, np.nan))
        return np.asarray(np.exp(_smooth(logs, is_log=False)))
    count = len(values)
    reach, places = max(2, count // 50), np.arange(count)
    low, high = np.maximum(0, places - reach), np.minimum(count, places + reach + 1)
    is_known = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(is_known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(is_known)])
    means = (sums[high] - sums[low]) / np.maximum(1, counts[high] - counts[low])
    return np.where(is_known, means, np.nan)


def _shown(text: str) -> str:
    """Text as an XML file may hold it."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
