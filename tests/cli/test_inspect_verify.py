"""`stoker inspect --verify`: says that a store is complete, or what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.calling import Done

from stoker.store.pack.api import pack

Stoker = Callable[..., Done]


def test_a_whole_store(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    store = pack(prices, tmp_path / "out", series="symbol")
    done = stoker("inspect", tmp_path / "out", "--verify")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{tmp_path / 'out'} is complete: ")
    assert f"digest {store.digest}" in done.out
    found = json.loads(stoker("inspect", tmp_path / "out", "--verify", "--json").out)
    assert found["digest"] == store.digest
    assert found["num_bytes"] == store.num_bytes
    assert found["num_shards"] == len(list((tmp_path / "out").glob("*.npy")))


def test_damage_is_one_line_and_code_2(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    pack(prices, tmp_path / "out", series="symbol")
    shard = sorted((tmp_path / "out").glob("*.npy"))[0]
    shard.unlink()
    done = stoker("inspect", tmp_path / "out", "--verify", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert f"{shard} is missing" in done.err
