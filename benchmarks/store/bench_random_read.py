"""What does reading one series at random cost, next to indexing a plain `np.memmap`?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

import stoker
from benchmarks import record

QUESTION = "What does reading one random series cost, as a multiple of slicing a plain np.memmap?"


def main() -> None:
    """Measure ragged and equally long series, in process CPU time."""
    options = record.arguments(QUESTION)
    num_series, reads, rounds = (1_000, 2_000, 3) if options.small else (100_000, 200_000, options.rounds or 15)
    rng = np.random.default_rng(0)
    answer: dict[str, object] = {"series": num_series, "reads a round": reads, "rounds": rounds}
    with tempfile.TemporaryDirectory() as name:
        for kind in ("ragged", "equal lengths"):
            lengths = rng.integers(1, 400, num_series) if kind == "ragged" else np.full(num_series, 200)
            values = rng.normal(size=int(lengths.sum()))
            memory = stoker.Store.from_arrays(lengths=lengths, charge=values, time=np.arange(len(values)))
            store = stoker.pack(memory, Path(name) / kind)
            answer[kind] = measure(store, rng.integers(0, num_series, reads).tolist(), rounds)
    print(answer) if options.small else record.save("bench_random_read", QUESTION, answer)


def measure(store: stoker.Store, order: list[int], rounds: int) -> dict[str, object]:
    """The same series from both; the memmap side is given its bounds as plain integers, which flatters it."""
    entry = next(column for column in store.manifest.columns if column.name == "charge")  # type: ignore[union-attr]
    plain = np.load((store.path or Path()) / entry.values.file, mmap_mode="r")  # type: ignore[union-attr]
    offsets = store.offsets.tolist()
    bounds = [(offsets[i], offsets[i + 1]) for i in order]

    def from_memmap() -> None:
        for start, stop in bounds:
            plain[start:stop]

    def from_store() -> None:
        for i in order:
            store[i]["charge"]

    seconds = record.interleave({"memmap": from_memmap, "store": from_store}, rounds=rounds, clock=time.process_time)
    equal = all(np.array_equal(store[i]["charge"], plain[a:b]) for i, (a, b) in zip(order[:1000], bounds, strict=False))
    return {
        "cost over np.memmap": record.ratio(seconds["store"], seconds["memmap"]),
        "store microseconds a read": round(1e6 * min(seconds["store"]) / len(order), 3),
        "memmap microseconds a read": round(1e6 * min(seconds["memmap"]) / len(order), 3),
        "values equal": equal,
    }


if __name__ == "__main__":
    main()
