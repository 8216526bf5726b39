"""A backtest: which steps are forecast, what they are compared with, and what a user sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.cli.calling import Done

import stoker
from stoker.errors import OptionError
from stoker.experiment.backtest import plot_names, plot_series, season_of
from stoker.train.plots import Panel, draw

Stoker = Callable[..., Done]

LENGTHS = {"a": 100, "b": 61, "c": 12}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose data repeats each day, with one more of noise-free trend in series b; c is too short for three windows."""
    monkeypatch.chdir(tmp_path)
    lines = ["shop,ts,x"]
    for shop, length in LENGTHS.items():
        for step in range(length):
            stamp = np.datetime64("2024-01-01", "s") + np.timedelta64(step, "h")
            lines.append(f"{shop},{stamp},{10 * np.sin(step * np.pi / 12) + (step if shop == 'b' else 0):.9f}")
    Path("d.csv").write_text("\n".join(lines) + "\n")
    Path("c.yaml").write_text(
        "data: {store: d.stoker, view: {name: windows, length: 6, horizon: 4}, batch_size: 16}\n"
        "model: linear\ntrain: {folder: run, epochs: 2, device: cpu}\n"
    )
    stoker.pack("d.csv", "d.stoker", series="shop", time="ts")
    stoker.experiment.run("c.yaml", progress=False)
    return tmp_path


def test_each_forecast_is_that_of_predict_from_the_data_before_it(folder: Path) -> None:
    run = stoker.load("run")
    test = run.backtest("d.stoker", windows=3)
    rows = test.table.to_pylist()
    origins = {name: sorted({row["step"] - row["ahead"] for row in rows if row["series"] == name}) for name in LENGTHS}
    assert origins == {"a": [87, 91, 95], "b": [48, 52, 56], "c": [7]}, "the last ends with the series, c has room for one"
    frame = [line.split(",") for line in Path("d.csv").read_text().splitlines()[1:]]
    for name, known in (("a", 92), ("b", 53)):
        past = [(float(value)) for shop, _, value in frame if shop == name][:known]
        times = [stamp for shop, stamp, _ in frame if shop == name][:known]
        table = run.predict(pa.table({"shop": [name] * known, "ts": pa.array(times).cast(pa.timestamp("s")), "x": past}))
        tested = [row["prediction"] for row in rows if row["series"] == name and row["step"] - row["ahead"] == known - 1]
        assert table["prediction"].to_pylist() == pytest.approx(tested, abs=1e-5)


def test_actual_and_naive_values_are_those_of_the_data(folder: Path) -> None:
    test = stoker.load("run").backtest("d.stoker", windows=3)
    assert test.season == 24, "hours repeat after a day"
    for row in test.table.to_pylist():
        trend = row["step"] if row["series"] == "b" else 0
        wave = 10 * np.sin(row["step"] * np.pi / 12)
        assert row["actual"] == pytest.approx(wave + trend, abs=1e-4)
        if row["series"] == "c":
            assert np.isnan(row["naive"]), "there is no day before it"
        else:
            assert row["naive"] == pytest.approx(wave + (trend and trend - 24), abs=1e-4)


def test_metrics_are_over_rows_that_both_forecasts_have(folder: Path) -> None:
    test = stoker.load("run").backtest("d.stoker", windows=3)
    metrics = {row["ahead"]: row for row in test.metrics()}
    assert list(metrics) == [1, 2, 3, 4, 0]
    assert {row["count"] for ahead, row in metrics.items() if ahead} == {6}
    assert metrics[0]["count"] == 24
    assert metrics[0]["naive_mae"] == pytest.approx(12, abs=1e-3), "24 in series b, nothing in a"
    rows = [row for row in test.table.to_pylist() if np.isfinite(row["naive"])]
    errors = np.array([row["prediction"] - row["actual"] for row in rows])
    assert metrics[0]["mae"] == pytest.approx(np.abs(errors).mean())
    assert metrics[0]["rmse"] == pytest.approx(np.sqrt((errors**2).mean()))


def test_the_command_prints_errors_and_draws_a_plot_per_series(stoker: Stoker, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    done = stoker("predict", "run", "--data", "d.csv", "--backtest", "3", "--plot", "plots", "--out", "t.csv")
    assert (done.code, done.err) == (0, "stoker: drawing 3 plots into plots …\n")
    assert [line.split()[1] for line in done.out.splitlines() if line.split()[:1] == ["x"]] == ["1", "2", "3", "4", "all"]
    assert "3 forecasts per series; the naive forecast repeats the last 24 steps" in done.out
    assert sorted(path.name for path in Path("plots").iterdir()) == ["a.png", "b.png", "c.png"]
    assert Path("t.csv").read_text().splitlines()[0].endswith('"prediction","actual","naive"')
    report = json.loads(stoker("predict", "run", "--data", "d.csv", "--backtest", "3", "--json").out)
    assert (report["season"], report["windows"], report["metrics"][-1]["count"]) == (24, 3, 24)
    assert {row["naive"] for row in report["predictions"] if row["series"] == "c"} == {None}
    (folder / "plots" / "notes.txt").write_text("precious")
    for extra in ([], ["--overwrite"]):
        refused = stoker("predict", "run", "--data", "d.csv", "--plot", "plots", *extra)
        assert (refused.code, refused.out) == (2, "")
    (folder / "plots" / "notes.txt").unlink()
    assert stoker("predict", "run", "--data", "d.csv", "--plot", "plots", "--overwrite").code == 0


def test_a_stop_while_plots_are_drawn_loses_no_result(stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("predict", "run", "--data", "d.csv", "--plot", "plots")
    whole = stoker(*arguments, "--backtest", "3", "--out", "whole.csv")

    def stop(*call: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker.train.plots.save_plot", stop)
    stopped = stoker(*arguments, "--backtest", "3", "--out", "t.csv", "--overwrite")
    assert stopped.code == 130
    assert Path("t.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert stopped.out == whole.out[: whole.out.index("written: plots")].replace("whole.csv", "t.csv")
    assert json.loads(stoker(*arguments, "--json", "--overwrite").out)["predictions"]


def test_runs_without_a_horizon_are_refused(folder: Path) -> None:
    stoker.experiment.run("c.yaml", overrides=["view.horizon=0", "shift=1", "folder=other"], progress=False)
    with pytest.raises(OptionError, match="not a run that forecasts amounts"):
        stoker.load("other").backtest("d.stoker")
    with pytest.raises(OptionError) as error:
        stoker.load("run").backtest("d.stoker", windows=0)
    assert error.value.parameter == "windows"


@pytest.mark.parametrize(("freq", "season"), [("15min", 96), ("1h", 24), ("1d", 7), ("1w", 52), ("1mo", 12), ("1q", 4), ("1y", 1)])
def test_a_season_follows_from_the_frequency(freq: str, season: int) -> None:
    assert season_of(stoker.Store.from_arrays(x=[np.zeros(3)]), None, freq) == season


def test_names_of_series_never_leave_the_folder() -> None:
    names = ["a", "../b", "c/d", ".hidden", "", "x" * 200]
    paths = plot_names(Path("p"), names)
    assert all(path.parent == Path("p") for path in paths.values())
    assert [path.name for path in paths.values()] == ["a.png", *(f"series-{number}.png" for number in range(1, 6))]


@pytest.mark.parametrize("unit", ["D", "h"])
def test_plots_have_dates_where_the_data_has_times(tmp_path: Path, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    drawn: list[Panel] = []
    monkeypatch.setattr("stoker.train.plots.save_plot", lambda path, panels, **options: drawn.extend(panels))
    first = np.datetime64("2024-03-01", unit)
    times = (first + np.arange(20)).astype("datetime64[ns]")
    store = stoker.pack({"t": times, "x": np.arange(20.0)}, tmp_path / "s.stoker", time="t")
    ahead = (first + np.arange(20, 23)).astype("datetime64[ns]")
    columns = {
        "series": [0] * 3,
        "time": ahead,
        "step": [20, 21, 22],
        "ahead": [1, 2, 3],
        "column": ["x"] * 3,
        "prediction": [1.0] * 3,
    }
    plot_series(tmp_path / "plots", store, pa.table(columns))
    [panel] = drawn
    assert panel.axis == "time"
    assert panel.times is not None
    assert panel.times.tolist() == [*times.tolist(), *ahead.tolist()]
    figure = draw(drawn, title="x")
    figure.draw_without_rendering()
    [axes] = figure.axes
    assert "2024-Mar" in axes.xaxis.get_offset_text().get_text() or any("Mar" in text.get_text() for text in axes.get_xticklabels())
    assert {line.get_xdata()[0].dtype.kind for line in axes.lines} == {"M"}
    drawn.clear()
    plot_series(tmp_path / "plots", store, pa.table(columns).drop_columns("time"))  # negative control: without times, steps
    assert (drawn[0].times, drawn[0].axis) == (None, "step")
