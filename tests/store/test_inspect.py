"""Inspecting: lengths counted right, in bins that cover them, without reading a value."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given
from tests.harness import tiny_store

from stoker.store.inspect import inspect
from stoker.store.pack.api import pack
from stoker.store.store import Store


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


def test_it_can_be_written_as_json(tmp_path: Path) -> None:
    tiny_store(tmp_path / "store", lengths=(3, 0, 5, 1))
    found: dict[str, Any] = json.loads(json.dumps(inspect(tmp_path / "store").to_dict(), allow_nan=False))
    assert found["lengths"]["shortest"] == 0
    assert [column["categories"] for column in found["columns"] if column["type"] == "category"] == [4]


def test_what_is_not_finite_is_reported_with_its_place(tmp_path: Path) -> None:
    store = pack({"k": [1, 2, 2], "x": [0.0, 1.0, np.nan]}, tmp_path / "out", series="k")
    assert inspect(store).to_dict()["columns"][1]["first_nonfinite"] == [1, 1]
