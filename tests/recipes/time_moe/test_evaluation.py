"""Scores over rolling windows, the last one too; forecasts in the units of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.recipes.time_moe.waves import make_waves
from torch import nn

import stoker
from stoker.errors import OptionError, SourceNotFound
from stoker.recipes import time_moe
from stoker.recipes.time_moe.evaluation import evaluate, window_starts
from stoker.recipes.time_moe.forecasting import Loaded, forecast, load_model, scale_rows
from stoker.recipes.time_moe.plot import plot_forecast


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


def loaded(model: Any = None, **options: Any) -> Loaded:
    return Loaded(**{"model": model or Repeating(), "method": "zero", "length": 64, "source": "a test", **options})


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 20), st.integers(1, 20), st.integers(1, 9))
def test_windows_are_all_that_fit_and_the_last_ends_with_the_series(
    length: int, test_begin: int, context: int, horizon: int, stride: int
) -> None:
    every = [t for t in range(length + 1) if t >= context and t >= test_begin and t + horizon <= length]
    found = window_starts(0, test_begin, length, context=context, horizon=horizon, stride=stride).tolist()
    assert found == every[::-1][::stride][::-1]
    assert found[-1:] == every[-1:]


def test_the_score_is_that_of_a_plain_loop() -> None:
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
        batch_size=5,
        report=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (score.windows, score.windows)
    errors = []
    windows = 0
    for values in series:
        begin = len(values) - int(len(values) * 0.3)
        known = values[:begin][np.isfinite(values[:begin])]
        scaled = (values - known.mean()) / known.std()
        for start in range(len(values) - 7, max(20, begin) - 1, -2):
            windows += 1
            errors += (scaled[start - 1] - scaled[start : start + 7]).tolist()
    errors = [error for error in errors if np.isfinite(error)]
    assert score.windows == windows
    assert score.mse == pytest.approx(np.mean(np.square(errors)), rel=1e-5)
    assert score.mae == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)
    assert (score.naive_mse, score.naive_mae) == pytest.approx((score.mse, score.mae), rel=1e-5)


@pytest.mark.parametrize("scale", ["series", "context"])
def test_what_the_model_is_shown(scale: Any) -> None:
    model = Repeating()
    score = evaluate(loaded(model), stoker.Store.from_arrays(x=[make_waves(200)["MUFL"]]), context=30, horizon=10, scale=scale)
    shown = torch.cat(model.shown)
    assert (shown.mean(1).abs() < 1e-5).all() == (scale == "context")
    assert score.mse == pytest.approx(score.naive_mse, rel=1e-4), "both are told in the same units"


def test_a_real_model_runs_and_is_the_same_in_any_batches() -> None:
    torch.manual_seed(0)
    one = loaded(time_moe.TimeMoe(time_moe.SIZES["tiny"]).eval())
    store = stoker.Store.from_arrays(x=[make_waves(120)["OT"]])
    scores = [evaluate(one, store, context=24, horizon=9, stride=3, batch_size=size) for size in (1, 4, 100)]
    assert [score.mse for score in scores] == pytest.approx([scores[0].mse] * 3, rel=1e-4)


def test_forecasts_are_in_the_units_of_the_data() -> None:
    context = np.stack([1e6 + 5 * np.sin(np.arange(40.0)), np.full(40, 3.25), np.r_[np.nan, np.arange(39.0)]])
    found = forecast(loaded(), context, 4)
    np.testing.assert_allclose(found, np.repeat(context[:, -1:], 4, axis=1), rtol=1e-6)
    for method in ("max", "none"):
        np.testing.assert_allclose(forecast(loaded(method=method), context[:1], 2), np.full((1, 2), context[0, -1]), rtol=1e-6)


def test_a_context_is_scaled_as_series_are_in_the_training() -> None:
    values = make_waves(64)["HUFL"]
    corpus = time_moe.open_corpus(stoker.Store.from_arrays(x=[values]))
    from stoker.recipes.time_moe.samples import Scales

    for method in ("zero", "max", "none"):
        scales = Scales(corpus, method)  # type: ignore[arg-type]
        scales.know(np.array([0]))
        _, centers, divisors = scale_rows(values[None], method)  # type: ignore[arg-type]
        np.testing.assert_allclose((centers[0], divisors[0]), (scales.centers[0], scales.divisors[0]), rtol=1e-12)


def test_no_more_than_the_model_can_take_is_looked_at() -> None:
    model = Repeating()
    forecast(loaded(model, length=64), np.zeros((1, 1000)), 8)
    forecast(loaded(model, length=5000), np.zeros((1, 1000)), 8)
    assert [shown.shape[1] for shown in model.shown] == [64, 504]
    with pytest.raises(OptionError, match=r"horizon is 512, but the model has 512 positions. Give at most 511"):
        forecast(loaded(), np.zeros((1, 9)), 512)


def test_weights_of_official_checkpoints_are_loaded(tmp_path: Path) -> None:
    model = time_moe.TimeMoe(time_moe.SIZES["tiny"])
    time_moe.save_weights(model, tmp_path / "weights")
    found = load_model(tmp_path / "weights")
    assert (found.method, found.length) == ("zero", 512)
    assert torch.equal(found.model.embed, model.embed)
    with pytest.raises(SourceNotFound, match="is neither a run of Time-MoE"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon is 0"),
        ({"test": 1.5}, "test 1.5"),
        ({"context": 510}, "need more than the 512 positions"),
        ({"context": 300}, "has no window of 300"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        evaluate(loaded(), stoker.Store.from_arrays(x=[np.arange(100.0)]), **{"context": 20, "horizon": 5, **options})


@pytest.mark.parametrize("num_actual", [None, 10, 48])
def test_the_picture_shows_the_past_the_forecast_and_what_came(tmp_path: Path, num_actual: int | None) -> None:
    values = make_waves(900)["OT"]
    actual = None if num_actual is None else values[800 : 800 + num_actual]
    text = plot_forecast(tmp_path / "f.svg", values[:800], values[800:848], actual, title="ett.csv:OT").read_text()
    assert "ett.csv:OT" in text
    assert ("what came" in text) == (actual is not None)
    assert text.count("<path") >= (2 if actual is None else 3)
