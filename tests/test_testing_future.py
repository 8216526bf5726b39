"""No future: what looks ahead is caught, by however little, and what does not is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stoker_recipes.tfa
from stoker.testing import assert_no_future

N = 120
CLOSE = 100 + np.random.default_rng(0).normal(size=N).cumsum()
BARS = {"close": CLOSE, "volume": np.arange(1, N + 1), "up": np.diff(CLOSE, prepend=CLOSE[0]) > 0}


def trailing_mean(x: Any, window: int = 5) -> Any:
    padded = np.concatenate([np.full(window - 1, x[0]), x])
    return np.lib.stride_tricks.sliding_window_view(padded, window).mean(axis=1)


def centred_mean(x: Any) -> Any:
    return np.convolve(x, np.ones(3) / 3, mode="same")


def test_what_looks_back_passes() -> None:
    assert_no_future(trailing_mean, CLOSE)
    assert_no_future(lambda bars: {"mean": trailing_mean(bars["close"]), "rest": (bars["volume"], bars["up"])}, BARS)
    assert_no_future(lambda x: torch.from_numpy(x).cumsum(0), CLOSE, at=range(N - 1))


def test_the_features_of_stoker_look_back() -> None:
    names = [("EMA", "close"), ("RSI", "close"), ("ZWIN", "logret"), ("SMA", "volume")]
    spec = {"features": [{"name": op, "op": op, "source": source, "window": 5} for op, source in names]}
    bars = {name: BARS[name].astype(np.float64) for name in ("close", "volume")}
    assert_no_future(lambda given: stoker_recipes.tfa.features(given, spec).values, bars)


@pytest.mark.parametrize(
    "function",
    [
        centred_mean,
        lambda x: (x - x.mean()) / x.std(),
        lambda x: x / x.max(),
        lambda x: np.append(x[1:], x[-1]),
        lambda x: np.where(np.isfinite(x[-1]), x, 0),
        lambda x: np.fft.irfft(np.fft.rfft(x)[:20], len(x)),
        lambda x: x[::-1].cumsum()[::-1],
    ],
    ids=["centred mean", "whole scale", "whole maximum", "shifted by one", "one flag", "filter", "backwards"],
)
def test_what_looks_ahead_is_caught(function: Any) -> None:
    with pytest.raises(
        AssertionError, match=r"looks into the future: its row of step [\d,]+ changes when only the bars after step"
    ):
        assert_no_future(function, CLOSE)


def test_labels_may_look_as_far_as_they_say() -> None:
    def rises(x: Any) -> Any:
        return np.append(x[3:], np.full(3, x[-1])) > x

    assert_no_future(rises, CLOSE, horizon=3)
    with pytest.raises(AssertionError, match="looks into the future"):
        assert_no_future(rises, CLOSE, horizon=2, at=range(10, N - 1))


def test_predictions_for_windows_begin_later() -> None:
    weights = np.random.default_rng(1).normal(size=8)

    def predict(x: Any) -> Any:
        return np.lib.stride_tricks.sliding_window_view(x, 8) @ weights

    assert_no_future(predict, CLOSE, first=7)
    with pytest.raises(AssertionError, match="looks into the future"):
        assert_no_future(lambda x: predict(np.append(x[1:], x[-1])), CLOSE, first=7)


def test_a_function_that_reads_nothing_or_dice_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="uses nothing that was changed"):
        assert_no_future(lambda x: np.zeros(len(x)), CLOSE)
    rng = np.random.default_rng()
    with pytest.raises(AssertionError, match="gives different values for the same bars"):
        assert_no_future(lambda x: rng.normal(size=len(x)), CLOSE)
