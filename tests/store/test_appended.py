"""Stores with parts: damage is found, memory is checked before a column is merged, and rows are copied right whatever their runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.harness import edit_manifest
from tests.store.appending import assert_same_content

import stoker
from stoker import verify
from stoker.errors import FeedError, ManifestError, StoreDamagedError, StoreError
from stoker.store import appended


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stoker.pack({"id": [1, 2, 2], "x": [1.0, 2.0, 3.0]}, tmp_path / "store", series="id")
    for number in (2, 3):
        stoker.append(tmp_path / "store", {"id": [number], "x": [number / 2]})
    return tmp_path / "store"


@pytest.mark.promise("P26")
@pytest.mark.parametrize("change", ["removed", "changed", "cut", "foreign"])
def test_a_damaged_list_of_parts_is_found(folder: Path, change: str) -> None:
    path = folder / "parts.jsonl"
    data = path.read_bytes()
    path.unlink()
    if change != "removed":
        path.write_bytes({"changed": data.replace(b'"key"', b'"new"'), "cut": data[:-3], "foreign": b"\xff" * len(data)}[change])
    with pytest.raises(StoreDamagedError, match=r"parts.jsonl (is missing|differs)"):
        verify(folder)
    with pytest.raises(StoreDamagedError, match=r"parts.jsonl"):
        len(stoker.open(folder))


@pytest.mark.promise("P26")
def test_a_missing_replaced_or_changed_part_is_found(folder: Path) -> None:
    part = folder / "parts" / "000003"
    shard = sorted(part.glob("*.npy"))[0]
    data = shard.read_bytes()
    shard.chmod(0o644)
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StoreDamagedError, match=rf"parts/000003/{shard.name} \(.*\) differs from its hash"):
        verify(folder)
    shard.write_bytes(data)
    verify(folder)
    stoker.pack({"id": [3], "x": [8.0]}, part, series="id", replace=True)
    with pytest.raises(StoreDamagedError, match=r"000003 differs from what parts.jsonl expects"):
        len(stoker.open(folder))
    for path in part.iterdir():
        path.unlink()
    part.rmdir()
    with pytest.raises(StoreDamagedError, match="000003 is missing: it holds appended rows"):
        verify(folder)


def test_a_column_that_does_not_fit_into_memory_is_refused_and_compact_needs_no_such_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stoker.open(folder)
    monkeypatch.setattr(appended.psutil, "virtual_memory", lambda: SimpleNamespace(available=39))
    with pytest.raises(StoreError, match=r"column .x. of .* needs 40 B of memory"):
        store.column("x")
    monkeypatch.setattr(appended, "_BLOCK_BYTES", 8)
    assert stoker.compact(folder).column("x").tolist() == [1.0, 2.0, 3.0, 1.0, 1.5]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("revision", 9),
        ("revision", None),
        ("parts", None),
        ("parts", {"count": 0, "num_bytes": 0, "xxh3": "0" * 32}),
        ("version", 1),
    ],
)
def test_a_manifest_whose_parts_break_a_rule_is_refused(folder: Path, field: str, value: Any) -> None:
    edit_manifest(folder, lambda tree: tree.pop(field) if value is None else tree.update({field: value}))
    with pytest.raises(ManifestError, match=r"manifest.json"):
        stoker.open(folder)


@pytest.mark.parametrize("short_run", [1, 10**9])
@pytest.mark.parametrize("block_bytes", [8, 24, 1 << 20])
def test_rows_are_copied_in_any_blocks_and_runs(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, short_run: int, block_bytes: int
) -> None:
    tables = [{"id": np.sort(rng.integers(0, 9, 40)), "x": rng.normal(size=40)} for _ in range(3)]
    stoker.pack(tables[0], tmp_path / "store", series="id")
    for table in tables[1:]:
        stoker.append(tmp_path / "store", table)
    whole = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    monkeypatch.setattr(appended, "_SHORT_RUN", short_run)
    monkeypatch.setattr(appended, "_BLOCK_BYTES", block_bytes)
    assert_same_content(stoker.open(tmp_path / "store"), stoker.pack(whole, tmp_path / "full", series="id"))


@pytest.mark.promise("P26")
def test_a_feed_and_its_dataset_over_an_appended_store_equal_those_over_a_full_pack(folder: Path, tmp_path: Path) -> None:
    import pickle

    import torch

    full = stoker.pack({"id": [1, 2, 2, 2, 3], "x": [1.0, 2.0, 3.0, 1.0, 1.5]}, tmp_path / "full", series="id")
    feeds = [
        stoker.Feed(store, stoker.Windows(1), batch_size=2, device="cpu", order=stoker.Shuffle(seed=3))
        for store in (stoker.open(folder), full)
    ]
    batches = [list(feed) for feed in feeds]
    for one, other in zip(*batches, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)
    dataset = feeds[0].dataset
    sent = pickle.dumps(dataset)
    assert len(pickle.loads(sent)) == len(feeds[1].dataset)
    stoker.append(folder, {"id": [7], "x": [7.0]})
    with pytest.raises(FeedError, match="was replaced or appended to since the feed was made"):
        len(pickle.loads(sent))
