"""`stoker tfa indicators`: raw bars or a store of them become a store with features, and what is wrong is said in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.calling import Done
from tests.recipes.tfa.indicators.markets import market

from stoker.sampling.views import Windows
from stoker.store.opening import open_store
from stoker.store.pack.api import pack
from stoker_recipes.tfa.indicators import engine
from stoker_recipes.tfa.indicators.engine import features

Stoker = Callable[..., Done]

SPEC = {"features": [{"name": "ema", "op": "EMA", "window": 3}, {"name": "atr", "op": "ATR", "window": 2}]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with bars of two symbols, row by row in turn, and a spec."""
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
    done = stoker("tfa", "indicators", "bars.csv", "out.stoker", "--spec", "features.json", "--series", "symbol", "--time", "ts")
    assert done == Done(
        0, "computed 2 features from bar 2 on for 20 bars in 2 series: out.stoker\nnext: stoker inspect out.stoker\n", ""
    )
    store = open_store("out.stoker")
    assert list(store.schema) == ["symbol", "ts", "open", "high", "low", "close", "volume", "features"]
    assert (store.key, store.time) == ("symbol", "ts")
    bars: dict[str, Any] = {**market(20), "symbol": np.arange(20) % 2}
    expected = features(bars, SPEC, series="symbol").values
    assert store[0]["features"].tobytes() == expected[::2].tobytes()
    assert store[1]["features"].tobytes() == expected[1::2].tobytes()
    assert sorted(path.name for path in folder.iterdir()) == ["bars.csv", "features.json", "out.stoker"]


def test_a_store_of_bars_gives_the_same(stoker: Stoker, folder: Path) -> None:
    stoker("tfa", "indicators", "bars.csv", "raw", "--spec", "features.json", "--series", "symbol", "--time", "ts")
    pack("bars.csv", "bars.stoker", series="symbol", time="ts")
    done = stoker("tfa", "indicators", "bars.stoker", "packed", "--spec", "features.json", "--threads", "2", "--quiet")
    assert done.code == 0
    assert open_store("packed").digest == open_store("raw").digest


def test_json_for_programs(stoker: Stoker) -> None:
    asked = ("--series", "symbol", "--json", "--compat", "sentio", "--name", "x")
    done = stoker("tfa", "indicators", "bars.csv", "out", "--spec", "features.json", *asked)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["features"], found["emit_from"]) == (["ema", "atr"], 0)
    assert found["spec_hash"].startswith("sha256:")
    assert found["columns"][-1]["name"] == "x"
    bars: dict[str, Any] = {**market(20), "symbol": np.arange(20) % 2}
    expected = features(bars, SPEC, series="symbol", compat="sentio").values
    assert open_store("out").column("x").tobytes() == np.concatenate([expected[::2], expected[1::2]]).tobytes()


def test_one_series_needs_no_option_and_can_be_fed(stoker: Stoker, folder: Path) -> None:
    feed = pytest.importorskip("stoker.feed.feed")
    bars = market(100)
    rows = [",".join(str(values[i]) for values in bars.values()) for i in range(100)]
    (folder / "one.csv").write_text("\n".join(["ts," + ",".join(bars), *(f"{60 * i},{row}" for i, row in enumerate(rows))]) + "\n")
    done = stoker("tfa", "indicators", "one.csv", "features.stoker", "--spec", "features.json")
    assert done == Done(
        0, "computed 2 features from bar 2 on for 100 bars in 1 series: features.stoker\nnext: stoker inspect features.stoker\n", ""
    )
    batches = list(feed.Feed(open_store("features.stoker"), Windows(48), batch_size=16, device="cpu"))
    assert {tuple(batch["features"].shape[1:]) for batch in batches} == {(48, 2)}


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_packed_bars_go_however_it_ends(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        assert (folder / "out.bars").exists()
        raise error

    monkeypatch.setattr(engine, "write_features", fail)
    arguments = ("tfa", "indicators", "bars.csv", "out", "--spec", "features.json")
    if error is KeyboardInterrupt:
        assert stoker(*arguments).code == 130
    else:
        with pytest.raises(error):
            stoker(*arguments)
    assert not (folder / "out.bars").exists()
