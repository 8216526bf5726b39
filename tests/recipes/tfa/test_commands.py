"""`stoker train tfa.yaml`, `stoker export`, `stoker tfa verify` and `stoker tfa indicators`: what a user sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.calling import Done
from tests.recipes.tfa.indicators.markets import market
from tests.recipes.tfa.training_folder import change_bars, make_folder

from stoker.feed.feed import Feed
from stoker.sampling.views import Windows
from stoker.store.opening import open_store
from stoker.store.pack.api import pack
from stoker_recipes.tfa.indicators.engine import features

Stoker = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path)
    return tmp_path


def test_from_a_yaml_to_a_bundle_that_proves_itself(stoker: Stoker, folder: Path) -> None:
    done = stoker("train", "tfa.yaml")
    assert done.code == 0, done.err
    words = [line.split(" ")[0] for line in done.out.splitlines()]
    assert words[:6] == ["bars", "features", "labels", "train", "validation", "score"]
    assert words.count("checked") == 8
    assert "verdict    " in done.out
    assert done.out.endswith("run        run   next: stoker export run bundle/\n")
    done = stoker("export", "run", "bundle")
    assert (done.code, done.err) == (0, "")
    first, second, *rest = done.out.splitlines()
    assert first.startswith("exported the weights of step ")
    assert second.startswith(
        "proved on golden bars: 71 rows of features equal bit for bit in a batch and bar by bar, 64 logits within "
    )
    assert rest[-1] == "next: stoker tfa verify bundle"
    assert len(rest) == 1 or rest[0].startswith("beware: NO ")
    done = stoker("tfa", "verify", "bundle")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("bundle is complete and gives the same results as after training:\n")
    assert json.loads(stoker("tfa", "verify", "bundle", "--json").out)["logits"] == 64


def test_a_run_resumes(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "tfa.yaml", "--quiet", "--set", "epochs=1").code == 0
    again = stoker("train", "tfa.yaml", "--quiet")
    assert again.code == 2
    assert again.err.startswith("stoker: run has a run already. ")
    (folder / "bars.csv").unlink()  # the run has its own copy
    done = stoker("train", "--resume", "run", "--quiet")
    assert (done.code, done.err) == (0, "")


def test_a_yaml_is_verified_without_training(stoker: Stoker, folder: Path) -> None:
    done = stoker("tfa", "verify", "tfa.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("tfa.yaml passed all checks.   next: stoker train tfa.yaml\n")
    assert sorted(path.name for path in folder.iterdir()) == ["bars.csv", "spec.json", "tfa.yaml"]
    change_bars(folder, close=lambda close: -close)
    done = stoker("tfa", "verify", "tfa.yaml", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("stoker: close is -")
    assert done.err.count("\n") == 1


def test_a_folder_of_the_users_is_refused_and_left_alone(stoker: Stoker, folder: Path) -> None:
    (folder / "bars").mkdir()
    (folder / "bars" / "mine.csv").write_text("precious")
    for extra in ([], ["--overwrite"]):
        done = stoker("train", "tfa.yaml", "--quiet", "--set", "out_dir=.", *extra)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("stoker: . was not made by Stoker: it holds 'bars', and no recipe.json.")
        assert "--set out_dir=runs/tfa" in done.err
    assert (folder / "bars" / "mine.csv").read_text() == "precious"
    assert sorted(path.name for path in folder.iterdir()) == ["bars", "bars.csv", "spec.json", "tfa.yaml"]


# `stoker tfa indicators`: a store of bars becomes a store with features


SPEC = {"features": [{"name": "ema", "op": "EMA", "window": 3}, {"name": "atr", "op": "ATR", "window": 2}]}


@pytest.fixture
def indicators_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_a_store_of_bars_gets_a_column_of_features(stoker: Stoker, indicators_folder: Path) -> None:
    pack("bars.csv", "bars.stoker", series="symbol", time="ts")
    done = stoker("tfa", "indicators", "bars.stoker", "out.stoker", "--spec", "features.json")
    line = "computed 2 features from bar 2 on for 20 bars in 2 series: out.stoker\nnext: stoker inspect out.stoker\n"
    assert done == Done(0, line, "")
    Path("sentio.json").write_text(json.dumps({**SPEC, "compat": "sentio"}))
    done = stoker("tfa", "indicators", "bars.stoker", "sentio.stoker", "--spec", "sentio.json", "--json")
    report = json.loads(done.out)
    assert (done.code, done.err, report["features"], report["emit_from"]) == (0, "", ["ema", "atr"], 0)
    assert report["spec_hash"].startswith("sha256:")
    bars: dict[str, Any] = {**market(20), "symbol": np.arange(20) % 2}
    for name, compat in (("out.stoker", None), ("sentio.stoker", "sentio")):
        store, expected = open_store(name), features(bars, SPEC, series="symbol", compat=compat).values
        assert list(store.schema) == ["symbol", "ts", "open", "high", "low", "close", "volume", "features"]
        assert (store.key, store.time) == ("symbol", "ts")
        assert store.column("features").tobytes() == np.concatenate([expected[::2], expected[1::2]]).tobytes()
    batches = list(Feed(store, Windows(8), batch_size=2, device="cpu"))
    assert {tuple(batch["features"].shape[1:]) for batch in batches} == {(8, 2)}


def test_raw_bars_are_refused_in_one_line(stoker: Stoker, indicators_folder: Path) -> None:
    done = stoker("tfa", "indicators", "bars.csv", "out", "--spec", "features.json")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "bars.csv is not a store" in done.err
