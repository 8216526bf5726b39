"""What does an index cost: next to a permutation that is written down, in state, and until the first batch?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record
from stoker.sampling.orders import BlockShuffle, Order, Shuffle
from stoker.sampling.views import Lengths, Sequences

QUESTION = "What does an index of 132 million samples cost, in time and in state, and how soon is the first batch there?"

CHUNKS = (256, 4096, 2**20)
STEPS = 6
"""Steps of a series of the pretended store."""

CHILD = """
import json, resource, sys, time
import numpy as np, torch
import stoker
from stoker.store.shards import Column
from stoker.store.store import Store
folder, num_series, view, order, state = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5])
view = {"sequences": stoker.Sequences(64), "segments": stoker.Segments(64), "windows": stoker.Windows(4)}[view]
order = {"Shuffle": stoker.Shuffle(), "BlockShuffle": stoker.BlockShuffle()}[order]
start, cpu = time.perf_counter(), time.process_time()
offsets = np.memmap(folder + "/offsets", dtype="<i8", mode="r")
values = np.memmap(folder + "/values", dtype="<f4", mode="r")
column = Column(name="x", dtype=values.dtype, level="step", kind="number")
store = Store({"x": column}, {"x": values}, num_series=num_series, length=None, offsets=offsets, name="pretended")
feed = stoker.Feed(store, view, batch_size=256, order=order, loading=stoker.feed.Loading(residency="host"))
if state:
    feed.load_state_dict({**feed.state_dict(), **state})
batch = next(iter(feed))
done, used = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps({"seconds": done, "cpu seconds": used, "samples": feed.num_samples, "rows": len(batch["x"]),
                  "state": feed.state_dict(), "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def main() -> None:
    """All of it; times are CPU times of the process, except for the first batch, where both are said."""
    options = record.arguments(QUESTION)
    num_samples, anchor, rounds = (13_200_000, 100_000, 2) if options.small else (132_000_000, 10_000_000, options.rounds or 11)
    answer: dict[str, Any] = {"samples": num_samples, "rounds": rounds}
    answer["nanoseconds per index"] = index_costs(num_samples, anchor, rounds, num_indices=2**18 if options.small else 2**22)
    answer["first batch"] = first_batches(num_samples, 1 if options.small else 3, few=options.small)
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_order", QUESTION, answer)


def index_costs(num_samples: int, anchor: int, rounds: int, *, num_indices: int) -> dict[str, Any]:
    """Parts of an epoch in chunks, interleaved with a permutation that NumPy writes down."""
    samples = Sequences(1).over(Lengths(num_series=num_samples, num_steps=num_samples, length=1))
    orders: dict[str, Order] = {"Shuffle": Shuffle(), "BlockShuffle": BlockShuffle()}
    generator = np.random.default_rng(0)
    sides: dict[str, Callable[[], Any]] = {f"np.random.permutation({anchor:,})": lambda: generator.permutation(anchor)}
    counts = {next(iter(sides)): anchor}
    for name, order in orders.items():
        plan = order.over(samples, batch_size=256, sample_bytes=2600.0)
        for chunk in CHUNKS:
            starts = range(0, max(num_indices, chunk), chunk)
            side = f"{name} in chunks of {chunk:,}"
            sides[side] = lambda plan=plan, starts=starts, chunk=chunk: [plan.numbers(1, i, i + chunk)[-1] for i in starts]
            counts[side] = len(starts) * chunk
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    each = {name: [1e9 * one / counts[name] for one in several] for name, several in seconds.items()}
    written_down, *ours = each
    return {
        **{name: record.spread(several) for name, several in each.items()},
        "of the written down": {name: record.ratio(each[name], each[written_down]) for name in ours},
    }


def first_batches(num_series: int, rounds: int, *, few: bool) -> dict[str, Any]:
    """From open files to a batch of 256, each in a process of its own; kernels are loaded from their cache."""
    middle = {"epoch": 3, "position": num_series // 2}
    cases = [(view, order, {}) for view in ("sequences", "segments", "windows") for order in ("Shuffle", "BlockShuffle")]
    cases += [("sequences", order, middle) for order in ("Shuffle", "BlockShuffle")]
    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOKER_BENCH_DIR")) as folder:
        pretend(Path(folder), num_series)
        for view, order, state in cases[::5] if few else cases:
            command = [sys.executable, "-c", CHILD, folder, str(num_series), view, order, json.dumps(state)]
            # The first may compile, and reads the offsets from the disk.
            first, *runs = (
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(rounds + 1)
            )
            answer[f"{view}, {order}{', resumed in the middle' if state else ''}"] = {
                "seconds": record.spread([run["seconds"] for run in runs]),
                "cpu seconds": record.spread([run["cpu seconds"] for run in runs]),
                "samples": first["samples"],
                "peak MB": round(max(run["peak MB"] for run in runs)),
                "state": first["state"],
                "bytes of its values as JSON": sum(len(json.dumps(value)) for value in first["state"].values()),
            }
    return answer


def pretend(folder: Path, num_series: int) -> None:
    """Files as a store has them: true offsets, and values that take no space on the disk."""
    with (folder / "offsets").open("wb") as file:
        for start in range(0, num_series + 1, 2**22):
            (np.arange(start, min(start + 2**22, num_series + 1), dtype="<i8") * STEPS).tofile(file)
    with (folder / "values").open("wb") as file:
        file.truncate(num_series * STEPS * 4)


if __name__ == "__main__":
    main()
