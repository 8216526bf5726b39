"""Cutting published runs: ranges of equal work that hold each row once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stoker.errors import StoreDamagedError
from stoker.store.pack.blocks import RowBlock, sort_blocks
from stoker.store.pack.exchange import Exchange, open_exchange
from stoker.store.pack.sorted_runs import BackgroundWriter, ReadableRun, RunLayout, RunMark, SortedRun
from stoker.store.pack.stored_runs import HASH_BYTES, cut_runs, stored_run

pytestmark = pytest.mark.promise("P3")

LAYOUT = RunLayout(
    key=np.dtype("<i8"),
    step=[np.dtype("<i8"), np.dtype("<i8")],
    series=[],
    time_index=None,
    strict_time=False,
    block_bytes=HASH_BYTES,
)


def published(folder: Path, rows: list[Any]) -> tuple[Exchange, list[tuple[tuple[Exchange, str], RunMark]]]:
    """Rows of (key, number, number) of several runs, each sorted and published: where each run is, and its mark."""
    exchange, marks = open_exchange(folder / "a.stoker"), []
    exchange.put("begun", b"")
    for number, table in enumerate(rows):
        with exchange.attempt(f"read-{number}") as attempt, BackgroundWriter(1 << 20) as writer:
            run = SortedRun.create(attempt.folder, 0, LAYOUT, writer)
            block = RowBlock(pa.array(table[:, 0]), np.ones(len(table), dtype=np.int64), [table[:, 1], table[:, 2]], [])
            run.add(sort_blocks([block], None))
            run.finish()
            marks.append(((exchange, attempt.name), run.mark()()))
            run.close()
            exchange.publish(attempt)
    return exchange, marks


def rows_of(run: ReadableRun) -> list[tuple[int, int, int]]:
    keys = np.repeat(run.read_keys(0, run.num_series).to_numpy(), run.counts.read(0, run.num_series))
    columns = [column.read(0, run.num_steps) for column in run.step]
    return list(zip(keys.tolist(), *(column.tolist() for column in columns), strict=True))


def test_ranges_hold_each_row_once_in_the_final_order(tmp_path: Path, rng: np.random.Generator) -> None:
    for trial in range(6):
        rows, first = [], 0
        for _ in range(int(rng.integers(1, 5))):
            count = int(rng.integers(1, 400))
            keys = np.where(rng.random(count) < 0.5, 5, rng.integers(0, [3, 50, 1000][trial % 3], count))
            rows.append(np.stack([keys, rng.integers(0, 9, count), np.arange(count) + first], axis=1))
            first += count
        (tmp_path / str(trial)).mkdir()
        _, marks = published(tmp_path / str(trial), rows)
        borders = cut_runs([stored_run(*parts, mark, LAYOUT) for parts, mark in marks], int(rng.integers(1, 12)))
        # The slow twin: all rows, sorted by key, then by their number, which is that of their run and place.
        expected = sorted((tuple(row) for run in rows for row in run.tolist()), key=lambda row: (row[0], row[2]))
        in_ranges: list[tuple[int, int, int]] = []
        for begin, end in itertools.pairwise(borders):
            slices = [
                stored_run(*parts, mark, LAYOUT, begin=a, end=b) for (parts, mark), a, b in zip(marks, begin, end, strict=True)
            ]
            in_range = [row for run in slices for row in rows_of(run)]
            assert not {row[0] for row in in_ranges} & {row[0] for row in in_range}
            in_ranges += sorted(in_range, key=lambda row: (row[0], row[2]))
        assert in_ranges == expected


def test_ranges_are_of_equal_work(tmp_path: Path, rng: np.random.Generator) -> None:
    rows = [np.stack([rng.integers(0, 1000, 20_000), *([np.arange(20_000)] * 2)], axis=1) for _ in range(4)]
    _, marks = published(tmp_path, rows)
    borders = cut_runs([stored_run(*parts, mark, LAYOUT) for parts, mark in marks], 8)
    sizes = np.diff([sum(border.rows for border in of_runs) for of_runs in borders])
    assert len(sizes) == 8
    assert sizes.max() < 1.3 * sizes.mean()


@pytest.mark.promise("P3", control=True)
def test_every_byte_that_is_read_is_verified(tmp_path: Path) -> None:
    count = 40_000
    rows = np.stack([np.arange(count) // 7, np.arange(count), np.arange(count)], axis=1)
    exchange, ((parts, mark),) = published(tmp_path, [rows])
    run = stored_run(*parts, mark, LAYOUT)
    path = next((tmp_path / "a.stoker.parts").rglob("run0.c1"))
    data = bytearray(path.read_bytes())
    data[128 + 3 * HASH_BYTES + 5] ^= 1
    path.write_bytes(data)
    first_bad = 3 * HASH_BYTES // 8
    assert np.array_equal(run.step[1].read(0, first_bad), np.arange(first_bad))
    with pytest.raises(StoreDamagedError, match=r"run0.c1 is damaged \(bytes 196,736 to 262,272\)"):
        run.step[1].read(first_bad + 100, first_bad + 101)
    path.write_bytes(data[: 128 + HASH_BYTES])
    with pytest.raises(StoreDamagedError):
        run.step[1].read(first_bad - 1, first_bad)
    path.unlink()
    with pytest.raises(StoreDamagedError, match="is missing"):
        run.step[1].read(0, 1)
    assert exchange.label.endswith(".parts")
