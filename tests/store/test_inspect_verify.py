"""Verifying: every byte is read, all damage is told at once, with shard, column and rows."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.harness import TinyStore, seal_manifest, tiny_store, write_shard

from stoker.errors import StoreDamagedError
from stoker.store import inspect as verifying
from stoker.store import manifest as manifests
from stoker.store import shards as shards
from stoker.store.inspect import verify
from stoker.store.manifest import MANIFEST_NAME, Shard
from stoker.store.pack.api import pack


@pytest.fixture
def tiny(tmp_path: Path) -> TinyStore:
    return tiny_store(tmp_path / "store", lengths=(300, 0, 500, 1))


def flip(path: Path, at: int) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), at)


def values_of(tiny: TinyStore, name: str) -> Shard:
    found = next(column for column in tiny.manifest.columns if column.name == name).values
    assert found is not None
    return found


def test_a_whole_store_is_counted(tiny: TinyStore) -> None:
    reports: list[tuple[int, int]] = []
    done = verify(tiny.path, report=lambda part, total: reports.append((part, total)))
    named = list(manifests.shards(tiny.manifest))
    assert done.num_shards == len(named)
    assert done.num_bytes == sum(shard.values_bytes for shard in named)
    assert done.digest == tiny.manifest.digest
    assert reports[-1] == (done.num_bytes, done.num_bytes)
    assert [part for part, _ in reports] == sorted(part for part, _ in reports)


def test_all_damage_is_reported_at_once(tiny: TinyStore) -> None:
    for name in ("price", "wide", "mood"):
        flip(tiny.path / values_of(tiny, name).file, 128)
    with pytest.raises(StoreDamagedError) as caught:
        verify(tiny.path)
    text = str(caught.value)
    for name in ("price", "wide", "mood"):
        assert f"{values_of(tiny, name).file} (column '{name}') differs from its hash in rows 0 to 800" in text
    assert text.startswith(f"{tiny.path} is damaged: ")
    assert "\n" not in text


def test_texts_and_offsets_are_read_too(tiny: TinyStore) -> None:
    symbol = next(column for column in tiny.manifest.columns if column.name == "symbol").texts
    assert symbol is not None
    flip(tiny.path / symbol.utf8.file, 129)
    with pytest.raises(StoreDamagedError, match=rf"{symbol.utf8.file} \(texts of column 'symbol'\) differs"):
        verify(tiny.path)
    assert tiny.manifest.offsets is not None
    flip(tiny.path / tiny.manifest.offsets.file, 136)
    with pytest.raises(StoreDamagedError, match=r"\(the offsets\) differs"):
        verify(tiny.path)


@pytest.mark.parametrize("row", [0, 63, 64, 130, 199])
def test_rows_are_those_of_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    """With blocks of 64 rows, one flipped bit names its 64 rows."""
    for module in (manifests, shards, verifying):
        monkeypatch.setattr(module, "BLOCK_BYTES", 512)
    monkeypatch.setattr("stoker.store.shards.BLOCK_BYTES", 512)
    store = pack({"x": np.arange(200.0)}, tmp_path / "out")
    assert store.manifest is not None
    shard = store.manifest.columns[0].values
    assert shard is not None
    assert len(shard.blocks) == 4
    assert verify(tmp_path / "out").num_bytes == 1600
    flip(tmp_path / "out" / shard.file, 128 + row * 8)
    first, last = row // 64 * 64, min(row // 64 * 64 + 63, 199)
    with pytest.raises(StoreDamagedError, match=rf"differs from its hash in rows {first} to {last}\. Restore"):
        verify(tmp_path / "out")


def test_offsets_that_fall_are_found_though_their_hash_is_right(tiny: TinyStore) -> None:
    tree = manifests.msgspec.to_builtins(tiny.manifest)
    bad = write_shard(tiny.path, np.array([0, 500, 300, 800, 801], dtype="<i8"))
    tree["offsets"] = manifests.msgspec.to_builtins(bad)
    (tiny.path / MANIFEST_NAME).chmod(0o644)
    (tiny.path / MANIFEST_NAME).write_bytes(seal_manifest(tree))
    with pytest.raises(StoreDamagedError, match="the offsets decrease somewhere"):
        verify(tiny.path)


@pytest.mark.parametrize("code", [-2, 4, 2**31 - 1])
def test_codes_without_a_text_are_found(tiny: TinyStore, code: int) -> None:
    tree = manifests.msgspec.to_builtins(tiny.manifest)
    codes = tiny.values["mood"].copy()
    codes[-1] = code
    column = next(column for column in tree["columns"] if column["name"] == "mood")
    column["values"] = manifests.msgspec.to_builtins(write_shard(tiny.path, codes))
    (tiny.path / MANIFEST_NAME).chmod(0o644)
    (tiny.path / MANIFEST_NAME).write_bytes(seal_manifest(tree))
    with pytest.raises(StoreDamagedError, match="column 'mood' holds a code without a category"):
        verify(tiny.path)
