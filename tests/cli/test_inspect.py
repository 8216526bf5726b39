"""`stoker inspect`: what a store holds, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.cli.calling import Done

from stoker.store.pack.api import pack

Stoker = Callable[..., Done]


def test_everything_that_people_ask_for_is_shown(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    store = pack(prices, tmp_path / "out", series="symbol", time="ts")
    done = stoker("inspect", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    words = " ".join(done.out.split())
    assert "2 series, 4 steps" in words
    assert "key 'symbol', time 'ts'" in words
    assert f"digest {store.digest}" in words
    assert "symbol text series 0 0" in words
    assert "ts timestamp[s] step 0 0" in words
    assert "close float64 step 1 1 series 0 step 0" in words
    assert "lengths: 2 to 2, median 2" in words
    assert "a.csv" in words
    assert store.manifest is not None
    assert all(source.xxh3 is not None and source.xxh3 in done.out.replace("\n", "") for source in store.manifest.sources)


def test_json_is_the_same_for_programs(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    pack(prices, tmp_path / "out", series="symbol", time="ts")
    done = stoker("inspect", tmp_path / "out", "--json")
    found = json.loads(done.out)
    assert found["lengths"] == {"shortest": 2, "median": 2.0, "longest": 2, "histogram": [{"low": 2, "high": 2, "num_series": 2}]}
    assert set(found) == {
        "path",
        "digest",
        "num_series",
        "num_steps",
        "num_bytes",
        "key",
        "time",
        "lengths",
        "columns",
        "notes",
        "sources",
    }


def test_values_are_not_read(stoker: Stoker, tmp_path: Path) -> None:
    store = pack({"x": np.arange(100.0)}, tmp_path / "out")
    assert store.manifest is not None
    shard = store.manifest.columns[0].values
    assert shard is not None
    path = tmp_path / "out" / shard.file
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    assert stoker("inspect", tmp_path / "out").code == 0
    done = stoker("inspect", tmp_path / "out", "--verify")
    assert done.code == 2
    assert f"{shard.file} (column 'x') differs from its hash in rows 0 to 99" in done.err
