"""Cutting published runs: ranges of equal work that hold each row once, also where one series has half of the rows."""

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
from stoker.store.pack.sorted_runs import BackgroundWriter, RunLayout, SortedRun
from stoker.store.pack.stored_runs import HASH_BYTES, StoredRun, cut_runs

pytestmark = pytest.mark.promise("P3")

LAYOUT = RunLayout(
    key=np.dtype("<i8"),
    step=[np.dtype("<i8"), np.dtype("<i8")],
    series=[],
    time_index=None,
    strict_time=False,
    block_bytes=HASH_BYTES,
)


def published(folder: Path, rows: list[Any], *, by_time: bool) -> tuple[Exchange, list[StoredRun]]:
    """Rows of (key, time, number) of several runs, each sorted and published."""
    exchange, found = open_exchange(folder / "a.stoker"), []
    exchange.put("begun", b"")
    for number, one in enumerate(rows):
        with exchange.attempt(f"read-{number}") as attempt, BackgroundWriter(1 << 20) as writer:
            run = SortedRun.create(attempt.folder, 0, LAYOUT, writer)
            block = RowBlock(pa.array(one[:, 0]), np.ones(len(one), dtype=np.int64), [one[:, 1], one[:, 2]], [])
            run.add(sort_blocks([block], 0 if by_time else None))
            run.finish()
            mark = run.mark()()
            run.close()
            exchange.publish(attempt)
        found.append(StoredRun(exchange, attempt.name, mark, LAYOUT))
    return exchange, found


def rows_of(run: StoredRun) -> list[tuple[int, int, int]]:
    keys = np.repeat(run.read_keys(0, run.num_series).to_numpy(), run.counts.read(0, run.num_series))
    columns = [column.read(0, run.num_steps) for column in run.step]
    return list(zip(keys.tolist(), *(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("by_time", [False, True])
@pytest.mark.parametrize("splits", [False, True])
def test_ranges_hold_each_row_once_in_the_final_order(
    tmp_path: Path, rng: np.random.Generator, by_time: bool, splits: bool
) -> None:
    for trial in range(6):
        rows, first = [], 0
        for _ in range(int(rng.integers(1, 5))):
            count = int(rng.integers(1, 400))
            keys = np.where(rng.random(count) < 0.5, 5, rng.integers(0, [3, 50, 1000][trial % 3], count))
            rows.append(np.stack([keys, rng.integers(0, [2, 10**6][trial % 2], count), np.arange(count) + first], axis=1))
            first += count
        (tmp_path / str(trial)).mkdir()
        _, runs = published(tmp_path / str(trial), rows, by_time=by_time)
        borders = cut_runs(runs, int(rng.integers(1, 12)), time_index=0 if by_time else None, splits_series=splits)
        # The slow twin: all rows, sorted by key, time where it counts, and their number, which is that of their run and place.
        expected = sorted(
            (tuple(row) for one in rows for row in one.tolist()), key=lambda row: row if by_time else (row[0], row[2])
        )
        found: list[tuple[int, int, int]] = []
        last_keys = None
        for begin, end in itertools.pairwise(borders):
            parts = [row for run, a, b in zip(runs, begin, end, strict=True) for row in rows_of(run.slice(a, b))]
            if not splits:
                assert last_keys is None or not last_keys & {row[0] for row in parts}
                last_keys = {row[0] for row in parts}
            found += sorted(parts, key=lambda row: row if by_time else (row[0], row[2]))
        assert found == expected


@pytest.mark.parametrize("by_time", [False, True])
def test_a_series_with_half_of_the_rows_is_shared(tmp_path: Path, rng: np.random.Generator, by_time: bool) -> None:
    rows = []
    for i in range(4):
        keys = np.where(rng.random(20_000) < 0.5, 5, rng.integers(0, 1000, 20_000))
        rows.append(np.stack([keys, rng.integers(0, 10**6, 20_000), np.arange(20_000) + i * 20_000], axis=1))
    _, runs = published(tmp_path, rows, by_time=by_time)
    borders = cut_runs(runs, 8, time_index=0 if by_time else None, splits_series=True)
    sizes = np.diff([sum(mark.rows for mark in border) for border in borders])
    assert len(sizes) == 8
    assert sizes.max() < 1.3 * sizes.mean()
    whole = cut_runs(runs, 8, time_index=0 if by_time else None, splits_series=False)  # the control: a whole series is one range
    assert np.diff([sum(mark.rows for mark in border) for border in whole]).max() > 3 * sizes.mean()


@pytest.mark.promise("P3", control=True)
def test_every_byte_that_is_read_is_verified(tmp_path: Path) -> None:
    count = 40_000
    rows = np.stack([np.arange(count) // 7, np.arange(count), np.arange(count)], axis=1)
    exchange, (run,) = published(tmp_path, [rows], by_time=False)
    path = next((tmp_path / "a.stoker.parts").rglob("run0.c1"))
    data = bytearray(path.read_bytes())
    data[128 + 3 * HASH_BYTES + 5] ^= 1
    path.write_bytes(data)
    first_bad = 3 * HASH_BYTES // 8
    assert np.array_equal(run.step[1].read(0, first_bad), np.arange(first_bad))
    with pytest.raises(StoreDamagedError, match=r"run0.c1 is damaged \(bytes 196,736 to 262,272\)"):
        run.step[1].read(first_bad + 100, first_bad + 101)
    with pytest.raises(StoreDamagedError):
        run.verify()
    path.write_bytes(data[: 128 + HASH_BYTES])
    with pytest.raises(StoreDamagedError):
        run.step[1].read(first_bad - 1, first_bad)
    path.unlink()
    with pytest.raises(StoreDamagedError, match="is missing"):
        run.step[1].read(0, 1)
    assert exchange.label.endswith(".parts")
