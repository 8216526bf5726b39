"""Scores over rolling windows, the last one too; forecasts in the units of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from tests.harness import num_examples
from tests.recipes.time_moe.waves import make_waves
from torch import nn

import stoker
from stoker.errors import OptionError
from stoker_recipes import time_moe
from stoker_recipes.time_moe import predicting
from stoker_recipes.time_moe.predicting import (
    LoadedModel,
    _batches,
    evaluate,
    find_period,
    forecast,
    load_model,
    plot_forecast,
    window_starts,
)
from stoker_recipes.time_moe.training import train


class Repeating(nn.Module):
    """A model that says the last point again, and remembers what it was shown."""

    size = time_moe.SIZES["tiny"]

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.shown: list[torch.Tensor] = []

    def forecast(self, context: torch.Tensor, horizon: int) -> torch.Tensor:
        self.shown.append(context)
        return context[:, -1:].expand(-1, horizon)


def loaded(model: Any = None, **options: Any) -> LoadedModel:
    return LoadedModel(**{"model": model or Repeating(), "method": "zero", "length": 64, "source": "a test", **options})


@settings(max_examples=num_examples(80), deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 20), st.integers(1, 20), st.integers(1, 9))
def test_windows_are_all_that_fit_and_the_last_ends_with_the_series(
    length: int, test_begin: int, context: int, horizon: int, stride: int
) -> None:
    every = [t for t in range(length + 1) if t >= context and t >= test_begin and t + horizon <= length]
    found = window_starts(test_begin, length, context=context, horizon=horizon, stride=stride).tolist()
    assert found == every[::-1][::stride][::-1]
    assert found[-1:] == every[-1:]


def test_the_score_is_that_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "PERIODS", (4, 21))
    series = [make_waves(150)["HUFL"], make_waves(90, seed=1)["OT"], np.arange(9.0)]
    series[1][-3] = np.nan
    told: list[tuple[int, int]] = []
    score = evaluate(
        loaded(),
        stoker.Store.from_arrays(x=series),
        context=20,
        horizon=7,
        stride=2,
        test=0.3,
        train=0.6,
        batch_size=5,
        report=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (score.windows, score.windows)
    errors: dict[str, list[float]] = {"last point": [], "season of 4": [], "season by autocorrelation": []}
    windows = 0
    for values in series:
        begin = len(values) - int(len(values) * 0.3)
        train = values[: int(len(values) * 0.6)]
        known = train[np.isfinite(train)]
        scaled = (values - known.mean()) / known.std()
        periods = (1, 4, plain_period(scaled[: len(train)], 20))
        for start in range(len(values) - 7, max(20, begin) - 1, -2):
            windows += 1
            for (_, found), period in zip(errors.items(), periods, strict=True):
                for step in range(7):
                    guess = scaled[start - period + step % period]
                    found.append((guess if np.isfinite(guess) else 0.0) - scaled[start + step])
    assert score.windows == windows
    assert [one.name for one in score.baselines] == ["last point", "season of 4", "season of 21", "season by autocorrelation"]
    assert (score.baselines[2].mse, score.baselines[2].mae) == (None, None), "longer than the context"
    for one in score.baselines[:2] + score.baselines[3:]:
        apart = np.array(errors[one.name])
        apart = apart[np.isfinite(apart)]
        assert (one.mse, one.mae) == pytest.approx((np.mean(apart**2), np.mean(np.abs(apart))), rel=1e-9), one.name
    first = score.baselines[0]
    assert (score.mse, score.mae) == pytest.approx((first.mse, first.mae), rel=1e-5), "the model repeats the last point"
    assert score.best_baseline.mse == min(one.mse for one in score.baselines if one.mse is not None)


def plain_period(values: Any, most: int) -> int:
    """The highest peak of the autocorrelation, lag by lag."""
    known = [value if np.isfinite(value) else 0.0 for value in values]
    mean = sum(known) / len(known)
    known = [value - mean for value in known]
    whole = sum(value * value for value in known)
    if not whole:
        return 1
    likeness = [sum(a * b for a, b in zip(known, known[lag:], strict=False)) / whole for lag in range(most + 2)]
    peaks = [
        lag
        for lag in range(2, min(most, len(known) // 2) + 1)
        if likeness[lag] > likeness[lag - 1] and likeness[lag] >= likeness[lag + 1] and likeness[lag] > 1.96 / len(known) ** 0.5
    ]
    return max(peaks, key=lambda lag: likeness[lag], default=1)


@pytest.mark.parametrize("seed", range(12))
def test_the_period_is_the_highest_peak_of_the_autocorrelation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    period = int(rng.integers(3, 40))
    values = np.sin(2 * np.pi * np.arange(300) / period) + 0.3 * rng.normal(size=300)
    values[rng.integers(0, 300, 5)] = np.nan
    assert find_period(values, 60) == plain_period(values, 60)
    assert abs(find_period(values, 60) % period - period / 2) >= period / 2 - 1, "or a multiple of it"
    assert find_period(values, period // 2) <= period // 2, "no more than the context"


def authors_windows(values: Any, context: int, horizon: int) -> Any:
    """Their benchmark set, window by window: scaled by the first 70 %, from the last 20 % (and a context) on, all but the last."""
    num_train, num_test = int(len(values) * 0.7), int(len(values) * 0.2)
    train, test = values[:num_train], values[len(values) - num_test - context :]
    scaled = (test - train.mean()) / (train.std() or 1.0)
    return np.array([scaled[end - context - horizon : end] for end in range(context + horizon, len(scaled))], dtype=np.float32)


@pytest.mark.parametrize("length", [200, 333, 1001])
def test_windows_are_those_of_the_authors_benchmark_and_the_last_one(length: int) -> None:
    series = list(make_waves(length, seed=length).values())
    corpus = time_moe.open_corpus(stoker.Store.from_arrays(x=series))
    found = np.concatenate([rows for rows, _ in _batches(corpus, 24, 10, 1, 0.2, 0.7, 64)]).astype(np.float32)
    theirs = [authors_windows(values, 24, 10) for values in series]
    each = len(theirs[0])
    assert len(found) == len(series) * (each + 1)
    for number, windows in enumerate(theirs):
        np.testing.assert_allclose(found[number * (each + 1) :][:each], windows, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_actual", [None, 10, 48])
def test_the_plot_shows_past_forecast_and_actual_values(tmp_path: Path, num_actual: int | None) -> None:
    pytest.importorskip("matplotlib")
    values = make_waves(900)["OT"]
    actual = None if num_actual is None else values[800 : 800 + num_actual]
    text = plot_forecast(tmp_path / "f.svg", values[:800], values[800:848], actual, title="ett.csv:OT").read_text()
    assert "ett.csv:OT" in text
    assert ("actual" in text) == (actual is not None)
    assert text.count("<path") >= (2 if actual is None else 3)


# `stoker.load(run).predict(data)` for a Time-MoE: the forecasts of `forecast`, with names and times


HOUR = 3_600_000_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moe")
    rng = np.random.default_rng(0)
    stoker.Store.from_arrays(x=rng.normal(size=(3, 200))).save(folder / "d.stoker")
    quick = {"size": "tiny", "length": 32, "batch_size": 2, "steps": 2, "precision": "fp32", "graph": False, "device": "cpu"}
    train(str(folder / "d.stoker"), folder=folder / "run", progress=False, **quick)  # type: ignore[arg-type]
    return folder / "run"


@pytest.fixture
def store(tmp_path: Path) -> stoker.Store:
    lengths = {"a": 50, "b": 20}
    table = {
        "shop": pa.array([name for name, count in lengths.items() for _ in range(count)]),
        "ts": pa.array(np.concatenate([np.arange(count) for count in lengths.values()]) * HOUR, pa.timestamp("ns")),
        "x": np.random.default_rng(1).normal(size=70) + 7,
        "y": np.random.default_rng(2).normal(size=70),
    }
    return stoker.pack(table, tmp_path / "new.stoker", series="shop", time="ts")


@pytest.mark.promise("P27")
def test_the_forecasts_of_the_model_with_names_and_times(run: Path, store: stoker.Store) -> None:
    loaded = load_model(run)
    found = stoker.load(run, device="cpu").predict(store, horizon=5)
    assert found.column_names == ["series", "time", "step", "ahead", "column", "prediction"]
    assert len(found) == 2 * 2 * 5
    for row in range(2):
        for column in ("x", "y"):
            rows = [one for one in found.to_pylist() if (one["series"], one["column"]) == ("ab"[row], column)]
            values = np.asarray(store[row][column], dtype=np.float64)
            assert [one["prediction"] for one in rows] == pytest.approx(forecast(loaded, values[None, -32:], 5)[0])
            assert [one["step"] for one in rows] == list(range(len(values), len(values) + 5))
            assert [one["time"].value // HOUR for one in rows] == [one["step"] for one in rows]
            assert [one["ahead"] for one in rows] == [1, 2, 3, 4, 5]


def test_every_window_is_predicted(run: Path, store: stoker.Store) -> None:
    loaded, opened = load_model(run), stoker.load(run, device="cpu")
    with pytest.raises(OptionError, match=r"series 'b:x' of .* is too short: it has 20 points, and a forecast needs 32"):
        opened.predict(store, which="all", horizon=4)
    found = opened.predict(store, which="all", horizon=4, stride=9, short="skip", batch_size=2)
    rows = [one for one in found.to_pylist() if one["column"] == "x"]
    assert [one["step"] - one["ahead"] + 1 for one in rows[::4]] == [32, 41, 50]
    values = np.asarray(store[0]["x"], dtype=np.float64)
    assert [one["prediction"] for one in rows[4:8]] == pytest.approx(forecast(loaded, values[None, 9:41], 4)[0])
