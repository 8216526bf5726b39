"""The exact arithmetic: what a textbook gives, ready when it says so, and unharmed by gaps, constants and long series."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from benchmarks.tfa.bench_indicators import spec_of_55
from hypothesis import given, settings
from tests.harness import num_examples
from tests.recipes.tfa.indicators.exact_twin import ExactTwin, deviation
from tests.recipes.tfa.indicators.markets import market, troubled_markets
from tests.recipes.tfa.indicators.specs import all_operators, any_specs

from stoker_recipes.tfa.indicators.engine import features
from stoker_recipes.tfa.indicators.operators import OPERATORS
from stoker_recipes.tfa.indicators.spec import parse_spec


def check_against_twin(bars: dict[str, Any], spec: Any) -> None:
    """Ready at the same bars, and the same numbers up to the last digits of float32."""
    read = parse_spec(spec)
    frame, twin = features(bars, read), ExactTwin(bars)
    for feature in read.features:
        expected = np.array(twin.compute(feature.operator.name, feature.settings))
        found = frame[feature.name]
        assert np.array_equal(np.isnan(found), np.isnan(expected)), feature.name
        size = np.abs(expected[~np.isnan(expected)]).max(initial=1e-3)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-5 * size, err_msg=feature.name)


@pytest.mark.parametrize("window", [1, 2, 14, pytest.param(37, marks=pytest.mark.slow)])
def test_every_operator_is_that_of_its_twin(window: int) -> None:
    bars = market(1100, window)  # beyond the bar where sums start anew
    read = parse_spec(all_operators(window=window))
    frame, twin = features(bars, read), ExactTwin(bars)
    for feature in read.features:
        expected = np.array(twin.compute(feature.operator.name, feature.settings))
        np.testing.assert_allclose(frame[feature.name], expected, rtol=2e-7, atol=2e-6, err_msg=feature.name)


@pytest.mark.promise("P11")
@given(bars=troubled_markets(90), spec=any_specs(4))
@settings(max_examples=num_examples(80))
def test_any_spec_is_that_of_the_twin_over_any_bars(bars: dict[str, Any], spec: Any) -> None:
    check_against_twin(bars, spec)


def test_the_twin_can_disagree() -> None:
    bars = market(100)
    frame = features(bars, all_operators(window=5))
    for name, more in (("close", 0.3), ("high", 1.0), ("open", -0.2), ("volume", 5000)):
        bars[name][50] += more
    twin = ExactTwin(bars)
    for feature in frame.spec.features:
        expected = np.array(twin.compute(feature.operator.name, feature.settings))
        assert not np.allclose(frame[feature.name], expected, rtol=1e-5, atol=1e-5, equal_nan=True), feature.name


@pytest.mark.parametrize("source", ["close", "logret"])
@pytest.mark.parametrize("window", [1, 2, 20])
def test_each_operator_is_ready_from_the_bar_it_declares(window: int, source: str) -> None:
    content = all_operators(window=window)
    for feature in content["features"]:
        feature["source"] = source if feature["op"] not in ("LOGRET", "ROC") else "close"  # a change may be 0 or less
    bars = market(200)
    bars["volume"] += 1
    frame = features(bars, content)
    assert frame.ready.argmax(axis=0).tolist() == frame.first.tolist()
    assert frame.ready[frame.emit_from :].all()
    assert frame.emit_from == max(frame.first)
    assert not frame.ready[frame.emit_from - 1].all()


def test_indicators_have_a_value_where_nothing_moves() -> None:
    flat = {name: np.full(100, 50.25) for name in ("open", "high", "low", "close")} | {"volume": np.zeros(100)}
    last = {
        name: float(frame_value) for name, frame_value in zip(OPERATORS, features(flat, all_operators()).values[-1], strict=True)
    }
    level = {"IDENT", "SMA", "EMA", "BOLLINGER_UPPER", "BOLLINGER_MIDDLE", "BOLLINGER_LOWER"}
    middle = {"RSI": 50, "STOCHASTIC_K": 50, "STOCHASTIC_D": 50, "WILLIAMS_R": -50, "MFI": 50, "BID_ASK_RATIO": 1}
    undefined = {"PRICE_IMPACT", "MARKET_DEPTH"}  # nothing was traded
    for name, value in last.items():
        if name in undefined:
            assert math.isnan(value), name
        else:
            assert value == pytest.approx(50.25 if name in level else middle.get(name, 0)), name


def test_what_float32_cannot_hold_is_not_ready() -> None:
    bars = {"close": np.array([1e-30, 1e30, 2e30, 2.0, 3.0]), "volume": np.full(5, 1e38)}
    spec = {"features": [{"name": op, "op": op} for op in ("VPT", "PRICE_IMPACT")] + [{"name": "r", "op": "ROC", "window": 1}]}
    frame = features(bars, spec)
    assert not np.isinf(frame.values).any()
    assert not frame.ready[1].any()
    assert frame.ready[2:, frame.names.index("r")].all()


def test_a_window_of_equal_values_deviates_by_exactly_nothing_wherever_the_price_was_before() -> None:
    close = np.concatenate([np.linspace(10, 3000.7, 500), np.full(60, 2718.28)])
    spec = {"features": [{"name": op, "op": op, "window": 20} for op in ("VOLATILITY", "ZWIN", "SMA")]}
    assert features({"close": close}, spec).values[-1].tolist() == [0, 0, np.float32(2718.28)]


def test_sums_do_not_drift() -> None:
    """At a price of 100,000 a deviation of a cent is a ten-millionth, and there were 200,000 bars before."""
    rng = np.random.default_rng(0)
    close = 100_000 + np.cumsum(rng.choice([-0.01, 0.01], 200_000))
    spec = {"features": [{"name": "sd", "op": "VOLATILITY", "window": 5}]}
    found = features({"close": close}, spec)["sd"]
    expected = [deviation(list(close[i - 4 : i + 1])) for i in range(199_000, 200_000)]
    np.testing.assert_allclose(found[199_000:], expected, rtol=1e-6)
    theirs = features({"close": close}, spec, compat="sentio")["sd"]
    assert not np.allclose(theirs[199_000:], expected, rtol=0.1)  # what such sums are otherwise


@given(bars=troubled_markets(300))
@settings(max_examples=num_examples(30))
def test_nothing_is_poisoned(bars: dict[str, Any]) -> None:
    """After enough whole bars everything is ready again, whatever was before."""
    clean = market(250, seed=1)
    clean["volume"] += 1
    longer = {name: np.concatenate([bars[name], clean[name]]) for name in bars}
    for content in (all_operators(), spec_of_55()):
        frame = features(longer, content)
        assert frame.ready[-1].all(), [name for name, ready in zip(frame.names, frame.ready[-1], strict=True) if not ready]
