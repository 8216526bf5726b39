"""Bars: files in all forms that were seen become series of bars, each for itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.tfa.markets import market, write_csv

from stoker.errors import ConfigError, SourceNotFoundError
from stoker_recipes.tfa.data import BarSeries, check_bars, read_bars
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


def test_what_is_packed_is_not_read_again(tmp_path: Path) -> None:
    first = read(tmp_path, NYT)
    (tmp_path / "0.csv").unlink()
    again = read_bars([DatasetSettings(path=str(tmp_path / "0.csv"))], tmp_path / "bars")
    assert again.columns["close"].tolist() == first.columns["close"].tolist()


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="there is no file"):
        read_bars([DatasetSettings(path=str(tmp_path / "none.csv"))], tmp_path / "bars")
    with pytest.raises(ConfigError, match="expected a time"):
        read(tmp_path, "close\n1\n2\n")
    with pytest.raises(ConfigError, match="leveraged"):
        read(tmp_path / ".", ISO.replace("SPY", "TQQQ")) if not (tmp_path / "bars").exists() else read_bars(
            [DatasetSettings(path=_written(tmp_path, ISO.replace("SPY", "TQQQ")))], tmp_path / "other"
        )


def _written(tmp_path: Path, text: str) -> str:
    (tmp_path / "leveraged.csv").write_text(text)
    return str(tmp_path / "leveraged.csv")


def test_bars_are_cut_at_holes(tmp_path: Path) -> None:
    bars = market(500, "none", 0)
    keep = np.delete(np.arange(500), [100, 101, 300])
    write_csv(tmp_path / "b.csv", {name: values[keep] for name, values in bars.items()})
    found = read_bars([DatasetSettings(path=str(tmp_path / "b.csv"))], tmp_path / "bars")
    assert check_bars(found, gaps="refuse").lengths.tolist() == [497]  # less than one in a hundred
    assert check_bars(found, gaps="cut").lengths.tolist() == [100, 198, 199]  # a night is no hole
