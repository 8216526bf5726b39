"""How many times faster than those of mostlyai-engine are sequences from a table and batches of them, and what do they cost?"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import stoker
from benchmarks import record
from benchmarks.before.mostlyai_sequences import BatchCollator, pad_by_group, pad_by_indices
from stoker_recipes.tabular import pad_sequences

Array = npt.NDArray[Any]

QUESTION = "How many times faster than those of mostlyai-engine are sequences and batches of them, and what do they cost?"
MAX_LENGTH = 60
BATCH_SIZE = 256


def main() -> None:
    """The table of the loops: geometric lengths of 10 on average, rows in random order, 3 columns of codes, 3 of positions."""
    options = record.arguments(QUESTION)
    torch.set_num_threads(1)
    small = options.small
    rounds = 2 if small else options.rounds or 3
    answer: dict[str, Any] = {"rounds": rounds}
    for num_contexts in (200,) if small else (10_000, 100_000):
        answer[f"{num_contexts:,} contexts"] = measure_loops(num_contexts, 1 if num_contexts > 10_000 else rounds)
    sizes = (100, 1000) if small else (10_000, 100_000, 1_000_000)
    answer["nanoseconds per row by contexts, 3 columns of int8"] = {
        f"{size:,}": nanoseconds_per_row(size, compat=None) for size in sizes
    }
    answer["nanoseconds per row by contexts, 6 of int64"] = {f"{size:,}": nanoseconds_per_row(size) for size in sizes[:2]}
    answer["nanoseconds per row by key"] = {
        kind: nanoseconds_per_row(sizes[1], kind) for kind in ("far apart", "texts", "categories")
    }
    answer[f"batches of {BATCH_SIZE} contexts and 12 columns"] = measure_batches(512 if small else 20_000, 1 if small else 10)
    layouts = ("packed",) if small else ("padded", "packed")
    answer["bytes of scratch a row"] = {layout: scratch_bytes(layout, sizes[-1]) for layout in layouts}
    answer["seconds to compile, once"] = compile_seconds(compiled=small)
    print(json.dumps(answer, indent=1)) if small else record.save("bench_sequences", QUESTION, answer)


def events(num_contexts: int, kind: str = "close together", *, mean: int = 10, longest: int = MAX_LENGTH, columns: int = 3) -> Any:
    """Rows of all contexts in random order; keys lie close together, far apart, or are texts."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(1 / mean, num_contexts), longest)
    keys: Any = rng.permutation(np.repeat(np.arange(num_contexts), lengths))
    if kind == "far apart":
        keys = keys * 1_000_003
    elif kind != "close together":
        keys = pd.Series(pa.array([f"user-{key}" for key in range(num_contexts)]).take(pa.array(keys)).to_pandas())
        keys = keys.astype("category") if kind == "categories" else keys
    codes = {f"tgt:/c{i}__cat": rng.integers(0, 100, len(keys)).astype(np.int8) for i in range(columns)}
    return pd.DataFrame({"user": keys, **codes})


def measure_loops(num_contexts: int, rounds: int) -> dict[str, Any]:
    """CPU time of the three ways; the loop takes a minute at 100,000 contexts, so there it runs once and is not warmed up."""
    frame = events(num_contexts)
    columns = [column for column in frame if column != "user"]
    ways = {
        "loop": partial(pad_by_group, frame, "user", columns, MAX_LENGTH),
        "indices": partial(pad_by_indices, frame, "user", columns, MAX_LENGTH),
        "stoker": partial(pad_sequences, frame, key="user", columns=columns, max_length=MAX_LENGTH, compat="mostlyai"),
    }
    ways["stoker"]()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    equal = True
    for _ in range(rounds):
        results = {}
        for name in ("loop", "indices"):
            start = time.process_time()
            results[name] = ways[name]()
            seconds[name].append(time.process_time() - start)
        found, some = ways["stoker"](), []
        for before in results.values():
            equal &= list(found) == list(before) and all(torch.equal(found[one], before[one]) for one in found)
        del results, found, before
        for _ in range(5):  # the median: now and then the kernel stops a call to put memory together into large pages
            start = time.process_time()
            kept = ways["stoker"]()
            some.append(time.process_time() - start)
            del kept
        seconds["stoker"].append(statistics.median(some))
    return {
        "rows": len(frame),
        "tensors equal": equal,
        "seconds of the loop": round(min(seconds["loop"]), 3),
        "milliseconds of stoker": round(1000 * min(seconds["stoker"]), 2),
        "times faster than the loop": record.ratio(seconds["loop"], seconds["stoker"]),
        "times faster than groupby.indices": record.ratio(seconds["indices"], seconds["stoker"]),
    }


def nanoseconds_per_row(num_contexts: int, kind: str = "close together", compat: Any = "mostlyai") -> float:
    """CPU time of the best of some calls."""
    frame = events(num_contexts, kind)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        padded = pad_sequences(frame, key="user", max_length=MAX_LENGTH, compat=compat)
        seconds.append(time.process_time() - start)
        del padded
    return round(1e9 * min(seconds) / len(frame), 1)


SCRATCH = """
import sys
from pathlib import Path
from benchmarks.tabular.bench_sequences import events
from stoker_recipes.tabular import pad_sequences

def status(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)) * 1024

layout, num_contexts = sys.argv[1], int(sys.argv[2])
frame = events(num_contexts).astype("int64")
pad_sequences(frame[:1000], key="user", max_length=60, layout=layout)
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # reset the peak
found = pad_sequences(frame, key="user", max_length=60, layout=layout)
parts = [*found.values(), found.lengths, found.contexts, *([found.cu_seqlens] if layout == "packed" else [])]
result = sum(part.nbytes for part in parts)
print((status("VmHWM") - before - result) / len(frame))
"""


def scratch_bytes(layout: str, num_contexts: int) -> float:
    """Peak memory of a call beyond its input and its result, in a process of its own."""
    return round(float(_child("-c", SCRATCH, layout, str(num_contexts))), 1)


COMPILE = """
import time
import torch, numba, pandas
from benchmarks.tabular.bench_sequences import events
from stoker_recipes.tabular import pad_sequences
frame = events(100)
start = time.process_time()
pad_sequences(frame, key="user", max_length=60, compat="mostlyai")
pad_sequences(frame.assign(user=frame["user"] * 10**12).astype("float32"), key="user", layout="packed")
print(time.process_time() - start)
"""


def compile_seconds(*, compiled: bool) -> dict[str, float]:
    """CPU time of the first calls with an empty cache, and of those of the next process; or only with this machine's cache."""
    if compiled:
        return {"next process": round(float(_child("-c", COMPILE)), 2)}
    with tempfile.TemporaryDirectory() as cache:
        first, later = (float(_child("-c", COMPILE, NUMBA_CACHE_DIR=cache)) for _ in range(2))
    return {"first": round(first, 2), "next process": round(later, 2)}


def _child(*words: str, **extra: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=record.ROOT, env={**os.environ, **extra}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()[-1]


def measure_batches(num_contexts: int, num_batches: int) -> dict[str, Any]:
    """CPU time a batch: from Parquet by Hugging Face and the collator, and from a store by a feed, both in random order."""
    frame = events(num_contexts, mean=20, longest=99, columns=9)
    packed = pad_sequences(frame, key="user", max_length=99, compat="mostlyai", layout="packed")
    with tempfile.TemporaryDirectory() as name:
        store = packed.store().save(Path(name) / "events.stoker")
        columns = [column for column in store.schema if column.startswith("tgt:")]
        rows = _hugging_face(Path(name), store, columns)
        view, order = stoker.Sequences(101), stoker.Shuffle(0)
        feed = stoker.Feed(
            store,
            view,
            batch_size=BATCH_SIZE,
            order=order,
            columns=columns,
            returns=stoker.feed.Returns(index=True, masks=False),
            last_batch="drop",
        )
        collate = BatchCollator(100)
        equal, orders = _compare(feed, rows, collate, num_batches)
        chosen = np.array_split(np.random.default_rng(0).permutation(num_contexts), max(1, num_contexts // BATCH_SIZE))
        lists = [[rows[i] for i in some.tolist()] for some in chosen[:num_batches]]
        batches = _endless(feed)
        seconds = record.interleave(
            {
                "whole": lambda: _use(collate(rows.__getitems__(some.tolist())) for some in chosen[:num_batches]),
                "collator": lambda: _use(collate(some) for some in lists),
                "stoker": lambda: _use(_as_before(batch, columns) for batch in islice(batches, 10 * num_batches)),
            },
            rounds=2 if num_batches < 5 else 5,
            clock=time.process_time,
        )
    each = {way: [s / num_batches / (10 if way == "stoker" else 1) for s in some] for way, some in seconds.items()}
    return {
        "mean length": round(float(packed.lengths.double().mean()), 1),
        "batches equal for the same order": equal,
        "another order each epoch": orders[0] != orders[1],
        "milliseconds before": round(1000 * min(each["whole"]), 2),
        "milliseconds of stoker": round(1000 * min(each["stoker"]), 3),
        "times faster": record.ratio(each["whole"], each["stoker"]),
        "times faster than its collator alone, lists at hand": record.ratio(each["collator"], each["stoker"]),
    }


def _use(batches: Iterable[Any]) -> None:
    """Take one batch after the other, as training does: when the next comes, the one before is gone."""
    for _ in batches:
        pass


def _as_before(batch: dict[str, torch.Tensor], columns: list[str]) -> dict[str, torch.Tensor]:
    return {name: batch[name].unsqueeze(-1) for name in columns}


def _endless(feed: stoker.Feed) -> Iterator[dict[str, torch.Tensor]]:
    while True:
        yield from feed


def _hugging_face(folder: Path, store: stoker.Store, columns: list[str]) -> Any:
    """The data set that the collator is given: lists in a Parquet file."""
    import datasets

    pq.write_table(store.to_arrow().select(columns), folder / "encoded.parquet")
    datasets.disable_progress_bars()
    return datasets.Dataset.from_parquet(str(folder / "encoded.parquet"), cache_dir=str(folder / "cache"))


def _compare(feed: stoker.Feed, rows: Any, collate: BatchCollator, num_batches: int) -> tuple[bool, list[list[int]]]:
    """Whether the batches of two epochs are those of the collator, and the order of each."""
    equal = True
    orders: list[list[int]] = []
    for _ in range(2):
        orders.append([])
        for number, batch in enumerate(feed):
            if number >= num_batches:
                break
            chosen = batch["sample"].tolist()
            orders[-1] += chosen
            expected = collate(rows.__getitems__(chosen))
            equal &= all(torch.equal(batch[name].unsqueeze(-1), expected[name]) for name in expected)
    return equal, orders


if __name__ == "__main__":
    main()
