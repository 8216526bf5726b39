"""Prices as ratios to the close: which columns they are, and that a model does to a row what the data's moments were taken of."""

from __future__ import annotations

import pytest
import torch
from benchmarks.tfa.bench_indicators import spec_of_55
from benchmarks.tfa.markets import market

import stoker_recipes.tfa
from stoker.errors import OptionError
from stoker_recipes.tfa.model import Levels, build_model, levels_of, ratios


def test_of_the_usual_spec_the_prices_are_found() -> None:
    levels = levels_of(spec_of_55()["features"])
    assert levels.close == 0
    assert len(levels.levels) == 33  # the close and 32 averages
    assert levels.distances == ()


def test_distances_and_other_sources_are_distinguished() -> None:
    features = [
        {"op": "ATR", "window": 14},
        {"op": "ema", "source": "logret", "window": 5},
        {"op": "IDENT", "source": "close"},
        {"op": "IDENT", "source": "high"},
        {"op": "SMA", "source": "volume"},
        {"op": "MACD_LINE"},
        {"op": "VOLATILITY", "source": "logret"},
        {"op": "RSI"},
    ]
    assert levels_of(features) == Levels(close=2, levels=(2, 3), distances=(0, 5))


def test_a_spec_without_the_close_is_refused() -> None:
    with pytest.raises(OptionError, match="none of 1 features is IDENT of the close"):
        levels_of([{"op": "EMA", "window": 3}])


def test_a_market_at_twice_the_price_has_the_same_logits() -> None:
    bars = market(400, "lag", 0)
    spec = {"features": [one for one in spec_of_55()["features"] if one.get("window", 1) <= 20]}
    levels = levels_of(spec["features"])
    names = ("open", "high", "low", "close")

    def logits(factor: float, levels: Levels | None) -> torch.Tensor:
        columns = {name: factor * bars[name] for name in names} | {"volume": bars["volume"]}
        x = stoker_recipes.tfa.features(columns, spec, threads=1).values[40:]
        torch.manual_seed(0)
        seen = first if levels is None else ratios(first, levels)
        moments = {"mean": seen.mean(0), "std": seen.std(0).clip(1e-6)}
        model = build_model("banded", num_features=x.shape[1], length=8, width=16, levels=levels, **moments)
        with torch.no_grad():
            return model(torch.from_numpy(x)[None])

    first = stoker_recipes.tfa.features({name: bars[name] for name in (*names, "volume")}, spec, threads=1).values[40:]
    torch.testing.assert_close(logits(2.0, levels), logits(1.0, levels), rtol=0, atol=1e-3)
    assert (logits(2.0, None) - logits(1.0, None)).abs().max().item() > 0.1  # what raw prices do
