"""`stoker features`: raw bars or a store of them become a store with features, and what is wrong is said in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.calling import Done
from tests.encode.indicators.markets import market

from stoker.cli import main as cli
from stoker.encode.indicators import saving
from stoker.encode.indicators.batch import features
from stoker.store.pack import pack
from stoker.store.store import open_store

Stoker = Callable[..., Done]

SPEC = {"features": [{"name": "ema", "op": "EMA", "window": 3}, {"name": "atr", "op": "ATR", "window": 2}]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with bars of two symbols, row by row in turn, and a spec."""
    monkeypatch.setitem(cli.COMMANDS, "features", "Compute the indicators of bars into a store.")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "features.json").write_text(json.dumps(SPEC))
    bars = market(20)
    lines = ["symbol,ts," + ",".join(bars)]
    for i in range(20):
        values = ",".join(str(values[i]) for values in bars.values())
        lines.append(f"{'AB'[i % 2]},2020-01-{i + 1:02d},{values}")
    (tmp_path / "bars.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_raw_bars(stoker: Stoker, folder: Path) -> None:
    done = stoker("features", "bars.csv", "--spec", "features.json", "--out", "out.stoker", "--series", "symbol", "--time", "ts")
    assert done == Done(0, "computed 2 features from bar 2 on for 20 bars in 2 series: out.stoker\n", "")
    store = open_store("out.stoker")
    assert list(store.schema) == ["symbol", "ts", "open", "high", "low", "close", "volume", "features"]
    assert (store.key, store.time) == ("symbol", "ts")
    bars: dict[str, Any] = {**market(20), "symbol": np.arange(20) % 2}
    expected = features(bars, SPEC, series="symbol").values
    assert store[0]["features"].tobytes() == expected[::2].tobytes()
    assert store[1]["features"].tobytes() == expected[1::2].tobytes()
    assert sorted(path.name for path in folder.iterdir()) == ["bars.csv", "features.json", "out.stoker"]


def test_a_store_of_bars_gives_the_same(stoker: Stoker, folder: Path) -> None:
    stoker("features", "bars.csv", "--spec", "features.json", "--out", "raw", "--series", "symbol", "--time", "ts")
    pack("bars.csv", "bars.stoker", series="symbol", time="ts")
    done = stoker("features", "bars.stoker", "--spec", "features.json", "--out", "packed", "--threads", "2", "--quiet")
    assert done.code == 0
    assert open_store("packed").digest == open_store("raw").digest


def test_json_for_programs(stoker: Stoker) -> None:
    done = stoker("features", "bars.csv", "--spec", "features.json", "--out", "out", "--json", "--compat", "sentio", "--name", "x")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["features"], found["emit_from"]) == (["ema", "atr"], 0)
    assert found["spec_hash"].startswith("sha256:")
    assert found["columns"][-1]["name"] == "x"
    assert open_store("out").column("x").tobytes() == features(market(20), SPEC, compat="sentio").values.tobytes()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["gone.csv"], "stoker: gone.csv does not exist. Give a file, a folder, or a pattern like 'data/*.csv' (in quotes).\n"),
        (["bars.csv", "--series", "name"], "stoker: --series names 'name', but bars.csv has the columns symbol, ts, open, high, "),
        (["bars.csv", "--spec", "gone.json"], "stoker: gone.json cannot be read as a spec: No such file or directory.\n"),
        (["bars.csv", "--spec", "bad.json"], "stoker: bad.json at $.features[0].op: found 'EMAA', expected an operator (did you "),
        (["close.csv"], "stoker: feature 'atr' ($.features[1]) needs a column 'high', but out.bars gave only "),
        (["packed", "--series", "symbol"], "stoker: packed is a store: --series, --time and --sort are for raw bars.\n"),
        (["bars.csv", "--out", "packed.copy"], "stoker: packed.copy.bars is in the way: give it as the source if it holds these "),
        (["bars.csv", "--compat", "talib"], "Usage: "),
    ],
)
def test_what_is_wrong_is_said_in_a_line_and_leaves_nothing(stoker: Stoker, folder: Path, arguments: list[str], line: str) -> None:
    (folder / "close.csv").write_text("close\n1\n2\n")
    (folder / "bad.json").write_text('{"features": [{"op": "EMAA"}]}')
    pack("bars.csv", "packed")
    pack("bars.csv", "packed.copy.bars")
    before = sorted(path.name for path in folder.iterdir())
    given = {"--spec": "features.json", "--out": "out"}
    rest = [*arguments]
    for option, value in given.items():
        rest += [] if option in rest else [option, value]
    done = stoker("features", *rest)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(line)
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_packed_bars_go_however_it_ends(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        assert (folder / "out.bars").exists()
        raise error

    monkeypatch.setattr(saving, "write_features", fail)
    arguments = ("features", "bars.csv", "--spec", "features.json", "--out", "out")
    if error is KeyboardInterrupt:
        assert stoker(*arguments).code == 130
    else:
        with pytest.raises(error):
            stoker(*arguments)
    assert not (folder / "out.bars").exists()


def test_help_names_the_options(stoker: Stoker) -> None:
    done = stoker("features", "--help")
    assert done.code == 0
    for word in ("--spec", "--out", "--compat", "--series", "--time", "SOURCE..."):
        assert word in done.out
