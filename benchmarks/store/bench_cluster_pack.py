"""How much faster is a pack on a Ray cluster of two nodes than on one, each with one core? (`make test-scale` installs Ray.)

Rows come from CSV files, plain and compressed, in the order of their times; half of them belong to one user. Nodes are started and have
imported everything before the clock runs. Besides wall time, CPU time is recorded: the critical path is that of the slowest process of
each phase, which other programs on the machine hardly change.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

import stoker
from benchmarks import record

QUESTION = "How much faster is a pack on two Ray nodes of one core than on one?"
OPTIONS: dict[str, Any] = {"series": "user", "time": "ts", "sort": True, "threads": 1}


def write_inputs(folder: Path, rows: int, files: int, *, compressed: bool = False) -> str:
    """CSV files of events, written by all cores."""
    folder.mkdir(exist_ok=True)
    paths = [folder / (f"{i:02}.csv.gz" if compressed else f"{i:02}.csv") for i in range(files)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(write_input, paths, range(files), [rows // files] * files))
    return str(folder / "*.csv*")


def write_input(path: Path, number: int, count: int) -> None:
    """One file: later times than in the one before."""
    rng = np.random.default_rng(number)
    columns = {
        "user": np.where(rng.random(count) < 0.5, 7, rng.integers(0, 50_000, count)),
        "ts": np.sort(rng.integers(0, 10**8, count)) + number * 10**8,
        **{f"x{k}": rng.standard_normal(count) for k in range(4)},
        "kind": np.array([f"kind {k}" for k in range(20)])[rng.integers(0, 20, count)],
    }
    with pa.CompressedOutputStream(str(path), "gzip") if path.suffix == ".gz" else pa.OSFile(str(path), "wb") as file:
        pa_csv.write_csv(pa.table(columns), file)


def on_ray(source: str, folder: Path, rounds: int) -> dict[str, Any]:
    """The same pack on a cluster with one node, and with two, in turn. The second node gets its CPU only in its turn."""
    import ray
    from ray.cluster_utils import Cluster

    cores = sorted(os.sched_getaffinity(0))
    seconds: dict[str, list[float]] = {"1 node": [], "2 nodes": []}
    critical: dict[str, list[float]] = {"1 node": [], "2 nodes": []}
    for number in range(rounds + 1):
        for nodes, name in ((1, "1 node"), (2, "2 nodes")):
            cluster = Cluster(
                initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20}
            )
            for core in cores[:nodes]:  # processes of a node inherit its core; without it, the threads of one node use both
                os.sched_setaffinity(0, {core})
                cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
            os.sched_setaffinity(0, cores)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            warm = ray.remote(num_cpus=1)(_warm)
            ray.get([warm.remote() for _ in range(2 * nodes)])
            used = [_cpu_of_workers()]

            def note(phase: str, share: float, rows: int, used: list[dict[str, float]] = used) -> None:
                if share == 1:  # the phase has ended
                    used.append(_cpu_of_workers())

            start = time.perf_counter()
            stoker.pack(
                source, folder / "ray.stoker", resources=stoker.Resources(ray="ray"), replace=True, progress=note, **OPTIONS
            )
            if number or rounds == 1:
                seconds[name].append(time.perf_counter() - start)
                phases = itertools.pairwise(used)
                critical[name].append(sum(max(end[pid] - begin.get(pid, 0.0) for pid in end) for begin, end in phases))
            ray.shutdown()
            cluster.shutdown()
            if stoker.open(folder / "ray.stoker").digest != stoker.open(folder / "one.stoker").digest:
                raise RuntimeError("a cluster made another store")
    return {
        "rounds": rounds,
        "wall seconds": {name: record.spread(values) for name, values in seconds.items()},
        "CPU seconds of the critical path": {name: record.spread(values) for name, values in critical.items()},
        "speed of two nodes over one, wall": record.ratio(seconds["1 node"], seconds["2 nodes"]),
        "speed of two nodes over one, critical path": record.ratio(critical["1 node"], critical["2 nodes"]),
    }


def _cpu_of_workers() -> dict[str, float]:
    """CPU seconds of the processes of Ray that run tasks."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if (folder / "cmdline").read_bytes().startswith(b"ray::"):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[folder.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _warm() -> None:
    """Imports what a task needs, so that the clock does not count it."""
    import stoker.store.pack.tasks  # noqa: F401

    time.sleep(0.5)


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--kinds", default="CSV;CSV, gzip", help="What to pack, separated by semicolons.")
    options = parser.parse_args()
    rows = options.rows or (40_000 if options.small else 6_000_000)
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOKER_BENCH_DIR")) as name:
        folder = Path(name)
        answer: dict[str, Any] = {"rows": rows}
        for title in options.kinds.split(";"):
            source = write_inputs(folder / title, rows, 32, compressed="gzip" in title)
            answer[title] = {"source bytes": sum(path.stat().st_size for path in (folder / title).iterdir())}
            stoker.pack(source, folder / "one.stoker", replace=True, **OPTIONS)
            answer[title]["Ray"] = on_ray(source, folder, 1 if options.small else options.rounds or 3)
    if options.small:
        print(json.dumps(answer, indent=1))
        return
    record.save("bench_cluster_pack_ray", QUESTION, answer)


if __name__ == "__main__":
    main()
