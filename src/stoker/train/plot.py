"""The picture of runs: losses, metrics and throughput over steps, one colour a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.errors import OptionError
from stoker.files import write_file
from stoker.train.chart import Curve, Panel, draw
from stoker.train.painter import as_png, find_font
from stoker.train.run import METRICS
from stoker.train.runs import LOSS, RATE, WAIT, RunSummary
from stoker.train.writers.jsonl import read_lines

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
