"""Bounded memory: files of any length are analysed in the memory that the limits say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCRIPT = """
import pathlib, re, sys
from stoker_recipes.tabular import analyze
statistics = analyze(sys.argv[1:], exact=1 << 16, threads=2)
status = pathlib.Path("/proc/self/status").read_text()
print(statistics.num_rows, int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
"""
ROWS = 1_000_000


@pytest.mark.promise("P4")
@pytest.mark.slow
def test_files_of_any_length_are_analysed_in_the_same_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    moments = rng.integers(0, 2**50, ROWS).astype("M8[us]")
    texts = pa.array([f"text {i}" for i in range(100_000)]).take(pa.array(rng.integers(0, 100_000, ROWS)))
    table = pa.table({"x": rng.normal(size=ROWS), "when": moments, "text": texts})
    paths = [tmp_path / f"{i}.parquet" for i in range(24)]
    pq.write_table(table, paths[0])
    for path in paths[1:]:
        path.hardlink_to(paths[0])
    few, many = (peak_of(some) for some in (paths[:4], paths))
    assert many - few < 0.2 * 20 * table.nbytes  # what the allocators keep; twenty files more hold five times as much


def peak_of(paths: list[Path]) -> int:
    """The peak of a process that analyses these files."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    num_rows, peak = map(int, done.stdout.split())
    assert num_rows == len(paths) * ROWS
    return peak
