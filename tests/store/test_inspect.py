"""Inspecting and verifying: lengths and missing values counted, all damage told at once."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from tests.harness import COLUMNS, TinyStore, edit_manifest, flip_byte, tiny_store, write_shard

from stoker import Store, Time, inspect, pack, verify
from stoker.errors import StoreDamagedError
from stoker.store import manifest as manifests
from stoker.store import shards as shards
from stoker.store.manifest import Shard


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 100_000)), min_size=1, max_size=30))
def test_lengths_are_those_of_the_series(lengths: list[int]) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    uniform = lengths[0] if len(set(lengths)) == 1 else None
    store = Store({}, {}, num_series=len(lengths), length=uniform, offsets=None if uniform is not None else offsets, name="a store")
    summary = inspect(store)
    assert (summary.shortest, summary.longest) == (min(lengths), max(lengths))
    assert summary.median == statistics.median(lengths)
    bins = summary.histogram
    assert len(bins) <= 13
    assert sum(one.num_series for one in bins) == len(lengths)
    assert (bins[0].low, bins[-1].high) == (min(lengths), max(lengths))
    for one in bins:
        assert one.num_series == sum(one.low <= length <= one.high for length in lengths)
    assert all(a.high + 1 == b.low for a, b in itertools.pairwise(bins))


def test_a_store_on_disk_and_its_path_are_the_same(tmp_path: Path) -> None:
    tiny = tiny_store(tmp_path / "store")
    summary = inspect(tmp_path / "store")
    assert summary.to_dict() == inspect(str(tmp_path / "store")).to_dict()
    assert summary.digest == tiny.manifest.digest
    assert [column.name for column in summary.columns] == [column.name for column in tiny.manifest.columns]
    assert (summary.key, summary.time) == ("symbol", "when")
    assert summary.notes == ["made for a test"]
    assert summary.num_bytes == tiny.open().num_bytes


def counted(store: Store, name: str) -> int:
    """How many values of a column are missing, by looking at each."""
    column, values = store.schema[name], store.column(name)
    if column.dtype is not None and column.dtype.kind == "f":
        return int(np.isnan(values).sum())
    return int((values == (-1 if column.kind == "category" else np.iinfo(np.int64).min)).sum())


@pytest.mark.parametrize("missing", ["keep", "ffill", "drop"])
@pytest.mark.parametrize("rules", [{}, {"duplicates": "last"}, {"freq": "1h"}, {"freq": "1h", "duplicates": "first"}])
@pytest.mark.parametrize("sort", [False, True])
def test_missing_values_are_counted_as_they_are_in_the_store(
    tmp_path: Path, rules: dict[str, Any], missing: Any, sort: bool
) -> None:
    if missing == "drop" and "freq" in rules:
        pytest.skip("refused: one adds what the other drops")
    hours = [0, 1, 1, 4, 9, 0, 2, 2, 3] if "duplicates" in rules or sort else [0, 1, 2, 4, 9, 0, 2, 3, 5]
    if sort and not rules.get("duplicates") and "freq" in rules:
        hours = [0, 1, 2, 4, 9, 0, 2, 3, 5]
    times = np.datetime64("2024-01-01T00", "h") + np.array(hours)
    table = {
        "k": [1] * 5 + [2] * 4,
        "t": times.astype("datetime64[ns]"),
        "x": [1.0, np.nan, 2.0, np.nan, 3.0, np.nan, 4.0, 5.0, np.nan],
        "word": pa.array(["a", None, "b", None, None, "a", None, "b", "a"]),
        "seen": pa.array([None, 1, 2, None, 4, 5, None, 7, 8], pa.timestamp("s")),
    }
    store = pack(table, tmp_path / "out", series="k", time=Time("t", **rules), sort=sort, missing=missing)
    shown = {column["name"]: column["missing"] for column in inspect(store).to_dict()["columns"]}
    for name in ("t", "x", "word", "seen"):
        assert shown[name] == counted(store, name), name
    assert "freq" not in rules or missing == "ffill" or shown["word"] > 4, "the case of steps that were added"


# Verifying: every byte is read, all damage is told at once, with shard, column and rows


@pytest.fixture
def tiny(tmp_path: Path) -> TinyStore:
    return tiny_store(tmp_path / "store", lengths=(300, 0, 500, 1))


def values_of(tiny: TinyStore, name: str) -> Shard:
    found = next(column for column in tiny.manifest.columns if column.name == name).values
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
        flip_byte(tiny.path / values_of(tiny, name).file, 128)
    with pytest.raises(StoreDamagedError) as caught:
        verify(tiny.path)
    text = str(caught.value)
    for name in ("price", "wide", "mood"):
        assert f"{values_of(tiny, name).file} (column '{name}') differs from its hash in rows 0 to 800" in text
    assert text.startswith(f"{tiny.path} is damaged: ")
    assert "\n" not in text


def test_offsets_that_fall_are_found_though_their_hash_is_right(tiny: TinyStore) -> None:
    bad = msgspec.to_builtins(write_shard(tiny.path, np.array([0, 500, 300, 800, 801], dtype="<i8")))
    edit_manifest(tiny.path, lambda tree: tree.update(offsets=bad))
    with pytest.raises(StoreDamagedError, match="the offsets decrease somewhere"):
        verify(tiny.path)


@pytest.mark.parametrize("code", [-2, 4, 2**31 - 1])
def test_codes_without_a_text_are_found(tiny: TinyStore, code: int) -> None:
    codes = tiny.values["mood"].copy()
    codes[-1] = code
    values = msgspec.to_builtins(write_shard(tiny.path, codes))
    edit_manifest(tiny.path, lambda tree: tree["columns"][COLUMNS.index("mood")].update(values=values))
    with pytest.raises(StoreDamagedError, match="column 'mood' holds a code without a category"):
        verify(tiny.path)
