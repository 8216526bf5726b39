"""Plots of runs: one file with every curve in it, the same for the same numbers."""

from __future__ import annotations

import importlib.util
import math
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import OptionError
from stoker.train import Curve, Panel, check_plot, save_plot
from stoker.train.plots import plot
from stoker.train.run import Run, collect

SVG = "{http://www.w3.org/2000/svg}"
draws = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")


def write_run(folder: Path, *, count: int = 20, **more: float) -> None:
    run = Run(folder)
    for step in range(1, count + 1):
        run.metrics.write(step * 50, {"loss": 1 / step, "val_loss": 2 / step, "rate": 40.0, "wait": 0.1, "epoch": 1.0, **more})
    run.end("finished", step=count * 50)


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ET.parse(path).iter(f"{SVG}text")]


def lines(panel: Panel) -> list[Any]:
    from stoker.train.plots import draw

    [axes] = draw([panel], title="t").axes
    return list(axes.lines)


@draws
def test_a_plot_has_a_panel_for_each_number_and_names_each_run(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one", val_auc=0.9, lr=1e-3)
    write_run(tmp_path / "runs" / "_a & <b> $x$\x07")
    found = texts(plot(collect(tmp_path / "runs"), tmp_path / "runs.svg"))
    assert {"2 runs", "one", "_a & <b> $x$\\x07", "solid: training · dashed: validation"} <= set(found)
    panels = ["loss (log)", "val_auc", "learning rate", "updates per second", "wait for data"]
    assert [text for text in found if text in panels] == panels
    assert "epoch" not in found


@draws
def test_a_quick_plot_is_drawn_in_a_single_pass_and_cuts_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    passes, draw_figure = [], Figure.draw

    def draw(figure: Figure, renderer: Any) -> None:
        draw_figure(figure, renderer)
        boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
        passes.append((boxes, figure.get_size_inches() * figure.dpi))

    monkeypatch.setattr(Figure, "draw", draw)
    for count, scale in ((1, 1.0), (2, 123456.0), (4, -1e9), (3, 1e-4)):
        panels = [Panel(title="x", curves=[Curve(colour=0, steps=[0, 1, 2], values=[0, scale, -scale])])] * count
        for quick, expected in ((True, 1), (False, 2)):  # the layout that measures all texts draws the figure for it
            passes.clear()
            save_plot(tmp_path / "f.png", panels, title="t", legend=["known"], quick=quick)
            assert len(passes) == expected
            boxes, (width, height) = passes[-1]
            for box in boxes:
                assert 0 <= box.x0 < box.x1 <= width + 1
                assert 0 <= box.y0 < box.y1 <= height + 1
                assert not any(box.overlaps(other) for other in boxes if other is not box)


@draws
def test_a_long_run_does_not_make_a_large_file(tmp_path: Path) -> None:
    steps = list(range(200_000))
    curve = Curve(colour=0, steps=steps, values=[math.sin(step) + 2 for step in steps])
    path = save_plot(tmp_path / "f.svg", [Panel(title="x", curves=[curve])], title="t", legend=["r"])
    assert path.stat().st_size < 100_000
    ET.parse(path)


@draws
@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [0.0, 0.0],
        [math.nan] * 3,
        [1e-300, 1e300],
        [-1e9, 1e9],
        [math.inf, 1.0, -math.inf],
        [5e-324, 1.0],
        [1e15, 1e15 + 1],
    ],
    ids=str,
)
@pytest.mark.parametrize("from_zero", [False, True])
def test_any_values_make_a_plot(tmp_path: Path, values: list[float], from_zero: bool) -> None:
    curve = Curve(colour=12, steps=list(range(len(values))), values=values)
    text = save_plot(
        tmp_path / "f.svg", [Panel(title="x", curves=[curve], from_zero=from_zero)], title="t", legend=["r"]
    ).read_text()
    ET.fromstring(text)
    assert "nan" not in text


def test_a_path_that_no_plot_can_be_saved_under_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"f\.gif has the suffix '\.gif'; expected \.svg or \.png"):
        check_plot(tmp_path / "f.gif")
    with pytest.raises(OptionError, match="there is no folder"):
        check_plot(tmp_path / "no" / "f.svg")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match=r"plots need matplotlib, which is not installed\."):
        check_plot(tmp_path / "f.svg")
