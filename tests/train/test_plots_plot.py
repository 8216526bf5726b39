"""The picture of runs: one file that any viewer opens, with every curve in it and nothing from outside."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from stoker.errors import OptionError
from stoker.train import plots
from stoker.train.plots import Axis, Curve, Panel, check_picture, draw, labels, nice_ticks, plot, save_picture
from stoker.train.run import Run, collect

SVG = "{http://www.w3.org/2000/svg}"


def write_run(folder: Path, *, count: int = 20, **more: float) -> None:
    run = Run(folder)
    for step in range(1, count + 1):
        run.metrics.write(step * 50, {"loss": 1 / step, "val_loss": 2 / step, "rate": 40.0, "wait": 0.1, "epoch": 1.0, **more})
    run.end("finished", step=count * 50)


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ET.parse(path).iter(f"{SVG}text")]


def test_the_picture_has_a_panel_for_each_number_and_names_each_run(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one", val_auc=0.9, lr=1e-3)
    write_run(tmp_path / "runs" / "a & <b>")
    path = plot(collect(tmp_path / "runs"), tmp_path / "runs.svg")
    found = texts(path)
    assert found[:4] == ["2 runs", "one", "a & <b>", "solid: training · dashed: validation"]
    panels = ["loss (log)", "val_auc", "learning rate", "updates a second", "wait for data"]
    assert [text for text in found if text in panels] == panels
    assert "epoch" not in found
    names = {element.tag.removeprefix(SVG) for element in ET.parse(path).iter()}
    assert names <= {"svg", "title", "rect", "text", "path", "circle", "g"}


def test_validation_is_dashed_beside_the_training(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    path = plot(collect(tmp_path), tmp_path / "one.svg")
    dashed = [element for element in ET.parse(path).iter(f"{SVG}path") if element.get("stroke-dasharray")]
    assert len(dashed) == 1


def test_a_long_run_does_not_make_a_large_picture(tmp_path: Path) -> None:
    steps = list(range(200_000))
    values = [math.sin(step) + 2 for step in steps]
    text = draw([Panel(title="x", curves=[Curve(colour=0, steps=steps, values=values)])], title="t", legend=["r"])
    assert len(text) < 100_000
    ET.fromstring(text)


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
def test_any_values_make_a_picture_without_nan(values: list[float], from_zero: bool) -> None:
    curve = Curve(colour=12, steps=list(range(len(values))), values=values)
    text = draw([Panel(title="x", curves=[curve], from_zero=from_zero)], title="t", legend=["r"])
    ET.fromstring(text)
    assert "nan" not in text
    assert "inf" not in text


def test_a_value_that_is_not_finite_leaves_a_gap() -> None:
    curve = Curve(colour=0, steps=[1, 2, 3, 4, 5], values=[1.0, 2.0, math.nan, 2.0, 1.0])
    text = draw([Panel(title="x", curves=[curve])], title="t", legend=[])
    drawn = [element.get("d", "") for element in ET.fromstring(text).iter(f"{SVG}path") if element.get("stroke-width") == "1.8"]
    assert [path.count("M") for path in drawn] == [2]


def test_ticks_are_round_and_few() -> None:
    assert nice_ticks(0, 20_000, 6) == [0, 5000, 10_000, 15_000, 20_000]
    assert nice_ticks(0.58, 0.97, 6) == pytest.approx([0.6, 0.7, 0.8, 0.9])
    assert nice_ticks(0, 3, 6, whole=True) == [0, 1, 2, 3]
    assert nice_ticks(7, 7, 6) == [7]


def test_labels_of_an_axis_share_a_unit() -> None:
    assert labels([0, 5000, 10_000]) == ["0", "5k", "10k"]
    assert labels([0, 2.5e-4, 1e-3]) == ["0", "2.5e-4", "1e-3"]
    assert labels([1e6, 2.5e6]) == ["1M", "2.5M"]
    assert labels([0.1, 0.125], percent=True) == ["10 %", "12.5 %"]
    assert labels([0, 0.5, 1.5]) == ["0", "0.5", "1.5"]


def test_values_over_many_sizes_get_a_log_axis_and_rates_never() -> None:
    curve = Curve(colour=0, steps=[0, 1], values=[0.001, 10.0])
    axis = Axis.over(Panel(title="x", curves=[curve]))
    assert axis.is_log
    assert axis.ticks == pytest.approx([0.001, 0.01, 0.1, 1, 10])
    assert axis.labels(percent=False) == ["1e-3", "0.01", "0.1", "1", "10"]
    assert not Axis.over(Panel(title="x", curves=[curve], from_zero=True)).is_log


def test_what_cannot_be_drawn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "one")
    runs = collect(tmp_path)
    with pytest.raises(OptionError, match=r"expected \.svg or \.png"):
        plot(runs, tmp_path / "runs.pdf")
    with pytest.raises(OptionError, match="none of 0 runs has numbers"):
        plot([], tmp_path / "runs.svg")
    monkeypatch.setattr(plots, "_folders", lambda: iter(()))
    with pytest.raises(OptionError, match=r"needs a font, and none of DejaVu Sans, .* is here\. Install one"):
        plot(runs, tmp_path / "runs.png")
    assert not (tmp_path / "runs.png").exists()


@pytest.fixture
def font() -> None:
    try:
        plots.find_font()
    except OptionError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("font")
def test_a_png_is_the_same_picture(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    path = plot(collect(tmp_path), tmp_path / "one.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("font")
@pytest.mark.parametrize("weight", ["normal", "bold"])
def test_a_png_has_the_words_of_the_picture(weight: str) -> None:
    told = '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="20" font-family="Helvetica, Arial, sans-serif">{}</svg>'
    words = f'<text x="2" y="15" font-weight="{weight}">losses</text>'
    assert len(plots.as_png(told.format(words))) > 2 * len(plots.as_png(told.format("")))


@pytest.mark.parametrize("smooth", [True, False])
def test_a_curve_of_many_points_is_drawn_as_it_is_where_that_is_wanted(tmp_path: Path, smooth: bool) -> None:
    curve = Curve(colour=0, steps=list(range(400)), values=[float(step % 2) for step in range(400)], smooth=smooth)
    text = save_picture(tmp_path / "f.svg", [Panel(title="waves", curves=[curve])], title="a & b").read_text()
    assert ("stroke-opacity" in text) == smooth
    assert "a &amp; b" in text


def test_a_picture_that_cannot_be_saved_is_refused_before_it_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"f.gif has the ending '.gif'; expected .svg or .png"):
        check_picture(tmp_path / "f.gif")
