"""Merging: the runs' rows in the order of their keys, the earlier run first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.store.pack.runs import Segment, Series, block, grouped, layout, read

from stoker.store.pack import merge
from stoker.store.pack.merge import merge_runs
from stoker.store.pack.sorted_runs import BackgroundWriter, RepeatedKeyError, RunLayout, SortedRun


def write(folder: Path, contents: Sequence[Series], kind: str, shape: RunLayout, writer: BackgroundWriter) -> list[SortedRun]:
    runs = []
    for number, series in enumerate(contents):
        run = SortedRun.create(folder, number, shape, writer)
        run.add(block(series, kind, series=bool(shape.series)))
        run.finish()
        runs.append(run)
    return runs


def merged(folder: Path, contents: Sequence[Series], kind: str, *, by_time: bool) -> Series:
    shape = layout(kind, time_index=0 if by_time else None, strict_time=False)
    with BackgroundWriter(1 << 20) as writer:
        runs = write(folder, contents, kind, shape, writer)
        out = SortedRun.create(folder, 99, shape, writer)
        merge_runs(runs, out, time_index=shape.time_index, unique_keys=False, memory_bytes=1)
        out.finish()
        return read(out)


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_key_in_two_runs_is_refused_where_rows_are_series(tmp_path: Path, length: int) -> None:
    contents: list[Series] = [[(1, [(0, 0.0)] * length), (2, [])], [(0, []), (1, [(0, 0.0)] * length)]]
    with BackgroundWriter(1 << 20) as writer:
        runs = write(tmp_path, contents, "int64", layout(), writer)
        out = SortedRun.create(tmp_path, 99, layout(), writer)
        with pytest.raises(RepeatedKeyError) as caught:
            merge_runs(runs, out, time_index=None, unique_keys=True, memory_bytes=1)
    assert caught.value.key == 1


def test_a_merge_that_forgot_the_order_of_runs_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents: list[Series] = [[(1, [(0, 0.0)])], [(1, [(0, 1.0)])]]
    sort: Any = merge.sort_blocks
    monkeypatch.setattr(merge, "sort_blocks", lambda blocks, time: sort(list(reversed(blocks)), time))
    everything: list[Segment] = [segment for run in contents for segment in run]
    assert merged(tmp_path, contents, "int64", by_time=False) != grouped(everything)
