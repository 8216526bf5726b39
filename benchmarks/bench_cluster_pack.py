"""How much faster is a pack that several processes share, each with one core?

Rows come from CSV files, plain and compressed, in the order of their times; half of them belong to one user. Processes
are started and have imported everything before the clock runs. Each may use one core, with all of its threads, and no two of them share
a physical core: a single process that may use two cores reads, sorts and writes on both. Besides wall time, CPU time is recorded: the
critical path is that of the slowest process of each phase, which other programs on the machine hardly change. With `--ray` the same pack
runs on clusters of one and of two nodes with one core each (`make test-scale` installs Ray).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
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
from stoker.store.pack.api import join_parts, pack_part

QUESTION = "How much faster is a pack that several processes of one core share?"
OPTIONS: dict[str, Any] = {"series": "user", "time": "ts", "sort": True, "threads": 1}
COUNTS = (1, 2, 4, 8, 16)


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


def physical_cores() -> list[int]:
    """One CPU per physical core that this process may use: hyperthreads of one core slow each other down."""
    found: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        found.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    return list(found.values())


def work(task: dict[str, Any]) -> None:
    """One process: says that it is ready, waits for a line, works, and says how long that took."""
    os.sched_setaffinity(0, {task["core"]})
    print("ready", flush=True)
    sys.stdin.readline()
    wall, cpu = time.perf_counter(), time.process_time()
    source, target = task["source"], task["target"]
    if task["kind"] == "pack":
        stoker.pack(source, target, replace=True, **OPTIONS)
    elif task["kind"] == "join":
        join_parts(source, target, **OPTIONS)
    else:
        pack_part(source, target, task["part"], merge=task["kind"] == "merge", **OPTIONS)
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}), flush=True)


def run_all(tasks: list[dict[str, Any]]) -> tuple[float, list[float]]:
    """Processes side by side: seconds until the last ends, and the CPU seconds of each."""
    cores = physical_cores()
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bench_cluster_pack", "--worker", json.dumps(task | {"core": cores[i % len(cores)]})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i, task in enumerate(tasks)
    ]
    for one in running:
        if one.stdout is None or one.stdout.readline().strip() != "ready":
            raise RuntimeError("a process did not start")
    start = time.perf_counter()
    for one in running:
        if one.stdin is not None:
            one.stdin.write("\n")
            one.stdin.flush()
    found = [json.loads(one.stdout.readline()) for one in running if one.stdout is not None]
    wall = time.perf_counter() - start
    for one in running:
        one.communicate()
    return wall, [one["cpu"] for one in found]


def in_parts(source: str, folder: Path, count: int) -> dict[str, Any]:
    """A pack by `count` processes: wall and CPU seconds of its phases."""
    target = str(folder / f"{count}.stoker")
    phases: dict[str, Any] = {}
    for kind in ("read", "merge", "join"):
        parts = [f"{i + 1}/{count}" for i in range(count)] if kind != "join" else [""]
        wall, cpu = run_all([{"kind": kind, "source": source, "target": target, "part": part} for part in parts])
        phases[kind] = {"wall": wall, "longest cpu": max(cpu), "total cpu": sum(cpu)}
    return {
        "wall": sum(one["wall"] for one in phases.values()),
        "critical cpu": sum(one["longest cpu"] for one in phases.values()),
        "total cpu": sum(one["total cpu"] for one in phases.values()),
        "phases": phases,
        "digest": stoker.open(target).digest,
    }


def on_processes(source: str, folder: Path, counts: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """One plain pack and packs in parts, in turn."""
    wall: dict[str, list[float]] = {}
    critical: dict[str, list[float]] = {}
    total: dict[str, list[float]] = {}
    shares: dict[str, Any] = {}
    for _ in range(rounds):
        seconds, (cpu,) = run_all([{"kind": "pack", "source": source, "target": str(folder / "one.stoker")}])
        digest = stoker.open(folder / "one.stoker").digest
        for numbers, value in ((wall, seconds), (critical, cpu), (total, cpu)):
            numbers.setdefault("one pack", []).append(value)
        for count in counts:
            found = in_parts(source, folder, count)
            if found["digest"] != digest:
                raise RuntimeError(f"{count} parts made another store")
            for numbers, key in ((wall, "wall"), (critical, "critical cpu"), (total, "total cpu")):
                numbers.setdefault(f"{count} parts", []).append(found[key])
            shares[f"{count} parts"] = {kind: round(one["longest cpu"], 3) for kind, one in found["phases"].items()}
            shutil.rmtree(folder / f"{count}.stoker")
    parts = [name for name in wall if name != "one pack"]
    return {
        "rounds": rounds,
        "wall seconds": {name: record.spread(values) for name, values in wall.items()},
        "CPU seconds of the critical path": {name: record.spread(values) for name, values in critical.items()},
        "CPU seconds of the last round by phase": shares,
        "speed over one pack, wall": {name: record.ratio(wall["one pack"], wall[name]) for name in parts},
        "speed over one pack, critical path": {name: record.ratio(critical["one pack"], critical[name]) for name in parts},
        "speed over one part, wall": {name: record.ratio(wall["1 parts"], wall[name]) for name in parts},
        "speed over one part, critical path": {name: record.ratio(critical["1 parts"], critical[name]) for name in parts},
        "CPU of all processes over one pack": {name: record.ratio(total[name], total["one pack"]) for name in parts},
    }


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
            stoker.pack(source, folder / "ray.stoker", on="ray", replace=True, progress=note, **OPTIONS)
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
    import stoker.store.pack.parts  # noqa: F401

    time.sleep(0.5)


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--parts", default=None, help="Numbers of processes, like 1,2,4.")
    parser.add_argument("--kinds", default="CSV;CSV, gzip", help="What to pack, separated by semicolons.")
    parser.add_argument("--ray", action="store_true", help="Measure on Ray clusters as well.")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(json.loads(options.worker))
        return
    rows = options.rows or (40_000 if options.small else 6_000_000)
    cores = len(os.sched_getaffinity(0))
    counts = (
        tuple(int(one) for one in options.parts.split(",")) if options.parts else tuple(n for n in COUNTS if n <= max(cores, 2))
    )
    counts = (1, 2) if options.small else counts
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOKER_BENCH_DIR")) as name:
        folder = Path(name)
        answer: dict[str, Any] = {"rows": rows}
        rounds = 1 if options.small else options.rounds or 5
        for title in options.kinds.split(";"):
            source = write_inputs(folder / title, rows, 32, compressed="gzip" in title)
            answer[title] = {"source bytes": sum(path.stat().st_size for path in (folder / title).iterdir())}
            answer[title] |= on_processes(source, folder, counts, rounds)
            if options.ray:
                answer[title]["Ray"] = on_ray(source, folder, 1 if options.small else options.rounds or 3)
    if options.small:
        print(json.dumps(answer, indent=1))
        return
    path = record.RESULTS / "bench_cluster_pack_ray.json" if options.ray else None  # on the machine that has Ray
    record.save("bench_cluster_pack", QUESTION, answer, path=path)


if __name__ == "__main__":
    main()
