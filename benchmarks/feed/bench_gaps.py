"""What do windows that span no gap, and masks of observed values, cost next to plain windows?

370 series of 26,304 hours with 4,800 gaps; windows 168 -> 24, every step and every day. Short passes in turn, one thread, CPU time
of the process.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import stoker
from benchmarks import record
from stoker._disk import temporary_folder

QUESTION = "What do windows that span no gap, and masks of observed values, cost next to plain windows?"
BATCH, TURN = 256, 256


def main() -> None:
    """Gaps at two strides, and masks."""
    options = record.arguments(QUESTION)
    num_series, steps, turns = (24, 4_000, 2) if options.small else (370, 26_304, options.rounds or 150)
    torch.set_num_threads(1)
    with temporary_folder() as folder:
        store, num_gaps = make_store(num_series, steps, folder)
        answer: dict[str, Any] = {"series": num_series, "gaps": num_gaps, "batch": BATCH, "turns": turns, "batches per turn": TURN}
        for stride in (1, 24):
            plain, gapped = ({"view": view(stride)}, {"view": view(stride, max_gap="1h")})
            answer[f"windows without gaps / plain, stride {stride}"] = compare(store, plain, gapped, turns)
        answer["no window spans a gap"] = spans_none(store)
        answer["masks / none"] = compare(store, {"view": view(24)}, {"view": view(24), "observed": True}, turns)
        answer["bytes with masks / without"] = 5 / 4
    print(json.dumps(answer)) if options.small else record.save("bench_gaps", QUESTION, answer)


def view(stride: int, **options: Any) -> stoker.Windows:
    """A week, and the day after it."""
    return stoker.Windows(168, stride=stride, horizon=24, tail="drop", **options)


def make_store(num_series: int, steps: int, folder: Any) -> tuple[stoker.Store, int]:
    """Hourly values, with a jump in time at random places; and how many there are."""
    rng = np.random.default_rng(0)
    hours = np.ones((num_series, steps), dtype=np.int64)
    for row in hours:
        row[rng.choice(np.arange(1, steps), steps * int(rng.integers(8, 19)) // 26_304, replace=False)] = rng.integers(2, 100)
    times = pa.array((hours.cumsum(axis=1) * 3600).ravel()).cast(pa.timestamp("s"))
    values = rng.standard_normal(num_series * steps, dtype=np.float32)
    table = pa.table({"series": np.repeat(np.arange(num_series), steps), "time": times, "x": values})
    return stoker.pack(table, folder / "hours.stoker", series="series", time="time"), int((hours[:, 1:] > 1).sum())


def forever(store: stoker.Store, options: dict[str, Any]) -> Iterator[Any]:
    """Batches, epoch after epoch."""
    feed = stoker.Feed(
        store,
        **options,
        batch_size=BATCH,
        order=stoker.Shuffle(0),
        columns=["x"],
        last_batch="drop",
        loading=stoker.feed.Loading(threads=0, residency="host"),
    )
    while True:
        yield from feed


def compare(store: stoker.Store, plain: dict[str, Any], other: dict[str, Any], turns: int) -> dict[str, Any]:
    """CPU time of the other feed relative to the plain one, and of each batch."""
    feeds = {"plain": forever(store, plain), "other": forever(store, other)}

    def turn(batches: Iterator[Any]) -> Callable[[], None]:
        return lambda: [None for _ in itertools.islice(batches, TURN)].clear()

    for batches in feeds.values():
        turn(batches)()
    seconds = record.interleave({name: turn(batches) for name, batches in feeds.items()}, rounds=turns, clock=time.process_time)
    each = {name: float(f"{np.median(values) / TURN / BATCH * 1e9:.4g}") for name, values in seconds.items()}
    return {
        "CPU time": record.ratio(seconds["other"], seconds["plain"]),
        "ns per sample, plain": each["plain"],
        "ns": each["other"],
    }


def spans_none(store: stoker.Store) -> bool:
    """Whether the times of some batches are all an hour apart."""
    feed = stoker.Feed(store, view(1, max_gap="1h"), batch_size=BATCH, order=stoker.Shuffle(1), columns=["time"])
    rows = [torch.cat([batch["time"], batch["time_target"]], dim=1) for batch in itertools.islice(feed, 20)]
    return all(bool((row.diff(dim=1) == 3600).all()) for row in rows)


if __name__ == "__main__":
    main()
