"""`stoker tfa indicators`: a store of bars becomes a store with features."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.calling import Done
from tests.recipes.tfa.indicators.markets import market

from stoker.feed.feed import Feed
from stoker.sampling.views import Windows
from stoker.store.opening import open_store
from stoker.store.pack.api import pack
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


def test_a_store_of_bars_gets_a_column_of_features(stoker: Stoker, folder: Path) -> None:
    pack("bars.csv", "bars.stoker", series="symbol", time="ts")
    done = stoker("tfa", "indicators", "bars.stoker", "out.stoker", "--spec", "features.json")
    line = "computed 2 features from bar 2 on for 20 bars in 2 series: out.stoker\nnext: stoker inspect out.stoker\n"
    assert done == Done(0, line, "")
    store = open_store("out.stoker")
    assert list(store.schema) == ["symbol", "ts", "open", "high", "low", "close", "volume", "features"]
    assert (store.key, store.time) == ("symbol", "ts")
    bars: dict[str, Any] = {**market(20), "symbol": np.arange(20) % 2}
    expected = features(bars, SPEC, series="symbol").values
    assert store[0]["features"].tobytes() == expected[::2].tobytes()
    assert store[1]["features"].tobytes() == expected[1::2].tobytes()
    batches = list(Feed(store, Windows(8), batch_size=2, device="cpu"))
    assert {tuple(batch["features"].shape[1:]) for batch in batches} == {(8, 2)}


def test_json_for_programs(stoker: Stoker) -> None:
    pack("bars.csv", "bars.stoker", series="symbol", time="ts")
    done = stoker("tfa", "indicators", "bars.stoker", "out", "--spec", "features.json", "--json", "--compat", "sentio")
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert (report["features"], report["emit_from"]) == (["ema", "atr"], 0)
    assert report["spec_hash"].startswith("sha256:")
    bars: dict[str, Any] = {**market(20), "symbol": np.arange(20) % 2}
    expected = features(bars, SPEC, series="symbol", compat="sentio").values
    assert open_store("out").column("features").tobytes() == np.concatenate([expected[::2], expected[1::2]]).tobytes()


def test_raw_bars_are_refused_in_one_line(stoker: Stoker) -> None:
    done = stoker("tfa", "indicators", "bars.csv", "out", "--spec", "features.json")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "bars.csv is not a store" in done.err
