"""What does it cost to analyse a table: next to mostlyai-engine's way for one column, and for 50 columns of a million rows?

Both sides are given the same pandas column and give the same JSON, which is checked. Times are CPU times of the process,
with one thread, except for the wide table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import record
from benchmarks.before import mostlyai_statistics as before
from stoker_recipes.tabular import analyze
from stoker_recipes.tabular.statistics.numbers import DigitRanges
from stoker_recipes.tabular.statistics.quantiles import EXACT, KeyRun, closest_positions, float_keys, whole_keys

QUESTION = "What does it cost to analyse a column, and 50 columns of a million rows, next to the way of mostlyai-engine?"

CHILD = """
import json, re, sys, time
import numpy as np
import stoker_recipes.tabular
num_rows, num_columns, threads = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
makers = [
    lambda: np.round(rng.gamma(2, 150, num_rows), 2),
    lambda: rng.normal(size=num_rows),
    lambda: rng.integers(0, 100_000, num_rows),
    lambda: rng.normal(size=num_rows).astype(np.float32),
    lambda: rng.integers(0, 2**62, num_rows),
]
table = {f"c{i}": makers[i % len(makers)]() for i in range(num_columns)}
stoker_recipes.tabular.analyze({name: column[:5000] for name, column in table.items()})
memory = lambda: {name: int(kb) / 1024 for name, kb in re.findall(r"Vm(HWM|RSS):\\s+(\\d+)", open("/proc/self/status").read())}
before, start, cpu = memory()["RSS"], time.perf_counter(), time.process_time()
statistics = stoker_recipes.tabular.analyze(table, threads=threads)
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "cpu seconds": time.process_time() - cpu,
    "peak MB beside the table": memory()["HWM"] - before,
    "MB of the result": memory()["RSS"] - before,
    "bytes of the report": len(statistics.to_json()),
}))
"""

FRESH = """
import time
import numpy as np, pandas, stoker_recipes.tabular
analyze = stoker_recipes.tabular.analyze  # imports the compiler
rng = np.random.default_rng(0)
moments = rng.integers(0, 2**50, 5000).astype("M8[us]")
table = {"float": rng.normal(size=5000), "int": rng.integers(0, 2**62, 5000), "text": ["a", "b"] * 2500, "date": moments}
start = time.process_time()
analyze(table)
print(time.process_time() - start)
"""


def columns(num_rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "money": np.round(rng.gamma(2, 150, num_rows), 2),
        "normals": rng.normal(size=num_rows),
        "integers": rng.integers(0, 100_000, num_rows),
    }


def main() -> None:
    options = record.arguments(QUESTION)
    rounds = options.rounds or (2 if options.small else 5)
    few, many = (2_000, 20_000) if options.small else (100_000, 1_000_000)
    answer: dict[str, Any] = {"rounds": rounds}
    answer[f"analyze_numeric, {few:,} rows"] = {name: compare(values, rounds) for name, values in columns(few).items()}
    answer[f"analyze_numeric, {many:,} rows"] = {"money": compare(columns(many)["money"], 1)}
    # All from 100 to 101 with 17 digits: no block can be left out, and none is placed by the short way.
    worst = {"the worst case": np.random.default_rng(0).uniform(100, 101, many)}
    every = {**columns(many), **worst}
    answer[f"nanoseconds per value, {many:,} rows"] = {name: costs(values, rounds) for name, values in every.items()}
    width, threads = (10, (2,)) if options.small else (50, (1, 2))
    answer[f"{width} columns x {many:,} rows"] = {f"{count} threads": wide(many, width, count, rounds) for count in threads}
    answer["a sketch"] = sketch(20 * many, EXACT >> 8 if options.small else EXACT)
    answer["CPU seconds of the first use on a machine, and in a later process"] = first_use(compiled=options.small)
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_statistics", QUESTION, answer)


def compare(values: Any, rounds: int) -> dict[str, Any]:
    """One column both ways, in one interleaved run."""
    frame = pd.DataFrame({"x": values})
    keys = before.subjects(frame["x"])
    found: dict[str, Any] = {}
    sides: dict[str, Callable[[], Any]] = {
        "before": lambda: found.update(before=before.analyze_numeric(frame["x"], keys)),
        "stoker": lambda: found.update(stoker=analyze(frame, threads=1)["x"].analysis()),
    }
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    if json.dumps(found["before"]) != json.dumps(found["stoker"]):
        raise SystemExit("the two ways do not give the same JSON")
    return {
        "JSON equal": True,
        "milliseconds": {name: record.spread([1e3 * one for one in several]) for name, several in seconds.items()},
        "times as fast": record.ratio(seconds["before"], seconds["stoker"]),
    }


def costs(values: Any, rounds: int) -> dict[str, Any]:
    """All of it, the digits alone, and the sort next to NumPy's; and the scratch of the digits."""
    form: Any = "float" if values.dtype.kind == "f" else "int"
    keys = float_keys(values)[0] if form == "float" else whole_keys(values)
    run = KeyRun.of(keys.copy())
    sides: dict[str, Callable[[], Any]] = {
        "all": lambda: analyze({"x": values}, threads=1),
        "digit ranges": lambda: DigitRanges().add(run.keys, form),
        "sort and count": lambda: KeyRun.of(keys.copy()),
        "np.sort": partial(np.sort, keys),
    }
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    tracemalloc.start()
    DigitRanges().add(run.keys, form)
    scratch = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        **{name: record.spread([1e9 * one / len(values) for one in several]) for name, several in seconds.items()},
        "different values": len(run),
        "digit ranges, bytes of scratch a row": round(scratch / len(values), 3),
    }


def wide(num_rows: int, num_columns: int, threads: int, rounds: int) -> dict[str, Any]:
    """In processes of their own, so that the memory is that of the analysis."""
    command = [sys.executable, "-c", CHILD, str(num_rows), str(num_columns), str(threads)]
    runs = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(min(rounds, 2))]
    return {name: record.spread([run[name] for run in runs]) for name in runs[0]}


def first_use(*, compiled: bool) -> list[float]:
    """With an empty cache and with the one that this leaves, or only with the cache of this machine."""
    with tempfile.TemporaryDirectory() as cache:
        environment = dict(os.environ) if compiled else {**os.environ, "NUMBA_CACHE_DIR": cache}
        command = [sys.executable, "-c", FRESH]
        return [
            round(float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout), 2)
            for _ in range(1 if compiled else 2)
        ]


def sketch(num_values: int, exact: int) -> dict[str, Any]:
    """More values than are kept: the cost, the stated error, and the true one."""
    values = np.random.default_rng(0).normal(size=num_values)
    start = time.process_time()
    column: Any = analyze({"x": values}, exact=exact, threads=1)["x"]
    cpu = time.process_time() - start
    positions = closest_positions(num_values, np.linspace(0, 1, 1001))
    true = np.abs(np.searchsorted(np.sort(values), column.quantiles) - positions).max()
    if not 0 < true <= column.rank_error:
        raise SystemExit(f"a quantile is {true} ranks off, which the sketch says are at most {column.rank_error}")
    return {
        "values": num_values,
        "nanoseconds per value": float(f"{1e9 * cpu / num_values:.4g}"),
        "stated rank error": column.rank_error,
        "true rank error": int(true),
        "stated share": float(f"{column.rank_error / num_values:.3g}"),
    }


if __name__ == "__main__":
    main()
