"""How much memory does a pack take whose input is ten times larger than the memory it was given, keys in any order?

Rows of each key lie far apart, over all files. The child's peak resident set is what the kernel counted (`ru_maxrss`);
the way that people have today (`before/group_in_memory.py`) runs on the same files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

import stoker
from benchmarks import record

QUESTION = "What is the peak memory of a pack with --memory 256MB of an input ten times as large, grouped by scattered keys?"

ROW_BYTES = 5 * 8

CHILD = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"ok": done.returncode == 0, "seconds": time.perf_counter() - start, "peak MB": usage.ru_maxrss / 1024}))
"""


def main() -> None:
    """CSV and Parquet, with integer and with text keys."""
    options = record.arguments(QUESTION)
    files, rows = (4, 50_000) if options.small else (20, 0)
    answer: dict[str, Any] = {"memory given MB": 256}
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOKER_BENCH_DIR")) as name:
        for suffix, key in (("parquet", "integer"), ("csv", "integer"), ("parquet", "text")):
            folder = Path(name) / f"{suffix}-{key}"
            folder.mkdir()
            write(folder, suffix, key, files, rows or (3_400_000 if suffix == "parquet" else 3_000_000))
            answer[f"{suffix}, {key} keys"] = measure(folder, Path(name))
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_memory", QUESTION, answer)


def write(folder: Path, suffix: str, key: str, files: int, rows: int) -> None:
    """Files whose rows belong to random keys."""
    for number in range(files):
        rng = np.random.default_rng(number)
        keys = rng.integers(0, 50_000, rows)
        table = pa.table(
            {
                "key": pa.array([f"sensor-{i:05d}" for i in range(50_000)]).take(pa.array(keys)) if key == "text" else keys,
                "order": np.arange(number * rows, (number + 1) * rows),
                "x": rng.normal(size=rows),
                "y": rng.normal(size=rows),
                "z": rng.integers(0, 1000, rows),
            }
        )
        path = folder / f"part-{number:03d}.{suffix}"
        (pq.write_table if suffix == "parquet" else pa_csv.write_csv)(table, path)


def measure(folder: Path, scratch: Path) -> dict[str, Any]:
    """Pack in a child, then group with pandas in another; compare what both hold."""
    store, before = scratch / "out.stoker", scratch / "before"
    pack = [
        sys.executable,
        "-m",
        "stoker",
        "pack",
        str(folder),
        str(store),
        "--series",
        "key",
        "--time",
        "order",
        "--memory",
        "256MB",
    ]
    packed = _child(pack)
    input_bytes = sum(path.stat().st_size for path in folder.iterdir())
    value_bytes = stoker.open(store).num_steps * ROW_BYTES
    grouped = _child([sys.executable, "-m", "benchmarks.before.group_in_memory", str(folder), str(before), "key"])
    result = {
        "input MB on disk": round(input_bytes / 1e6),
        "input MB as values": round(value_bytes / 1e6),
        "input over memory given": round(max(input_bytes, value_bytes) / (256 << 20), 2),
        "pack": packed,
        "group in memory with pandas": grouped,
        "equal": _equal(store, before, text=folder.name.startswith("csv")) if grouped["ok"] else None,
    }
    subprocess.run(["rm", "-rf", str(store), str(before), str(folder)], check=True)
    return result


def _child(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, (*record.SOURCES, record.ROOT)))}
    output = subprocess.run(
        [sys.executable, "-c", CHILD, *command], capture_output=True, text=True, check=True, env=environment, cwd=record.ROOT
    )
    found: dict[str, Any] = json.loads(output.stdout)
    return {name: round(value, 1) if isinstance(value, float) else value for name, value in found.items()}


def _equal(path: Path, before: Path, *, text: bool) -> dict[str, bool]:
    """Order and integers bit for bit. Floats of CSV within one unit in the last place: pandas' reader rounds so."""
    store = stoker.open(path)
    exact = np.array_equal(store.offsets, np.load(before / "offsets.npy", mmap_mode="r"))
    close = True
    for name in ("order", "x", "y", "z"):
        ours, theirs = store.column(name), np.load(before / f"{name}.npy", mmap_mode="r")
        if text and name in ("x", "y"):
            close &= bool(np.allclose(ours, theirs, rtol=2.0**-52, atol=0))
        else:
            exact &= np.array_equal(ours, theirs)
    return {"bit for bit": exact, "floats of text within one ulp": close}


if __name__ == "__main__":
    main()
