"""Bounded memory: what a pack holds at a time follows from the memory it was given, not from the size of its input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.shrink import shrunk

from stoker import Csv, pack
from stoker.store import DataSource, RowLocation, TableSource
from stoker.store.formats.arrow import ArrowSource
from stoker.store.formats.csv import CsvSource
from stoker.store.formats.parquet import ParquetSource
from stoker.store.pack.merge import RunCursor
from stoker.store.pack.sorted_runs import Sorter

CHUNK = 1 << 18


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {"k": rng.integers(0, 1000, 100_000), "x": rng.normal(size=100_000), "w": [f"w{i % 9}" for i in range(100_000)]}
    )


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "memory"])
def test_chunks_have_about_the_size_that_was_asked_for(tmp_path: Path, table: pa.Table, form: str) -> None:
    source: DataSource
    if form == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")  # a single row group
        source = ParquetSource(tmp_path / "a.parquet", "a")
    elif form == "arrow":
        with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
            writer.write_table(table)
        source = ArrowSource(tmp_path / "a.arrow", "a")
    elif form == "csv":
        pa.csv.write_csv(table, tmp_path / "a.csv")
        source = CsvSource(tmp_path / "a.csv", "a", Csv())
    else:
        source = TableSource(table, "a")
    sizes = [task().table.nbytes for task in source.read(source.schema(), start=RowLocation(), chunk_bytes=CHUNK)]
    assert len(sizes) > 5
    assert max(sizes) <= 2 * CHUNK


def test_repeated_values_do_not_swell_a_chunk(tmp_path: Path) -> None:
    """A few bytes of Parquet may stand for millions of equal values: rows count, not bytes of the file."""
    pq.write_table(pa.table({"x": np.zeros(2_000_000), "w": ["same text"] * 2_000_000}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    source = ParquetSource(tmp_path / "a.parquet", "a")
    sizes = [task().table.nbytes for task in source.read(None, start=RowLocation(), chunk_bytes=CHUNK)]
    assert max(sizes) <= 2 * CHUNK


@pytest.mark.promise("P4")
def test_rows_that_wait_to_be_sorted_are_bounded(tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    flush = Sorter.flush

    def watched(self: Sorter) -> None:
        sizes.append(sum(block.num_bytes for block in self._gathered))
        flush(self)

    monkeypatch.setattr(Sorter, "flush", watched)
    with shrunk(chunk_bytes=10_000, run_bytes=50_000, fan_in=64):
        store = pack(table.slice(0, 20_000), tmp_path / "out", series="k")
    assert len(store) == 1000
    assert len(sizes) > 5
    assert max(sizes) < 50_000 + 2 * 10_000


@pytest.mark.promise("P4")
def test_a_merge_holds_a_part_of_each_run(tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    load: Any = RunCursor.load

    def watched(self: RunCursor) -> bool:
        nonlocal most
        more = bool(load(self))
        most = max(most, len(self._block.step[0]) if self._block is not None else 0)
        return more

    monkeypatch.setattr(RunCursor, "load", watched)
    with shrunk(chunk_bytes=20_000, run_bytes=100_000, fan_in=64):
        pack(table.slice(0, 20_000), tmp_path / "out", series="k")
    assert 0 < most <= 2 * 16


SCRIPT = """
import json, pathlib, re, sys
from stoker import Resources, pack
store = pack(sys.argv[1], sys.argv[2], series="k", resources=Resources(memory="256MB", threads=2), **json.loads(sys.argv[3]))
status = pathlib.Path("/proc/self/status").read_text()  # getrusage would count the parent's memory before the exec too
print(json.dumps({"peak": int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024, "steps": store.num_steps}))
"""


@pytest.mark.promise("P4")
@pytest.mark.promise("P25")
@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv", "changed"])
def test_an_input_larger_than_the_memory_is_packed_within_it(tmp_path: Path, form: str) -> None:
    rng = np.random.default_rng(0)
    rows, parts = 4_000_000, 5
    (tmp_path / "in").mkdir()
    for i in range(parts):
        columns = {"k": rng.integers(0, 200_000, rows), "x": rng.normal(size=rows), "y": rng.integers(0, 2**60, rows)}
        if form != "csv":
            pq.write_table(pa.table(columns), tmp_path / "in" / f"{i}.parquet", compression="none", use_dictionary=False)
        else:
            pa.csv.write_csv(pa.table(columns).slice(0, rows // 4), tmp_path / "in" / f"{i}.csv")
    changes = {"sql": "SELECT *, x * 2 AS z FROM source WHERE x > -100"} if form == "changed" else {}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "in"), str(tmp_path / "out"), json.dumps(changes)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == (rows if form != "csv" else rows // 4) * parts
    assert found["peak"] <= (384 if form == "changed" else 256) << 20  # a statement may use half as much again
