"""What does opening cost with 48 million series: time, and memory of the process's own?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record
from stoker._disk import write_file
from stoker.store import manifest as manifests
from stoker.store.manifest import ColumnEntry, Manifest, NonFinite
from stoker.store.shards import ColumnFile

QUESTION = "What does opening a store of 48 million series cost, next to one of ten?"

CHILD = """
import json, sys, time
import stoker, stoker.store.appended
def private():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(("Private_Clean", "Private_Dirty"))) / 1024
before = private()
start = time.perf_counter()
store = stoker.open(sys.argv[1])
opened = time.perf_counter() - start
last = store[len(store) - 1]["x"]
done = time.perf_counter() - start
print(json.dumps({"series": len(store), "open seconds": opened, "open and read the last series seconds": done,
                  "private MB of the process": private(), "private MB by opening": private() - before, "last": int(last[-1])}))
"""


def main() -> None:
    """Build both stores, then open each in fresh processes, interleaved."""
    options = record.arguments(QUESTION)
    sizes, rounds = ((10, 480_000), 2) if options.small else ((10, 48_000_000), options.rounds or 7)
    runs: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOKER_BENCH_DIR")) as name:
        for size in sizes:
            build(Path(name) / str(size), size)
        for _ in range(rounds + 1):
            for size in sizes:
                command = [sys.executable, "-c", CHILD, str(Path(name) / str(size))]
                runs[size].append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    keys = ("open seconds", "open and read the last series seconds", "private MB of the process", "private MB by opening")
    answer: dict[str, Any] = {
        f"{size:,} series": {key: record.spread([one[key] for one in counted[1:]]) for key in keys}
        for size, counted in runs.items()
    }
    small, large = ([run["open seconds"] for run in runs[size][1:]] for size in sizes)
    answer["open seconds, large over small"] = record.ratio(large, small)
    answer["last value right"] = all(one["last"] == size % 100 for size, counted in runs.items() for one in counted)
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_open", QUESTION, answer)


def build(folder: Path, num_series: int) -> None:
    """A store of short ragged series, written part by part."""
    folder.mkdir()
    offsets = ColumnFile.create(folder / "o", np.dtype("<i8"))
    values = ColumnFile.create(folder / "x", np.dtype("<i2"))
    offsets.append(np.zeros(1, dtype="<i8"))
    end = 0
    for start in range(0, num_series, 1 << 20):
        lengths = np.arange(start, min(start + (1 << 20), num_series)) % 3 + 1
        ends = end + np.cumsum(lengths)
        end = int(ends[-1])
        offsets.append(ends)
        values.append(np.full(int(lengths.sum()), num_series % 100, dtype="<i2"))
    column = ColumnEntry(
        name="x",
        level="step",
        kind="number",
        unit=None,
        values=values.seal(folder),
        texts=None,
        missing=0,
        nonfinite=NonFinite(nan=0, inf=0, first=None),
    )
    manifest = Manifest(
        format="stoker",
        version=1,
        digest="",
        num_series=num_series,
        num_steps=end,
        length=None,
        offsets=offsets.seal(folder),
        key=None,
        time=None,
        columns=[column],
        notes=[],
        sources=[],
    )
    write_file(folder / "manifest.json", manifests.dump(manifest))


if __name__ == "__main__":
    main()
