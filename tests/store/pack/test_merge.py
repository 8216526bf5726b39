"""Merging: the runs' rows in the order of their keys, the earlier run first."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.harness import num_examples
from tests.store.pack.runs import Segment, Series, block, grouped, layout, read

from stoker.store.pack import merge
from stoker.store.pack.merge import merge_runs
from stoker.store.pack.sorted_runs import BackgroundWriter, RepeatedKeyError, RunLayout, SortedRun

KEYS = {"int64": st.integers(-2, 3), "uint64": st.integers(2**64 - 4, 2**64 - 1), "text": st.sampled_from(["", "a", "b", "é"])}


@st.composite
def run_contents(draw: st.DrawFn, *, by_time: bool) -> tuple[str, list[Series]]:
    """Sorted series of several runs; some are far longer than the 16 rows that a merge has in memory at least."""
    kind = draw(st.sampled_from(sorted(KEYS)))
    number = 0
    runs = []
    for _ in range(draw(st.integers(1, 4))):
        series: Series = []
        for key in sorted(draw(st.sets(KEYS[kind], min_size=1, max_size=4))):
            length = draw(st.sampled_from([0, 1, 2, 16, 17, 40]))
            times = draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))
            times = sorted(times) if by_time else times
            series.append((key, [(time, float(number + i)) for i, time in enumerate(times)]))
            number += length
        runs.append(series)
    return kind, runs


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


@settings(max_examples=num_examples(120), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans().flatmap(lambda by_time: st.tuples(st.just(by_time), run_contents(by_time=by_time))))
def test_a_merge_is_its_slow_twin(given: tuple[bool, tuple[str, list[Series]]]) -> None:
    by_time, (kind, contents) = given
    everything: list[Segment] = [segment for run in contents for segment in run]
    with tempfile.TemporaryDirectory() as folder:
        assert merged(Path(folder), contents, kind, by_time=by_time) == grouped(everything, by_time=by_time)


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
