"""What does splitting numbers into digits cost, next to printing each of them as mostlyai-engine does?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks import record
from benchmarks.before.mostlyai_digits import split_printed
from stoker_recipes.tabular import join_digits, split_digits

QUESTION = "What does splitting numbers into digits cost, next to printing each of them?"

Array = npt.NDArray[np.float64]

FRESH = """
import json, sys, time
import numpy as np, pandas, stoker_recipes.tabular as encode
values = np.random.default_rng(0).normal(size=5000) * 1e9
seconds = {}
for name, run in {
    "split": lambda: encode.split_digits(values),
    "frame": lambda: encode.split_digits(values, frame=True),
    "join": lambda: encode.join_digits(encode.split_digits(values)),
}.items():
    start = time.process_time()
    run()
    seconds[name] = time.process_time() - start
print(json.dumps(seconds))
"""

PEAK = """
import json, sys
from pathlib import Path
import numpy as np, pandas, stoker_recipes.tabular as encode
values = np.round(np.random.default_rng(0).lognormal(4, 2, int(sys.argv[1])), 2)

def high_water():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

beyond = {}
for name, run, width in [
    ("frame", lambda x: encode.split_digits(x, frame=True), 29 * 8),
    ("int8", lambda x: encode.split_digits(x).matrix, 29),
]:
    run(values[:5000])
    Path("/proc/self/clear_refs").write_text("5")
    before = high_water()
    kept = run(values)
    beyond[name] = (high_water() - before) / len(values), width
    del kept
print(json.dumps(beyond))
"""


def main() -> None:
    """Ratios at 100,000 rows, costs at a million, memory and compile time; all in process CPU time of one thread."""
    options = record.arguments(QUESTION)
    few, many, rounds = (2_000, 20_000, 2) if options.small else (100_000, 1_000_000, options.rounds or 7)
    rng = np.random.default_rng(0)
    answer: dict[str, Any] = {"rows beside the old way": few, "rows alone": many, "rounds": rounds}
    answer["times faster than printing, as a drop-in frame"] = {
        name: beside(make(rng, few), rounds) for name, make in COLUMNS.items() if name != "integers"
    }
    answer["nanoseconds per value"] = {name: alone(make(rng, many), rounds) for name, make in COLUMNS.items()}
    answer["peak bytes per row, and those of the result"] = in_fresh_process(PEAK, str(many))
    answer["seconds of a process's first call"] = first_calls(compiled=options.small)
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_digits", QUESTION, answer)


COLUMNS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "money": lambda rng, rows: np.round(rng.lognormal(4, 2, rows), 2),
    "normals": lambda rng, rows: rng.normal(size=rows),
    "integers": lambda rng, rows: rng.integers(-(10**9), 10**9, rows).astype(np.float64),
}


def beside(values: Array, rounds: int) -> dict[str, Any]:
    """Both ways on one column, in turn."""
    column = pd.Series(values)
    sides: dict[str, Callable[[], Any]] = {
        "printed": lambda: split_printed(column),
        "split": lambda: split_digits(column, frame=True),
    }
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    pd.testing.assert_frame_equal(sides["split"](), sides["printed"](), check_exact=True)
    return {
        "ratio": record.ratio(seconds["printed"], seconds["split"]),
        "nanoseconds per value": {name: round(1e9 * min(times) / len(values), 1) for name, times in seconds.items()},
        "frames equal": True,
    }


def alone(values: Array, rounds: int) -> dict[str, Any]:
    """What each use costs; the limit of a frame is to fill fresh memory of its size with zeros."""
    digits = split_digits(values)
    column = pd.Series(values)
    sides: dict[str, Callable[[], Any]] = {
        "limit: as many bytes as the frame": lambda: np.empty((29, len(values)), dtype=np.int64).fill(0),
        "drop-in frame": lambda: split_digits(column, frame=True),
        "int8": lambda: split_digits(values),
        "int8, all places": lambda: split_digits(values, max_decimal=49, min_decimal=-20),
        "join": lambda: join_digits(digits),
    }
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    return {name: record.spread([1e9 * one / len(values) for one in times]) for name, times in seconds.items()}


def first_calls(*, compiled: bool) -> dict[str, Any]:
    """With an empty cache and with the one that this leaves, or only with the cache of this machine."""
    if compiled:
        return {"that finds kernels compiled": _not_tried(in_fresh_process(FRESH))}
    with tempfile.TemporaryDirectory() as folder:
        first, second = (in_fresh_process(FRESH, NUMBA_CACHE_DIR=folder) for _ in range(2))
    return {"that compiles": _not_tried(first), "that finds kernels compiled": _not_tried(second)}


def in_fresh_process(code: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """What a new interpreter prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _not_tried(seconds: dict[str, float]) -> dict[str, float]:
    return {**{name: round(one, 3) for name, one in seconds.items()}, "together": round(sum(seconds.values()), 2)}


if __name__ == "__main__":
    main()
