"""The sorter: whatever the order and size of blocks, its runs hold all rows, each run in order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.harness import num_examples
from tests.store.pack.runs import Segment, block, grouped, layout, read

from stoker.store.pack.sorted_runs import BackgroundWriter, Sorter

KEYS = {"int64": st.integers(-2, 3), "text": st.sampled_from("abcé")}
ROWS = st.lists(st.tuples(st.integers(0, 9), st.floats(0, 9)), max_size=4)


@st.composite
def parts(draw: st.DrawFn) -> tuple[str, list[list[Segment]]]:
    kind = draw(st.sampled_from(sorted(KEYS)))
    return kind, draw(st.lists(st.lists(st.tuples(KEYS[kind], ROWS), min_size=1, max_size=4), max_size=8))


@settings(max_examples=num_examples(80))
@given(parts(), st.booleans(), st.sampled_from([1, 200, 10_000]), st.integers(0, 8))
def test_runs_hold_all_rows_in_order(given: tuple[str, list[list[Segment]]], by_time: bool, run_bytes: int, flush: int) -> None:
    kind, blocks = given
    shape = layout(kind, time_index=0 if by_time else None, strict_time=False)
    with tempfile.TemporaryDirectory() as folder, BackgroundWriter(1 << 20) as writer:
        sorter = Sorter(Path(folder), shape, writer, sort_time=by_time, run_bytes=run_bytes)
        for i, part in enumerate(blocks):
            sorter.add(block(part, kind))
            if i == flush:
                sorter.flush()
        runs = [read(run) for run in sorter.finish()]
    for run in runs:
        keys = [key for key, _ in run]
        assert keys == sorted(set(keys))
        assert not by_time or all(rows == sorted(rows, key=lambda row: row[0]) for _, rows in run)
    # A merge takes the rows of an earlier run first: so put together, the runs are the twin.
    everything: list[Segment] = [segment for part in blocks for segment in part]
    assert grouped([segment for run in runs for segment in run], by_time=by_time) == grouped(everything, by_time=by_time)


def test_blocks_in_order_make_one_run(tmp_path: Path) -> None:
    with BackgroundWriter(1 << 20) as writer:
        sorter = Sorter(tmp_path, layout(), writer, sort_time=False, run_bytes=1)
        for key in (1, 1, 2, 5):
            sorter.add(block([(key, [(0, 0.0)]), (key + 1, [(0, 0.0)])] if key == 2 else [(key, [(0, 0.0)])]))
        runs = sorter.finish()
    assert [run.num_series for run in runs] == [4]


@pytest.mark.parametrize(("first", "second", "runs"), [(5, 5, 1), (5, 6, 1), (6, 5, 2)])
def test_a_series_continues_only_if_its_time_does(tmp_path: Path, first: int, second: int, runs: int) -> None:
    rows: list[list[Segment]] = [[(1, [(first, 0.0)])], [(1, [(second, 1.0)])]]
    with BackgroundWriter(1 << 20) as writer:
        shape = layout(time_index=0, strict_time=False)
        sorter = Sorter(tmp_path, shape, writer, sort_time=True, run_bytes=1)
        for part in rows:
            sorter.add(block(part))
        assert len(sorter.finish()) == runs


def test_a_series_that_begins_with_no_rows_continues_only_if_its_time_does(tmp_path: Path) -> None:
    rows: list[list[Segment]] = [[(0, [(1, 0.0)])], [(0, []), (0, [(0, 0.0)])]]
    with BackgroundWriter(1 << 20) as writer:
        sorter = Sorter(tmp_path, layout(time_index=0, strict_time=False), writer, sort_time=True, run_bytes=1)
        for part in rows:
            sorter.add(block(part))
        assert len(sorter.finish()) == 2
