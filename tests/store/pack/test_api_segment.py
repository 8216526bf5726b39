"""Segments: series cut into pieces of at most N steps, each with the key of its series."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.store.shrink import shrunk

from stoker.store.pack.api import pack


@pytest.mark.parametrize("segment", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("lengths", [[7, 0, 3, 8], [8, 8], [1], [0, 5], [3] * 4])
def test_pieces_are_slices(tmp_path: Path, segment: int, lengths: list[int]) -> None:
    ends = np.cumsum(lengths)
    flat = np.arange(ends[-1], dtype=float)
    rows = [flat[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    names = [f"series {i}" for i in range(len(lengths))]
    store = pack({"x": rows, "label": np.arange(len(lengths)), "name": names}, tmp_path / "out", segment=segment)
    expected = [
        (row[i : i + segment].tolist(), label, names[label])
        for label, row in enumerate(rows)
        for i in (range(0, len(row), segment) if len(row) else [0])
    ]
    assert [(one["x"].tolist(), int(one["label"]), one["name"]) for one in store] == expected
    same = len({len(values) for values, _, _ in expected}) == 1
    assert (store.uniform_length is not None) == same


def test_keys_are_repeated(tmp_path: Path) -> None:
    table = pa.table({"k": ["b"] * 5 + ["a"] * 2, "x": range(7)})
    store = pack(table, tmp_path / "out", series="k", segment=2)
    assert list(store.texts("k")) == ["a", "b", "b", "b"]
    assert [one["x"].tolist() for one in store] == [[5, 6], [0, 1], [2, 3], [4]]
    assert store.find("b") == 1


def test_files_are_repeated(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n3\n")
    (tmp_path / "b.csv").write_text("x\n4\n")
    store = pack(str(tmp_path / "*.csv"), tmp_path / "out", segment=2)
    assert list(store.texts("series")) == ["a.csv", "a.csv", "b.csv"]


def test_segments_do_not_depend_on_the_parts_of_a_pack(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    table = pa.table({"k": rng.integers(0, 4, 300), "x": rng.normal(size=300)})
    whole = pack(table, tmp_path / "whole", series="k", segment=13)
    with shrunk():
        parts = pack(table, tmp_path / "parts", series="k", segment=13)
    assert parts.digest == whole.digest


@pytest.mark.parametrize(("lengths", "uniform"), [([4, 4], 2), ([4, 6], None), ([2, 2], 2), ([1, 1], 1)])
def test_equal_lengths_need_no_offsets(tmp_path: Path, lengths: list[int], uniform: int | None) -> None:
    store = pack([np.zeros(length) for length in lengths], tmp_path / "out", segment=2)
    assert store.lengths.tolist() == [2] * (sum(lengths) // 2) if uniform != 1 else [1, 1]
    if uniform is not None:
        assert store.uniform_length == uniform
