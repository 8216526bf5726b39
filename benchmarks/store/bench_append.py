"""What does an append cost next to a full pack, and a store with a thousand appends next to a compacted one?"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

import stoker
from benchmarks import record

QUESTION = "What does an append of 1 % cost next to a full pack, and opening after 1,000 appends next to a compacted store?"
SERIES = 370


def hours(first: int, count: int) -> pa.Table:
    """Rows of all series, hour by hour, as meters deliver them."""
    rng = np.random.default_rng(first)
    index = np.repeat(np.arange(first, first + count), SERIES)
    times = pa.array(index * 3600, pa.timestamp("s"))
    meters = pa.array([f"MT_{i:03d}" for i in range(SERIES)]).take(pa.array(np.tile(np.arange(SERIES), count)))
    return pa.table(
        {"meter": meters, "time": times, "load": rng.normal(size=len(index)).round(3), "level": rng.integers(0, 9, len(index))}
    )


def is_same(one: stoker.Store, other: stoker.Store) -> bool:
    """Whether two stores hold the same series and values, bit for bit."""
    names = [name for name, column in one.schema.items() if column.dtype is not None]
    keys = list(one.texts("meter")) == list(other.texts("meter"))
    return (
        keys and np.array_equal(one.offsets, other.offsets) and all(np.array_equal(one.column(n), other.column(n)) for n in names)
    )


def write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        pq.write_table(table, path)


def appending(folder: Path, suffix: str, num_hours: int, rounds: int) -> dict[str, Any]:
    """A pack of all rows and an append of the last percent, in turn."""
    old, new, whole = (folder / f"{name}{suffix}" for name in ("old", "new", "whole"))
    cut = num_hours - num_hours // 100
    write(hours(0, cut), old)
    write(hours(cut, num_hours - cut), new)
    write(pa.concat_tables([hours(0, cut), hours(cut, num_hours - cut)]), whole)
    stoker.pack(old, folder / "base", series="meter", time="time")
    seconds: dict[str, list[float]] = {"append": [], "pack": []}
    wall: dict[str, list[float]] = {"append": [], "pack": []}
    store, full = folder / "store", folder / "full"
    for number in range(rounds + 1):
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(full, ignore_errors=True)
        shutil.copytree(folder / "base", store)
        for name, run in (
            ("pack", lambda: stoker.pack(whole, full, series="meter", time="time")),
            ("append", lambda: stoker.append(store, new)),
        ):
            start, start_wall = time.process_time(), time.perf_counter()
            run()
            if number:
                seconds[name].append(time.process_time() - start)
                wall[name].append(time.perf_counter() - start_wall)
    same = is_same(stoker.open(store), stoker.open(full))
    for path in (old, new, whole):
        path.unlink()
    for path in (folder / "base", store, full):
        shutil.rmtree(path)
    return {
        "rows": num_hours * SERIES,
        "new rows": (num_hours - cut) * SERIES,
        "append CPU seconds": record.spread(seconds["append"]),
        "pack CPU seconds": record.spread(seconds["pack"]),
        "append over pack, CPU time": record.ratio(seconds["append"], seconds["pack"]),
        "append over pack, wall time": record.ratio(wall["append"], wall["pack"]),
        "equal to a full pack": same,
    }


def opening(folder: Path, num_appends: int, rounds: int) -> dict[str, Any]:
    """Open, and open and read a column, of a store with many parts and of its compacted copy."""
    stoker.pack(hours(0, 100), folder / "store", series="meter", time="time")
    costs = []
    for number in range(num_appends):
        table = hours(100 + number, 1)
        start = time.process_time()
        stoker.append(folder / "store", table)
        costs.append(time.process_time() - start)
    stoker.compact(folder / "store", folder / "plain")
    same = is_same(stoker.open(folder / "store"), stoker.open(folder / "plain"))
    repeats = 50
    opened: dict[str, list[float]] = {"store": [], "plain": []}
    read: dict[str, list[float]] = {"store": [], "plain": []}
    for number, name in itertools.product(range(rounds + 1), opened):
        start = time.process_time()
        for _ in range(repeats):
            stoker.open(folder / name)
        elapsed = (time.process_time() - start) / repeats
        start = time.process_time()
        stoker.open(folder / name).column("load").sum()
        if number:
            opened[name].append(elapsed)
            read[name].append(time.process_time() - start)
    tenth = max(1, num_appends // 10)
    return {
        "appends": num_appends,
        "equal to the compacted store": same,
        "open CPU seconds": record.spread(opened["store"]),
        "open the compacted store CPU seconds": record.spread(opened["plain"]),
        "open over compacted, CPU time": record.ratio(opened["store"], opened["plain"]),
        "open and read a column CPU seconds": record.spread(read["store"]),
        "open and read a column of the compacted store CPU seconds": record.spread(read["plain"]),
        "append CPU seconds, first tenth of the appends": float(f"{statistics.median(costs[:tenth]):.4g}"),
        "append CPU seconds, last tenth of the appends": float(f"{statistics.median(costs[-tenth:]):.4g}"),
    }


def main() -> None:
    """Measure both formats, then the store with many parts."""
    options = record.arguments(QUESTION)
    num_hours, num_appends, rounds = (600, 10, 2) if options.small else (26_304, 1000, options.rounds or 5)
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOKER_BENCH_DIR")) as name:
        folder = Path(name)
        answer: dict[str, Any] = {
            "CSV": appending(folder, ".csv", num_hours, rounds),
            "Parquet": appending(folder, ".parquet", num_hours, rounds),
            "many appends": opening(folder, num_appends, rounds),
        }
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_append", QUESTION, answer)


if __name__ == "__main__":
    main()
