"""Does this tree take more CPU time than an older one? The same cases in both, in turn.

The older tree is a checkout, for example by `git worktree add --detach FOLDER COMMIT`. Each tree runs in a process of its own, with
its own benchmark modules and one thread; a third process runs the older tree again, so that its ratio shows the noise. All three take
turns in each round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import record

QUESTION = "How many times the CPU time of an older tree does the present tree take?"

WORKER = """
import inspect, json, shutil, sys, tempfile, time
from pathlib import Path
import numpy as np, pandas as pd, torch
import pyarrow.csv as pa_csv, pyarrow.parquet as pq
import stoker
if Path("packages").exists():
    from benchmarks.store import tables
    from benchmarks.tabular import bench_sequences
    from benchmarks.tfa import bench_indicators
    from benchmarks.train import bench_trainers
    from stoker_recipes.tabular import join_digits, pad_sequences, split_digits
    from stoker_recipes.tfa import features
else:  # before there were two packages
    from benchmarks import bench_indicators, bench_sequences, bench_trainers, tables
    from stoker.encode import features, join_digits, pad_sequences, split_digits

torch.set_num_threads(1)
family, small = sys.argv[1], sys.argv[2] == "small"
scale = 20 if small else 1
rng = np.random.default_rng(0)
last = {"last_batch" if "last_batch" in inspect.signature(stoker.Feed).parameters else "last": "drop"}

def feed_batches(store, view, number, **options):
    if "masks" in options and "returns" in inspect.signature(stoker.Feed).parameters:
        options["returns"] = stoker.feed.Returns(masks=options.pop("masks"))
    feed = stoker.Feed(store, view, order=stoker.Shuffle(0), **last, **options)
    def run():
        for count, _ in enumerate(feed, 1):
            if count == number:
                return
    return run

def gather():
    length = 131_073 // scale
    x = rng.standard_normal(200 * length, dtype=np.float32)
    ragged = stoker.Store.from_arrays(lengths=[1, *[length] * 199], x=x[: 1 + 199 * length])
    equal = stoker.Store.from_arrays(lengths=[length] * 200, x=x)
    bars = stoker.Store.from_arrays(lengths=[200_000 // scale], x=rng.standard_normal((200_000 // scale, 55), dtype=np.float32))
    view = stoker.Windows(2048, stride=1, shift=1)
    yield "gather: windows of 2,049, equal lengths, batch 256", feed_batches(equal, view, 60 // scale, batch_size=256, masks=False)
    yield "gather: windows of 2,049, ragged, batch 256", feed_batches(ragged, view, 60 // scale, batch_size=256, masks=False)
    yield "gather: windows of 2,049, equal lengths, batch 32", feed_batches(equal, view, 480 // scale, batch_size=32, masks=False)
    yield "gather: bars of TFA, windows of 48, batch 1024", feed_batches(bars, stoker.Windows(48), 9 if small else 60, batch_size=1024)

def feed():
    lengths = rng.integers(50, 4000, 400) // scale + 20
    values = rng.standard_normal((int(lengths.sum()), 4), dtype=np.float32)
    store = stoker.Store.from_arrays(lengths=lengths, x=values, id=np.arange(int(lengths.sum())))
    other = stoker.Store.from_arrays(lengths=lengths[::-1].copy(), x=values, id=np.arange(int(lengths.sum())))
    number = 400 // scale
    yield "feed: segments of 128 with masks, batch 64", feed_batches(store, stoker.Segments(128), number, batch_size=64)
    yield "feed: whole series in buckets, batch 16", feed_batches(store, stoker.Sequences(2048, buckets=(256, 2048)), 2, batch_size=16)
    yield "feed: normalised windows of 96 + 24, batch 256", feed_batches(
        store, stoker.Windows(96 // scale + 4, horizon=24 // scale + 1), number, batch_size=256, normalize="max", columns=["x"]
    )
    yield "feed: two stores, batch 256", feed_batches([store, other], stoker.Windows(64 // scale + 4), number, batch_size=256)

def trainers():
    for name, case in bench_trainers.cases(small).items():
        batches = bench_trainers.Listed(case)
        title = name.split(",")[0]
        yield f"trainers: {title}, AdamW", lambda c=case, b=batches: bench_trainers.run_ours(c, b, False, c.long)
        yield f"trainers: {title}, fused", lambda c=case, b=batches: bench_trainers.run_ours(c, b, True, c.long)
        yield f"trainers: {title}, clip, EMA, log", lambda c=case, b=batches: bench_trainers.run_ours_with_all(c, b, True, c.long)

def digits():
    values = np.round(rng.lognormal(4, 2, 500_000 // scale), 2)
    column, split = pd.Series(values), split_digits(values)
    yield "digits: frame", lambda: split_digits(column[: len(column) // 4], frame=True)
    yield "digits: int8", lambda: split_digits(values)
    yield "digits: join", lambda: join_digits(split)

def sequences():
    for kind in ("close together", "far apart", "texts"):
        frame = bench_sequences.events(50_000 // scale, kind)
        yield f"sequences: keys {kind}", lambda f=frame: pad_sequences(f, key="user", max_length=60, compat="mostlyai")
    frame = bench_sequences.events(20_000 // scale, mean=20, longest=99, columns=9)
    store = pad_sequences(frame, key="user", max_length=99, compat="mostlyai", layout="packed").store()
    columns = [name for name in store.schema if name.startswith("tgt:")]
    yield "sequences: batches of 256, 12 columns", feed_batches(
        store, stoker.Sequences(101), 3 if small else 75, batch_size=256, columns=columns, masks=False
    )

def indicators():
    bars, spec = bench_indicators.market(200_000 // scale), bench_indicators.spec_of_55()
    for mode in ("exact", "sentio"):
        yield f"indicators: 55, {mode}", lambda c=None if mode == "exact" else mode: features(bars, spec, compat=c, threads=1)

def shuffled_bars(rows):
    return tables.bars(rows).take(np.random.default_rng(1).permutation(rows))

def pack():
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    rows = 1_000_000 // scale
    for title, make, suffix, shape in (
        ("noise, one series per id", tables.noise, "parquet", {"series": "id"}),
        ("bars", tables.bars, "parquet", {"series": "symbol", "time": "ts"}),
        ("bars", tables.bars, "csv", {"series": "symbol", "time": "ts"}),
        ("bars, one series per file", tables.bars, "csv", {"columns": ["open", "high", "low", "close"]}),
        ("bars in any order", shuffled_bars, "parquet", {"series": "symbol", "time": "ts", "sort": True}),
        ("bars", lambda n: tables.bars(n // 4), "jsonl", {"series": "symbol", "time": "ts"}),
    ):
        path = folder / f"{len(list(folder.iterdir()))}.{suffix}"
        if suffix == "jsonl":
            make(rows).to_pandas().to_json(path, orient="records", lines=True, date_format="iso")
        else:
            (pq.write_table if suffix == "parquet" else pa_csv.write_csv)(make(rows), path)
        target = folder / "table.stoker"
        yield f"pack_speed: {suffix}, {title}", lambda p=path, s=shape: stoker.pack(p, target, replace=True, **s)

cases = dict(globals()[family]())
for run in cases.values():
    run()
print(json.dumps({"tree": stoker.__file__, "cases": list(cases)}), flush=True)
for line in sys.stdin:
    run = cases[json.loads(line)]
    start = time.process_time()
    kept = run()
    seconds = time.process_time() - start
    del kept
    print(json.dumps(seconds), flush=True)
"""

FAMILIES = ("gather", "feed", "trainers", "digits", "sequences", "indicators", "pack")


def main() -> None:
    """Every family of cases, one after the other."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("old", type=Path, help="The older tree: a checkout of the repository.")
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--family", choices=FAMILIES, action="append", help="Only this family; may be repeated.")
    parser.add_argument("--save", type=Path, default=record.RESULTS / "bench_restructure.json", help="The result file.")
    options = parser.parse_args()
    rounds = 2 if options.small else options.rounds
    times = {}
    for family in options.family or FAMILIES:
        for case, found in measure(family, options.old.resolve(), rounds, small=options.small).items():
            times[case] = found
            print(case, json.dumps(found), flush=True)
    if not options.small:
        slower = [case for case, found in times.items() if found["new over old"]["q1"] > max(1.0, found["old over itself"]["q3"])]
        answer = {"rounds": rounds, "times": times, "slower than the noise": slower}
        record.save("bench_restructure", QUESTION, answer, path=options.save, show=False)


def measure(family: str, old: Path, rounds: int, *, small: bool) -> dict[str, Any]:
    """CPU time of the cases of one family; the order of the trees changes in each round."""
    workers = {name: _start(tree, family, small) for name, tree in {"old": old, "new": record.ROOT, "again": old}.items()}
    try:
        cases: list[str] = {name: _answer(worker)["cases"] for name, worker in workers.items()}["new"]
        seconds: dict[str, dict[str, list[float]]] = {case: {name: [] for name in workers} for case in cases}
        for number in range(rounds):
            for case in cases:
                for name in _rotated(list(workers), number):
                    seconds[case][name].append(_ask(workers[name], case))
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    return {
        case: {
            "new over old": record.ratio(found["new"], found["old"]),
            "old over itself": record.ratio(found["again"], found["old"]),
            "milliseconds of old": round(1000 * sorted(found["old"])[rounds // 2], 2),
        }
        for case, found in seconds.items()
    }


def _rotated(names: Sequence[str], number: int) -> Sequence[str]:
    start = number % len(names)
    return [*names[start:], *names[:start]]


def _start(tree: Path, family: str, small: bool) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(_path(tree))}
    command = [sys.executable, "-c", WORKER, family, "small" if small else "full"]
    return subprocess.Popen(command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _path(tree: Path) -> list[str]:
    """The tree first, then what else this process was given, without the present tree."""
    others = [word for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
    here = {str(record.ROOT), *map(str, record.SOURCES)}
    sources = [str(tree / path.relative_to(record.ROOT)) for path in record.SOURCES if (tree / "packages").exists()]
    sources = sources or [str(tree / "src")]
    return [*sources, str(tree), *(other for other in others if str(Path(other).resolve()) not in here)]


def _ask(worker: subprocess.Popen[str], case: str) -> float:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(case) + "\n")
    worker.stdin.flush()
    return float(_answer(worker))


def _answer(worker: subprocess.Popen[str]) -> Any:
    """The next line of JSON; a trainer may print other lines."""
    assert worker.stdout is not None
    while line := worker.stdout.readline():
        try:
            return json.loads(line)
        except ValueError:
            continue
    raise RuntimeError(f"a worker ended with status {worker.wait()}; its error is above")


if __name__ == "__main__":
    main()
