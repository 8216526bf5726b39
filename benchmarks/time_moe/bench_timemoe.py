"""How many times faster than Time-MoE's own data sets are its samples, on segments and on long series?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stoker
from benchmarks import record
from benchmarks.before.timemoe_dataset import TimeMoEDataset, TimeMoEWindowDataset, collate
from benchmarks.time_moe.folder import write_folder
from stoker_recipes.time_moe import TimeMoeDataset

QUESTION = "How many times faster than Time-MoE's own data sets are its samples, on segments and on long series?"
WINDOW = 2048


def main() -> None:
    """Both sides read what `write_folder` wrote; stoker packs it first."""
    options = record.arguments(QUESTION)
    rounds = 2 if options.small else options.rounds or 7
    torch.set_num_threads(1)
    cases = {
        "20,000 segments of 2,048": (2048, 20_000),
        "64 series of 131,073": (131_073, 64),
        "16 series of 1,048,577": (1_048_577, 16),
    }
    if options.small:
        cases = {"200 segments of 2,048": (2048, 200), "2 series of 131,073": (131_073, 2)}
    answer: dict[str, Any] = {"rounds": rounds}
    for name, (length, count) in cases.items():
        for method in ("zero", "none"):
            answer[f"{name}, {method}"] = measure(length, count, None if method == "none" else "zero", rounds)
            print(name, method, answer[f"{name}, {method}"], flush=True)
    print("done") if options.small else record.save("bench_timemoe", QUESTION, answer)


def measure(length: int, count: int, method: Any, rounds: int) -> dict[str, Any]:
    """CPU time a sample of each side, batch 32 and 256, in random order."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = write_folder(Path(name) / "raw", list(rng.standard_normal((count, length), dtype=np.float32)))
        before = TimeMoEWindowDataset(TimeMoEDataset(folder, method), WINDOW)
        store = stoker.pack(folder, Path(name) / "store")
        column = next(one for one in store.schema if store.schema[one].level == "step")
        same = TimeMoeDataset(store, WINDOW, normalization_method=method)
        result: dict[str, Any] = {"batches equal": is_equal(before, same)}
        order = rng.permutation(len(before)).tolist()
        share = min(len(order), max(32, int(2e7 / length) // 32 * 32))  # a second or less of the slow side
        for batch_size in (32, 256):
            one = feed(store, stoker.Segments(WINDOW, shift=1), batch_size, method, column)
            seconds = record.interleave(
                {
                    "before": lambda: [collate([before[i] for i in order[k : k + 32]]) for k in range(0, share, 32)],
                    "same three tensors": lambda size=batch_size: [
                        same.__getitems__(order[k : k + size]) for k in range(0, share, size)
                    ],
                    "one array and lengths": lambda feed=one: [None for _ in feed],
                },
                rounds=rounds,
                clock=time.process_time,
            )
            each = {
                "before": [s / share for s in seconds["before"]],
                "same three tensors": [s / share for s in seconds["same three tensors"]],
                "one array and lengths": [s / one.num_samples for s in seconds["one array and lengths"]],
            }
            result[f"batch {batch_size}"] = {
                "microseconds per sample before": round(1e6 * min(each["before"]), 1),
                "times faster, the same three tensors": record.ratio(each["before"], each["same three tensors"]),
                "times faster, one array and lengths": record.ratio(each["before"], each["one array and lengths"]),
            }
    return result


def feed(store: stoker.Store, view: Any, batch_size: int, method: Any, column: str) -> stoker.Feed:
    """A shuffled feed."""
    return stoker.Feed(
        store,
        view,
        batch_size=batch_size,
        order=stoker.Shuffle(0),
        columns=[column],
        normalize=method,
        last_batch="short",
        returns=stoker.feed.Returns(masks=False),
    )


def is_equal(before: TimeMoEWindowDataset, dataset: TimeMoeDataset) -> bool:
    """Whether the first samples are the same, bit for bit."""
    found = dataset.__getitems__(range(min(64, len(dataset)))).batch
    expected = collate([before[i] for i in range(len(found["input_ids"]))])
    return all(found[name].numpy().tobytes() == expected[name].numpy().tobytes() for name in expected)


if __name__ == "__main__":
    main()
