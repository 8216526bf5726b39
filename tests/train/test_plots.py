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
from stoker.train.plots import Curve, Panel, check_plot, plot, save_plot
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
def test_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one")
    first, second = (plot(collect(tmp_path / "runs"), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    assert b"<dc:date>" not in first


@draws
def test_validation_is_dashed_beside_the_training(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    path = plot(collect(tmp_path), tmp_path / "one.svg")
    dashed = [element for element in ET.parse(path).iter(f"{SVG}path") if "stroke-dasharray" in (element.get("style") or "")]
    assert len(dashed) == 1


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


@draws
def test_a_value_that_is_not_finite_leaves_a_gap() -> None:
    curve = Curve(colour=0, steps=[1, 2, 3, 4, 5], values=[1.0, 2.0, math.inf, 2.0, 1.0])
    [line] = lines(Panel(title="x", curves=[curve]))
    assert [math.isnan(value) for value in line.get_ydata()] == [False, False, True, False, False]


@draws
def test_values_over_many_sizes_get_a_log_axis_and_rates_never() -> None:
    curve = Curve(colour=0, steps=[0, 1], values=[0.001, 10.0])
    assert lines(Panel(title="x", curves=[curve]))[0].axes.get_yscale() == "log"
    assert lines(Panel(title="x", curves=[curve], from_zero=True))[0].axes.get_yscale() == "linear"


@draws
@pytest.mark.parametrize("smooth", [True, False])
def test_a_curve_of_many_points_is_smoothed_unless_it_is_wanted_as_it_is(smooth: bool) -> None:
    curve = Curve(colour=0, steps=list(range(400)), values=[float(step % 2) for step in range(400)], smooth=smooth)
    found = lines(Panel(title="waves", curves=[curve]))
    assert len(found) == (2 if smooth else 1)
    inner = list(found[-1].get_ydata())[20:-20]
    assert max(inner) - min(inner) == pytest.approx(0, abs=0.1) if smooth else max(inner) - min(inner) == 1


@draws
def test_a_png_is_drawn(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    assert plot(collect(tmp_path), tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


@draws
def test_runs_without_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="none of 0 runs has numbers"):
        plot([], tmp_path / "runs.svg")


def test_a_path_that_no_plot_can_be_saved_under_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"f\.gif has the suffix '\.gif'; expected \.svg or \.png"):
        check_plot(tmp_path / "f.gif")
    with pytest.raises(OptionError, match="there is no folder"):
        check_plot(tmp_path / "no" / "f.svg")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        OptionError, match=r"plots need matplotlib, which is not installed\. Install it: pip install 'stoker\[plot\]'"
    ):
        check_plot(tmp_path / "f.svg")
