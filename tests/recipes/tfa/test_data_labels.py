"""Labels: the direction of the next bars, NaN where there is none; compat gives the trainer's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.tfa.markets import market

from stoker.errors import OptionError
from stoker.testing import assert_no_future
from stoker_recipes.tfa.audit import auc
from stoker_recipes.tfa.data import Rule, label_bars, trailing_volatility


def slow_label(close: list[float], volume: list[float], i: int, rule: Rule, emit_from: int) -> float:
    """The definition, word by word."""
    none = 0.0 if rule.compat else math.nan
    if i + rule.horizon >= len(close) or (rule.compat and i < emit_from):
        return none
    change = math.log(max(close[i + rule.horizon], 1e-12)) - math.log(max(close[i], 1e-12))
    if not abs(change) >= rule.least_change or not volume[i + rule.horizon] >= rule.least_volume or change == 0:
        return none
    return 1.0 if change > 0 else 0.0


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize(("horizon", "change", "volume"), [(1, 0.0, 0.0), (2, 5e-4, 0.0), (5, 1e-3, 100_000.0)])
def test_labels_are_those_of_the_definition(compat: bool, horizon: int, change: float, volume: float) -> None:
    bars = market(500, "none", 3)
    close = bars["close"]
    close[100:110] = close[100]  # nothing moves
    rule = Rule(horizon=horizon, least_change=change, least_volume=volume, compat=compat)
    found = label_bars(close, bars["volume"], rule, emit_from=64)
    expected = [slow_label(close.tolist(), bars["volume"].tolist(), i, rule, 64) for i in range(500)]
    np.testing.assert_array_equal(found, np.array(expected, dtype=np.float32))
    assert np.isnan(found).any() != compat


def test_compat_labels_are_of_closes_in_float64_as_theirs_are() -> None:
    """Closes that only float64 tells apart, a threshold between the changes of both, closes and volumes that are no numbers."""
    rng = np.random.default_rng(5)
    close = 300 + np.cumsum(rng.choice([-1e-5, 1e-5], 2000))  # float32 has steps of 3e-5 here
    close[[50, 51]], close[60] = (0.0, -1.0), math.nan
    volume = rng.integers(0, 3, 2000).astype(np.float64)
    volume[70] = math.nan
    for horizon, change, least in ((1, 0.0, 0.0), (3, 4e-8, 1.0)):
        rule = Rule(horizon=horizon, least_change=change, least_volume=least, compat=True)
        found = label_bars(close, volume, rule, emit_from=10)
        expected = [slow_label(close.tolist(), volume.tolist(), i, rule, 10) for i in range(2000)]
        np.testing.assert_array_equal(found, np.array(expected, dtype=np.float32))
        rounded = label_bars(close.astype(np.float32), volume, rule, emit_from=10)
        assert (found != rounded).mean() > 0.05, "control: closes rounded to float32 give other labels"


def test_labels_look_no_further_than_their_horizon() -> None:
    close = market(200, "none", 0)["close"]
    assert_no_future(lambda x: label_bars(x, None, Rule(horizon=3)), close, horizon=3)
    with pytest.raises(AssertionError):
        assert_no_future(lambda x: label_bars(x, None, Rule(horizon=3)), close, horizon=2)


def test_compat_labels_measure_volatility_and_masked_ones_do_not() -> None:
    """Calm and restless days of a market that nobody can predict."""
    rng = np.random.default_rng(0)
    restless = np.repeat(rng.choice([2e-4, 1e-3], 40), 250)
    close = 300 * np.exp(np.cumsum(rng.normal(0, 1, 10_000) * restless))
    areas = {}
    for compat in (True, False):
        labels = label_bars(close, None, Rule(horizon=2, least_change=1e-3, compat=compat))
        known = np.isfinite(labels) & np.isfinite(trailing_volatility(close))
        areas[compat] = auc(trailing_volatility(close)[known], labels[known])
    assert areas[True] > 0.65
    assert abs(areas[False] - 0.5) < 0.05


def test_invalid_options() -> None:
    with pytest.raises(OptionError, match="label_horizon is 0"):
        label_bars(np.ones(3), None, Rule(horizon=0))
    with pytest.raises(OptionError, match="the bars have no volume"):
        label_bars(np.ones(3), None, Rule(least_volume=5))
