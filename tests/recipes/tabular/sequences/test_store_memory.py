"""Bounded memory: events larger than the memory become the sequences of listed contexts within it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCRIPT = """
import pathlib, re, sys
from stoker.cli.main import main
if sys.argv.pop(1) == "with the compiler":
    import stoker_recipes.tabular.sequences.kernels
main()
status = pathlib.Path("/proc/self/status").read_text()  # getrusage would count the parent's memory before the exec too
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
"""
MEMORY = 256 << 20


def encode(folder: Path, first: str = "") -> tuple[int, int]:
    """Run the command with 256 MB; returns the steps of the store, and the peak of the process."""
    words = [str(folder / "in"), str(folder / "out"), "--key", "k", "--context", str(folder / "users.parquet")]
    words += ["--memory", "256MB", "--threads", "2", "--overwrite", "--json"]
    command = [sys.executable, "-c", SCRIPT, first, "tabular", "encode", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, peak = done.stdout.splitlines()
    return json.loads(told)["num_steps"], int(peak)


@pytest.mark.promise("P4")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_events_larger_than_the_memory_become_the_sequences_of_contexts_within_it(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    rows, num_keys = 4_000_000, 200_000
    names = pa.array([f"user-{i}" for i in range(num_keys + 1000)]) if kind == "texts" else pa.array(np.arange(num_keys + 1000))
    (tmp_path / "in").mkdir()
    num_steps = 0
    for i in range(3):
        keys = rng.integers(0, num_keys, rows)
        num_steps += int((keys >= num_keys // 2).sum())
        columns = {"k": names.take(pa.array(keys)), "x": rng.normal(size=rows), "y": rng.integers(0, 2**60, rows)}
        pq.write_table(pa.table(columns), tmp_path / "in" / f"{i}.parquet", compression="none", use_dictionary=False)
    pq.write_table(pa.table({"k": names[num_keys // 2 :]}), tmp_path / "users.parquet")
    assert sum(path.stat().st_size for path in (tmp_path / "in").iterdir()) > MEMORY
    steps, peak = encode(tmp_path)
    assert steps == num_steps
    assert peak <= MEMORY
    if kind == "numbers":  # the control: what was done without takes more than there is
        assert encode(tmp_path, "with the compiler")[1] > MEMORY
