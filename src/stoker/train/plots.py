"""The painter: a picture that is told as SVG, as PNG. resvg draws it, with a font that this machine has; imported on use."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from stoker._disk import write_file
from stoker.errors import OptionError
from stoker.train.loggers import read_lines
from stoker.train.run import LOSS, METRICS, RATE, WAIT, RunSummary

ZOOM = 2
FONTS = {
    "DejaVuSans.ttf": ("DejaVu Sans", "DejaVuSans-Bold.ttf"),
    "LiberationSans-Regular.ttf": ("Liberation Sans", "LiberationSans-Bold.ttf"),
    "NotoSans-Regular.ttf": ("Noto Sans", "NotoSans-Bold.ttf"),
    "Arial.ttf": ("Arial", "Arial Bold.ttf"),
    "arial.ttf": ("Arial", "arialbd.ttf"),
}
"""Files of fonts that have all letters that pictures need, each with its family and where its bold letters are."""
FOLDERS = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "~/.local/share/fonts",
    "~/.fonts",
    "/System/Library/Fonts",
    "/Library/Fonts",
    "C:/Windows/Fonts",
)


def as_png(svg: str) -> bytes:
    """The picture, twice as large."""
    from resvg_py import svg_to_bytes

    font = find_font()
    family, bold = FONTS[font.name]
    files = [str(path) for path in (font, font.with_name(bold)) if path.exists()]
    return bytes(
        svg_to_bytes(
            svg_string=svg, zoom=ZOOM, font_files=files, skip_system_fonts=True, font_family=family, sans_serif_family=family
        )
    )


def find_font() -> Path:
    """The first font of the list that is here; refused where none is: a picture without words says little."""
    found: dict[str, Path] = {}
    for folder in _folders():
        for at, _, names in os.walk(folder):
            for name in FONTS.keys() & set(names):
                found.setdefault(name, Path(at) / name)
    for name in FONTS:
        if name in found:
            return found[name]
    wanted = ", ".join(dict.fromkeys(family for family, _ in FONTS.values()))
    raise OptionError(
        f"a picture as .png needs a font, and none of {wanted} is here. Install one, or give a path that ends in .svg."
    )


def _folders() -> Iterator[Path]:
    for folder in FOLDERS:
        yield Path(folder).expanduser()
    spec = importlib.util.find_spec("matplotlib")  # which brings fonts along
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"


# The picture of runs: losses, metrics and throughput over steps, one colour a run.

MOST_PANELS = 12
TITLES = {LOSS: "loss", RATE: "updates a second", WAIT: "wait for data", "lr": "learning rate", "norm": "norm of the gradient"}
SKIPPED = frozenset({"epoch", "seconds"})

Curves = dict[str, tuple[list[int], list[float]]]


def plot(runs: Sequence[RunSummary], path: str | Path, *, title: str | None = None) -> Path:
    """Draw runs into a picture: .svg or .png. Damaged runs and those without numbers are left out."""
    check_picture(path)
    read = [(run, read_lines(run.path / METRICS).curves) for run in runs if run.state != "damaged"]
    drawn = [(run, curves) for run, curves in read if curves]
    if not drawn:
        raise OptionError(f"none of {len(runs):,} runs has numbers to draw. Give a folder of runs that have a {METRICS}.")
    panels = _panels([curves for _, curves in drawn])
    names = [run.name for run, _ in drawn]
    note = "solid: training · dashed: validation" if any(curve.dashed for panel in panels for curve in panel.curves) else ""
    return save_picture(
        path,
        panels,
        title=title or (names[0] if len(names) == 1 else f"{len(names)} runs"),
        legend=names if len(names) > 1 else [],
        note=note,
    )


def check_picture(path: str | Path) -> None:
    """Refuse a path that no picture can be saved under, before anything is computed for it."""
    suffix = Path(path).suffix
    if suffix not in (".svg", ".png"):
        raise OptionError(f"{path} has the ending {suffix!r}; expected .svg or .png.")
    if not Path(path).absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {Path(path).parent}. Make it first.")
    if suffix == ".png":
        find_font()


def save_picture(path: str | Path, panels: Sequence[Panel], *, title: str, legend: Sequence[str] = (), note: str = "") -> Path:
    """Draw panels of curves into a picture: .svg or .png."""
    return save_svg(path, draw(panels, title=title, legend=legend, note=note))


def save_svg(path: str | Path, text: str) -> Path:
    """Save a picture that is told as SVG: .svg as it is, or .png."""
    check_picture(path)
    path = Path(path)
    write_file(path, text.encode() if path.suffix == ".svg" else as_png(text), durable=False)
    return path


def _panels(runs: Sequence[Curves]) -> list[Panel]:
    names = {name: None for curves in runs for name in curves if name not in SKIPPED}
    tails = [name for name in (RATE, WAIT) if name in names]
    heads = sorted((name for name in names if name not in tails and name != f"val_{LOSS}"), key=_rank)
    if LOSS not in names and f"val_{LOSS}" in names:
        heads.insert(0, LOSS)
    return [_panel(name, runs) for name in [*heads[: MOST_PANELS - len(tails)], *tails]]


def _rank(name: str) -> tuple[int, str]:
    """Loss first, then metrics of validation, then what else there is."""
    return (0 if name == LOSS else 1 if name.startswith("val_") else 2, name)


def _panel(name: str, runs: Sequence[Curves]) -> Panel:
    curves = []
    for number, found in enumerate(runs):
        for kind in (name, f"val_{LOSS}") if name == LOSS else (name,):
            if kind in found:
                steps, values = found[kind]
                curves.append(Curve(colour=number, steps=steps, values=values, dashed=kind.startswith("val_")))
    return Panel(title=TITLES.get(name, name), curves=curves, from_zero=name in (RATE, WAIT), percent=name == WAIT)


# Charts: curves over steps as one self-contained SVG picture, without a package to draw with.

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#8c564b", "#4d4d4d", "#a5aa00")
WIDTH, HEIGHT = 480.0, 280.0
"""Of one panel; its curves lie within the margins."""
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 34.0, 34.0
GAP, BORDER = 18.0, 20.0
MANY_POINTS, FEW_POINTS = 150, 40
LOG_RATIO = 30.0
INK, FAINT = "#222222", "#e4e4e4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Values over steps; curves of one run share its colour."""

    colour: int
    steps: Sequence[int]
    values: Sequence[float]
    dashed: bool = False
    smooth: bool = True
    """Whether many points are drawn as their running mean over a shadow of themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Curves that share their axes."""

    title: str
    curves: Sequence[Curve]
    from_zero: bool = False
    percent: bool = False


def draw(panels: Sequence[Panel], *, title: str, legend: Sequence[str], note: str = "") -> str:
    """The picture: a title, a legend that names the colours, and the panels, two in a row."""
    columns = min(2, max(1, len(panels)))
    rows = math.ceil(len(panels) / columns)
    width = 2 * BORDER + columns * WIDTH + (columns - 1) * GAP
    entries, legend_height = _legend(legend, width)
    top = BORDER + 30 + legend_height + (18 if note else 0)
    height = top + rows * HEIGHT + max(0, rows - 1) * GAP + BORDER
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">',
        f"<title>{_text(title)}</title>",
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
        f'<text x="{BORDER:g}" y="{BORDER + 12:g}" font-size="17" font-weight="bold">{_text(title)}</text>',
        *entries,
    ]
    if note:
        parts.append(f'<text x="{BORDER:g}" y="{top - 8:g}" font-size="11" fill="#666666">{_text(note)}</text>')
    for number, panel in enumerate(panels):
        x, y = BORDER + number % columns * (WIDTH + GAP), top + number // columns * (HEIGHT + GAP)
        parts += [f'<g transform="translate({x:g} {y:g})">', *_panel_chart(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(names: Sequence[str], width: float) -> tuple[list[str], float]:
    parts: list[str] = []
    x, y = BORDER, BORDER + 36
    for number, name in enumerate(names):
        size = 34 + 6.4 * len(name)
        if x + size > width - BORDER and x > BORDER:
            x, y = BORDER, y + 18
        parts.append(f'<path d="M{x:g} {y - 4:g}h20" stroke="{colour_of(number)}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 26:g}" y="{y:g}">{_text(name)}</text>')
        x += size + 12
    return parts, y - BORDER - 18 if names else 0.0


def colour_of(number: int) -> str:
    """The colour of a run; after the last one they begin again."""
    return COLOURS[number % len(COLOURS)]


def _panel_chart(panel: Panel) -> Iterator[str]:
    axis = Axis.over(panel)
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    last_step = max((max(curve.steps) for curve in panel.curves if curve.steps), default=1) or 1
    first_step = min((min(curve.steps) for curve in panel.curves if curve.steps), default=0)
    # A run that begins near zero is shown from zero on.
    first_step = 0 if first_step < 0.2 * last_step else first_step
    span = max(1, last_step - first_step)
    scale = " (log)" if axis.is_log else ""
    yield f'<text x="{LEFT:g}" y="{TOP - 12:g}" font-size="13" font-weight="bold">{_text(panel.title)}{scale}</text>'
    for value, label in zip(axis.ticks, axis.labels(percent=panel.percent), strict=True):
        y = TOP + down * (1 - axis.share(value))
        yield f'<path d="M{LEFT:g} {y:.1f}h{across:g}" stroke="{FAINT}"/>'
        yield f'<text x="{LEFT - 7:g}" y="{y + 4:.1f}" text-anchor="end" font-size="11">{label}</text>'
    step_ticks = nice_ticks(first_step, last_step, 6, whole=True)
    for step, label in zip(step_ticks, labels(step_ticks), strict=True):
        x = LEFT + across * (step - first_step) / span
        yield f'<path d="M{x:.1f} {TOP + down:g}v4" stroke="#888888"/>'
        yield f'<text x="{x:.1f}" y="{TOP + down + 17:g}" text-anchor="middle" font-size="11">{label}</text>'
    yield f'<path d="M{LEFT:g} {TOP:g}v{down:g}h{across:g}" stroke="#888888" fill="none"/>'
    yield f'<text x="{LEFT + across:g}" y="{TOP + down + 31:g}" text-anchor="end" font-size="11" fill="#666666">step</text>'
    for curve in panel.curves:
        points = [
            (LEFT + across * (step - first_step) / span, TOP + down * (1 - axis.share(value)) if axis.has(value) else math.nan)
            for step, value in zip(curve.steps, curve.values, strict=True)
        ]
        yield from _curve(curve, points, across)


def _curve(curve: Curve, points: list[tuple[float, float]], across: float) -> Iterator[str]:
    stroke = f'fill="none" stroke="{colour_of(curve.colour)}" stroke-linejoin="round"'
    dash = ' stroke-dasharray="6 4"' if curve.dashed else ""
    if len(points) > MANY_POINTS and not curve.smooth:
        yield f'<path d="{_path(_thin(points, across))}" {stroke} stroke-width="1.4"{dash}/>'
        return
    if len(points) > MANY_POINTS:
        yield f'<path d="{_path(_thin(points, across))}" {stroke} stroke-width="1" stroke-opacity="0.25"/>'
        yield f'<path d="{_path(_thin(_smooth(points), across))}" {stroke} stroke-width="1.8"{dash}/>'
        return
    yield f'<path d="{_path(points)}" {stroke} stroke-width="1.8"{dash}/>'
    if len(points) <= FEW_POINTS:
        for x, y in points:
            if not math.isnan(y):
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour_of(curve.colour)}"/>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Lines between neighbours; a value that cannot be shown leaves a gap."""
    words, is_down = [], False
    for x, y in points:
        if math.isnan(y):
            is_down = False
            continue
        words.append(f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}")
        is_down = True
    return "".join(words)


def _thin(points: Sequence[tuple[float, float]], across: float) -> list[tuple[float, float]]:
    """The highest and the lowest point of each pixel: all that can be seen."""
    kept: list[tuple[float, float]] = []
    size = max(1, math.ceil(len(points) / across))
    for start in range(0, len(points), size):
        some = [point for point in points[start : start + size] if not math.isnan(point[1])]
        if some:
            kept += sorted({min(some, key=lambda point: point[1]), max(some, key=lambda point: point[1])})
        else:
            kept.append((points[start][0], math.nan))
    return kept


def _smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The mean over a twenty-fifth of the curve around each point, as drawn."""
    reach = max(2, len(points) // 50)
    least = reach // 2
    sums, counts = [0.0], [0]
    for _, y in points:
        sums.append(sums[-1] + (0.0 if math.isnan(y) else y))
        counts.append(counts[-1] + (not math.isnan(y)))
    smooth = []
    for place, (x, y) in enumerate(points):
        # As far to one side as to the other where it can be, so that the ends of a slope are hardly bent.
        near = max(least, min(reach, place, len(points) - 1 - place))
        low, high = max(0, place - near), min(len(points), place + near + 1)
        count = counts[high] - counts[low]
        smooth.append((x, (sums[high] - sums[low]) / count if count and not math.isnan(y) else math.nan))
    return smooth


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of a panel, from bottom to top."""

    low: float
    high: float
    is_log: bool
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, panel: Panel) -> Axis:
        """The axis that shows all finite values of a panel."""
        values = [value for curve in panel.curves for value in curve.values if math.isfinite(value)]
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if low > 0 and high / low > LOG_RATIO and not panel.from_zero:
            return cls(low / 1.1, high * 1.1, True, tuple(_log_ticks(low / 1.1, high * 1.1)))
        low = min(0.0, low) if panel.from_zero else low
        room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        low, high = (low if panel.from_zero and low == 0 else low - room), high + room
        return cls(low, high, False, tuple(nice_ticks(low, high, 6)))

    def labels(self, *, percent: bool) -> list[str]:
        """What stands beside the ticks; those of a log axis are of any size, so each has its own unit."""
        return [labels([value], percent=percent)[0] for value in self.ticks] if self.is_log else labels(self.ticks, percent=percent)

    def has(self, value: float) -> bool:
        """Whether a value can be shown."""
        return math.isfinite(value) and (value > 0 or not self.is_log)

    def share(self, value: float) -> float:
        """Where a value lies, from 0 at the bottom to 1 at the top."""
        if self.is_log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)


def nice_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Round numbers between two, at most so many, all at the same distance."""
    if not high > low:
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / most))
    distance = next(size * factor for factor in (1, 2, 2.5, 5, 10, 20) if (high - low) / (size * factor) <= most)
    distance = max(1.0, math.ceil(distance)) if whole else distance
    first, last = math.ceil(low / distance - 1e-9), math.floor(high / distance + 1e-9)
    return [number * distance for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> Iterator[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = math.ceil((last - first) / 8)
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    for power in range(first, last + 1, every):
        yield from (factor * 10.0**power for factor in factors if low <= factor * 10.0**power <= high)


def labels(values: Sequence[float], *, percent: bool = False) -> list[str]:
    """Numbers of one axis in one unit, as short as they can be said: 5k and 10k, 7.5e-4 and 1e-3."""
    size = max((abs(value) for value in values), default=0.0)
    if percent:
        return [f"{100 * value:.4g} %" for value in values]
    if size < 1e-2 or size >= 1e12:
        return [_scientific(value) for value in values]
    unit, scale = next(((unit, scale) for unit, least, scale in UNITS if size >= least), ("", 1.0))
    return [f"{value / scale:.6g}{unit if value else ''}" for value in values]


UNITS = (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e4, 1e3))


def _scientific(value: float) -> str:
    if not value:
        return "0"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def _text(text: str) -> str:
    """Text within XML: names are shown, never obeyed."""
    return escape(text if text.isprintable() else text.encode("unicode_escape").decode("ascii"))
