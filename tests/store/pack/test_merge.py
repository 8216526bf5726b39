"""Merging runs: the law of packing has the order of their rows; here, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.store.pack.runs import Series, block, layout

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


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_key_in_two_runs_is_refused_where_rows_are_series(tmp_path: Path, length: int) -> None:
    contents: list[Series] = [[(1, [(0, 0.0)] * length), (2, [])], [(0, []), (1, [(0, 0.0)] * length)]]
    with BackgroundWriter(1 << 20) as writer:
        runs = write(tmp_path, contents, "int64", layout(), writer)
        out = SortedRun.create(tmp_path, 99, layout(), writer)
        with pytest.raises(RepeatedKeyError) as caught:
            merge_runs(runs, out, time_index=None, unique_keys=True, memory_bytes=1)
    assert caught.value.key == 1
