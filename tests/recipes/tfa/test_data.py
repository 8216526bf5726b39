"""Bars become series, each for itself, and labels are the direction of the next bars."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from benchmarks.tfa.markets import market, write_csv

from stoker.errors import ConfigError, OptionError, SourceNotFoundError
from stoker.testing import assert_no_future
from stoker_recipes.tfa.audit import auc
from stoker_recipes.tfa.data import BarSeries, Rule, check_bars, label_bars, read_bars, trailing_volatility
from stoker_recipes.tfa.settings import DatasetSettings

ISO = """\
timestamp,symbol,open,high,low,close,volume
2024-01-02T14:30:00Z,QQQ,1,2,0.5,1.5,100
2024-01-02T14:31:00Z,QQQ,1.5,2,1,1.25,200
2024-01-02T14:30:00Z,SPY,10,20,5,15,100
"""
NYT = "ts_utc,ts_nyt_epoch,open,high,low,close,volume\n2024-01-02T14:30:00Z,1704187800,1,2,0.5,1.5,100\n"


def read(tmp_path: Path, *texts: str) -> BarSeries:
    sources = []
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.csv").write_text(text)
        sources.append(DatasetSettings(path=str(tmp_path / f"{number}.csv"), weight=number + 1.0))
    return read_bars(sources, tmp_path / "bars")


def test_a_file_with_symbols_is_several_series(tmp_path: Path) -> None:
    bars = read(tmp_path, ISO)
    assert bars.names == ("QQQ", "SPY")
    assert bars.lengths.tolist() == [2, 1]
    assert bars.columns["close"].tolist() == [1.5, 1.25, 15.0]
    assert bars.times.tolist() == [1704205800000, 1704205860000, 1704205800000]


def test_the_time_of_new_york_goes_first(tmp_path: Path) -> None:
    assert read(tmp_path, NYT).times.tolist() == [1704187800000]


@pytest.mark.parametrize("zeros", [0, 3, 6, 9])
def test_integers_are_times_in_any_usual_unit(tmp_path: Path, zeros: int) -> None:
    bars = read(tmp_path, f"ts,close\n{1700000060 * 10**zeros},2\n{1700000120 * 10**zeros},3\n")
    assert bars.times.tolist() == [1700000060000, 1700000120000]


def test_several_files_stay_apart_whatever_their_times(tmp_path: Path) -> None:
    later, earlier = "ts,close\n1700000060,2\n1700000120,3\n", "ts,close,volume\n1600000000,20,5\n1600000060,30,5\n"
    bars = check_bars(read(tmp_path, later, earlier))
    assert bars.columns["close"].tolist() == [2, 3, 20, 30]
    assert list(bars.columns) == ["close"]
    assert bars.weights == (1.0, 2.0)
    assert bars.place(2) == f"bar 1 of {tmp_path / '1.csv'}"


def test_packed_bars_are_not_read_again(tmp_path: Path) -> None:
    first = read(tmp_path, NYT)
    (tmp_path / "0.csv").unlink()
    again = read_bars([DatasetSettings(path=str(tmp_path / "0.csv"))], tmp_path / "bars")
    assert again.columns["close"].tolist() == first.columns["close"].tolist()


def test_bars_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="there is no file"):
        read_bars([DatasetSettings(path=str(tmp_path / "none.csv"))], tmp_path / "bars")
    with pytest.raises(ConfigError, match="expected a time"):
        read(tmp_path, "close\n1\n2\n")
    (tmp_path / "leveraged").mkdir()
    with pytest.raises(ConfigError, match="leveraged"):
        read(tmp_path / "leveraged", ISO.replace("SPY", "TQQQ"))


def test_bars_are_cut_at_holes(tmp_path: Path) -> None:
    bars = market(500, "none", 0)
    keep = np.delete(np.arange(500), [100, 101, 300])
    write_csv(tmp_path / "b.csv", {name: values[keep] for name, values in bars.items()})
    found = read_bars([DatasetSettings(path=str(tmp_path / "b.csv"))], tmp_path / "bars")
    assert check_bars(found, gaps="refuse").lengths.tolist() == [497]  # less than one in a hundred
    assert check_bars(found, gaps="cut").lengths.tolist() == [100, 198, 199]  # a night is no hole


# Labels: the direction of the next bars, NaN where there is none; compat gives the trainer's own


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
