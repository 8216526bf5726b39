"""What does sorting keys as packed numbers gain over NumPy's stable sort, and a pack of scattered rows over that of an older tree?

The older tree is a folder with `src`, for example from `git archive COMMIT src | tar x -C FOLDER`. Both trees pack the same file in
fresh processes, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import record
from stoker.store.pack.blocks import stable_order

QUESTION = (
    "How much faster is a stable order of integer keys than np.lexsort, and what share of an older tree's CPU time is a pack?"
)

CHILD = """
import json, os, sys
import stoker
source, target, memory = sys.argv[1:]
time, resources = stoker.Time("ts", duplicates="keep"), stoker.Resources(memory=memory, threads=2)
shape = dict(series="key", time=time, sort=True, resources=resources, replace=True)
stoker.pack({"key": [1, 1], "ts": [2, 1], "x": [0.5, 1.5]}, target, **shape)  # imports are not measured
start = os.times()
store = stoker.pack(source, target, **shape)
end = os.times()
user, system = end.user - start.user, end.system - start.system
print(json.dumps({"CPU": user + system, "kernel": system, "digest": store.digest}))
"""


def main() -> None:
    """Keys of several widths, in process CPU time; then both trees, if there is an older one."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--old", type=Path, help="The older tree: a folder with src.")
    parser.add_argument("--rows", type=int, default=20_000_000, help="Rows of the pack.")
    parser.add_argument("--memory", default="256MB", help="Memory of the pack.")
    parser.add_argument("--pack-rounds", type=int, default=3)
    options = parser.parse_args()
    rows, rounds = (20_000, 2) if options.small else (100_000, options.rounds)
    rng = np.random.default_rng(0)
    ids, times = rng.integers(0, 50_000, rows), 1_600_000_000_000_000_000 + rng.integers(0, 10**17, rows)
    keys = {
        "50,000 keys": (ids,),
        "nanoseconds of three years": (times,),
        "64 bits": (rng.integers(-(2**63), 2**63 - 1, rows),),
        "250 keys, then nanoseconds of three years": (ids % 250, times),
        "50,000 keys, then nanoseconds of three years": (ids, times),
    }
    answer: dict[str, object] = {"rows": rows, "rounds": rounds}
    for name, values in keys.items():
        sides = {"numpy": lambda v=values: np.lexsort(v[::-1]), "packed": lambda v=values: stable_order(*v)}
        seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
        answer[name] = {
            "times faster": record.ratio(seconds["numpy"], seconds["packed"]),
            "nanoseconds per row": round(1e9 * min(seconds["packed"]) / rows, 1),
            "equal": bool((np.lexsort(values[::-1]) == stable_order(*values)).all()),
        }
    if options.old is not None:
        answer["pack of scattered rows"] = compare_packs(options.old, options.rows, options.memory, options.pack_rounds)
    print(answer) if options.small else record.save("bench_sort", QUESTION, answer)


def compare_packs(old: Path, rows: int, memory: str, rounds: int) -> dict[str, Any]:
    """CPU time of packing one file whose rows are in no order, by both trees."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOKER_BENCH_DIR")) as name:
        source, target = Path(name) / "rows.parquet", Path(name) / "rows.stoker"
        rng = np.random.default_rng(0)
        columns = {
            "key": rng.integers(0, 50_000, rows),
            "ts": rng.integers(1_600_000_000_000_000_000, 1_700_000_000_000_000_000, rows),
        }
        columns |= {"x": rng.normal(size=rows), "y": rng.normal(size=rows), "z": np.round(rng.normal(size=rows), 2)}
        pq.write_table(pa.table(columns), source)
        del columns
        measured: dict[str, list[dict[str, Any]]] = {"old": [], "new": []}
        for _ in range(rounds):
            for side, sources in (("old", [old.resolve() / "src"]), ("new", record.SOURCES)):
                command = [sys.executable, "-c", CHILD, str(source), str(target), memory]
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=name)
                measured[side].append(json.loads(done.stdout))
    seconds = {side: {part: [each[part] for each in runs] for part in ("CPU", "kernel")} for side, runs in measured.items()}
    return {
        "rows": rows,
        "memory": memory,
        "new over old, CPU time": record.ratio(seconds["new"]["CPU"], seconds["old"]["CPU"]),
        "CPU seconds": {side: record.spread(parts["CPU"]) for side, parts in seconds.items()},
        "of these in the kernel": {side: record.spread(parts["kernel"]) for side, parts in seconds.items()},
        "equal digests": len({each["digest"] for runs in measured.values() for each in runs}) == 1,
    }


if __name__ == "__main__":
    main()
