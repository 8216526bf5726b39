"""Runs: what is added arrives, times are checked over every border, and a run is taken up only as it was left."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store.pack.runs import Segment, block, layout, read

from stoker.store.pack.sorted_runs import BackgroundWriter, RunLayout, RunMark, SortedRun


@pytest.fixture
def writer() -> Iterator[BackgroundWriter]:
    with BackgroundWriter(1 << 20) as writer:
        yield writer


def run_of(
    folder: Path, writer: BackgroundWriter, parts: list[list[Segment]], shape: RunLayout | None = None, kind: str = "int64"
) -> SortedRun:
    run = SortedRun.create(folder, 0, shape or layout(kind, time_index=0), writer)
    for part in parts:
        run.add(block(part, kind))
    run.finish()
    return run


def test_a_series_that_began_without_rows_has_no_time_before_it(tmp_path: Path, writer: BackgroundWriter) -> None:
    """The last row there is belongs to another series."""
    filled = layout(time_index=0, fill=frozenset({1}))
    run = run_of(tmp_path, writer, [[(0, [(9, 5.0)])], [(1, [])], [(1, [(2, math.nan), (3, 1.0)])]], filled)
    (_, first), (_, second) = read(run)
    assert first == [(9, 5.0)]
    assert math.isnan(second[0][1])
    assert second[1] == (3, 1.0)


# Taking up a run of an earlier process


def marked(folder: Path, writer: BackgroundWriter, parts: list[list[Segment]], shape: RunLayout, kind: str) -> RunMark:
    run = SortedRun.create(folder, 3, shape, writer)
    for part in parts:
        run.add(block(part, kind, series=True))
    mark = run.mark()
    writer.drain()
    made = mark()
    run.add(block([("zz" if kind == "text" else 99, [(1, 1.0)])], kind, series=True))  # what the journal does not know of
    writer.drain()
    run.close()
    return made


@pytest.mark.parametrize("kind", ["int64", "text"])
@pytest.mark.parametrize("cut", range(4))
def test_a_run_continues_from_its_mark(tmp_path: Path, writer: BackgroundWriter, kind: str, cut: int) -> None:
    keys = ["a", "b", "c"] if kind == "text" else [1, 2, 3]
    parts: list[list[Segment]] = [
        [(keys[0], [(1, 0.5), (2, math.inf)])],
        [(keys[0], [(3, 0.5)]), (keys[1], [(1, 1.5)])],
        [(keys[2], [(7, 0.0), (8, math.nan)])],
    ]
    shape = layout(kind, series=True, time_index=0)
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = SortedRun.create(tmp_path / "whole", 3, shape, writer)
    for part in parts:
        whole.add(block(part, kind, series=True))
    whole.finish()
    mark = marked(tmp_path / "cut", writer, parts[:cut], shape, kind)
    again = SortedRun.reopen(tmp_path / "cut", mark, shape, writer)
    assert again is not None
    for part in parts[cut:]:
        again.add(block(part, kind, series=True))
    again.finish()
    assert str(read(again)) == str(read(whole))
    assert [str(file.read(0, 3)) for file in again.series] == [str(file.read(0, 3)) for file in whole.series]
    assert (again.shortest, again.longest, again.equal_times) == (whole.shortest, whole.longest, whole.equal_times)
    assert [vars_of(t) for t in again.tallies] == [vars_of(t) for t in whole.tallies]


def vars_of(tally: Any) -> tuple[int, int, int | None]:
    return tally.nan, tally.inf, tally.first_step


@pytest.mark.parametrize("name", ["run3.k", "run3.ko", "run3.n", "run3.c0", "run3.c1", "run3.s0", "run3.s1", "run3.s1o"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "link"])
def test_a_run_that_is_not_as_it_was_is_not_taken_up(tmp_path: Path, writer: BackgroundWriter, name: str, damage: str) -> None:
    shape = layout("text", series=True, time_index=0)
    mark = marked(tmp_path, writer, [[("a", [(1, 0.5)]), ("b", [(1, 0.5)])]], shape, "text")
    path = tmp_path / name
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[128] ^= 1  # the first byte behind the header
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:129])
    else:
        path.unlink()
        if damage == "link":
            (tmp_path / "elsewhere").write_bytes(data)
            path.symlink_to(tmp_path / "elsewhere")
    assert SortedRun.reopen(tmp_path, mark, shape, writer) is None
