"""What share of memcpy does a feed reach, in random order on one core, whatever the length of the series and the stride?

Memcpy copies as many bytes from the same column, one batch after the other, into one buffer that it uses again: the fastest
that one core can bring a batch together. The feed is the whole of it: order, index, gather, tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

import stoker
from benchmarks import record
from benchmarks.before.tfa_windows import SeqWindows
from stoker.feed.padding import STREAMING_BYTES, copy_spans

QUESTION = "What share of memcpy does a feed reach in random order on one core?"


def main() -> None:
    """Segments and windows over series of many lengths, then the market bars of TFA."""
    options = record.arguments(QUESTION)
    points, rounds, batches = (400_000, 3, 5) if options.small else (40_000_000, options.rounds or 15, 60)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    values = rng.standard_normal(points, dtype=np.float32)
    answer: dict[str, Any] = {"rounds": rounds, "batches per round": batches, "one array [batch, steps]": {}}
    for length in (2048, 2049, 8_640, 131_073, 1_048_577, 8_388_609):
        lengths = [length] * (points // length)
        if len(lengths) * (length // 2048) < 256:
            continue
        stores = {
            "equal": stoker.Store.from_arrays(lengths=lengths, x=values[: sum(lengths)]),
            "ragged": stoker.Store.from_arrays(lengths=[1, *lengths], x=values[: 1 + sum(lengths)]),
        }
        for stride in (2048, 1) if length > 2049 else (2048,):
            for kind, batch_size in (("equal", 32), ("equal", 256), ("equal", 1024), ("ragged", 256)):
                view = stoker.Windows(2048, stride=stride, shift=1 if length != 2048 else 0)
                name = f"windows of {view.span} over series of {length:,} ({kind} lengths), stride {stride}, batch {batch_size}"
                answer["one array [batch, steps]"][name] = measure(stores[kind], view, batch_size, rounds, batches)
                print(name, answer["one array [batch, steps]"][name], flush=True)
    answer["bars of TFA: 200,000 x 55, windows of 48, batch 1024"] = bars(rng, rounds, options.small)
    print("done") if options.small else record.save("bench_gather", QUESTION, answer)


def copying(flat: np.ndarray[Any, Any], batch_bytes: int, batches: int) -> Any:
    """Memcpy of batches that lie one after the other."""
    target = np.empty(batch_bytes, dtype=np.uint8)
    source = flat.reshape(-1).view(np.uint8)
    batch_bytes = min(batch_bytes, len(source))
    target = target[:batch_bytes]
    whole = len(source) // batch_bytes

    def run() -> None:
        for number in range(batches):
            start = number % whole * batch_bytes
            np.copyto(target, source[start : start + batch_bytes])

    return run


def taking(batches: Iterable[Any], number: int) -> Callable[[], None]:
    """Go through the first batches."""

    def run() -> None:
        for count, _ in enumerate(batches, 1):
            if count == number:
                return

    return run


def measure(store: stoker.Store, view: Any, batch_size: int, rounds: int, batches: int) -> dict[str, Any]:
    """The feed, the kernel alone, and memcpy side by side, in CPU time of the process."""
    feed = stoker.Feed(
        store, view, batch_size=batch_size, order=stoker.Shuffle(0), last_batch="drop", returns=stoker.feed.Returns(masks=False)
    )
    batches = min(batches * 256 // batch_size, len(feed))
    width = view.span * 4 * batch_size
    found = [feed.samples.locate(feed.plan.numbers(0, k * batch_size, (k + 1) * batch_size)) for k in range(batches)]
    target = np.empty(width + 64, dtype=np.uint8)
    target = target[-target.ctypes.data % 64 :][:width]
    places = np.arange(batch_size, dtype=np.int64) * view.span
    source = store.column("x").view(np.uint8)

    def gathered() -> None:
        for one in found:
            copy_spans(source, one.starts, one.counts, target, places, 4, width >= STREAMING_BYTES)

    sides = {"memcpy": copying(store.column("x"), width, batches), "feed": taking(feed, batches), "kernel": gathered}
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    return {
        "share of memcpy, the whole feed": record.ratio(seconds["memcpy"], seconds["feed"]),
        "share of memcpy, the kernel alone": record.ratio(seconds["memcpy"], seconds["kernel"]),
        "GB/s of memcpy": round(width * batches / min(seconds["memcpy"]) / 1e9, 1),
        "batches equal": is_equal(store, view, batch_size),
    }


def is_equal(store: stoker.Store, view: Any, batch_size: int) -> bool:
    """Whether samples are the slices that they should be."""
    feed = stoker.Feed(
        store,
        view,
        batch_size=batch_size,
        order=stoker.Shuffle(0),
        last_batch="drop",
        returns=stoker.feed.Returns(masks=False, index=True),
    )
    batch = next(iter(feed))
    found = feed.samples.locate(batch["sample"].numpy())
    values = store.column("x")
    for row, start, count in zip(batch["x"].numpy(), found.starts, found.counts, strict=True):
        inside = min(count, view.length)
        if not np.array_equal(row[:inside], values[start : start + inside]) or row[inside:].any():
            return False
    return True


def bars(rng: np.random.Generator, rounds: int, small: bool) -> dict[str, Any]:
    """Windows over market bars: memcpy, the feed, and the loop that its authors have."""
    rows = 20_000 if small else 200_000
    x, y = rng.standard_normal((rows, 55), dtype=np.float32), rng.standard_normal((rows, 1), dtype=np.float32)
    store = stoker.Store.from_arrays(lengths=[rows], x=x)
    feed = stoker.Feed(store, stoker.Windows(48), batch_size=1024, order=stoker.Shuffle(0), last_batch="drop")
    batches = min(40, len(feed))
    ends = rng.permutation(np.arange(48, rows)).tolist()
    windows = SeqWindows(x, y, length=48, start=48, end=rows, batch=1024, order=ends)
    sides = {
        "memcpy": copying(x, 1024 * 48 * 55 * 4, batches),
        "feed": taking(feed, batches),
        "SeqWindows": taking(windows, batches),
    }
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    return {
        "share of memcpy": record.ratio(seconds["memcpy"], seconds["feed"]),
        "share of memcpy, SeqWindows": record.ratio(seconds["memcpy"], seconds["SeqWindows"]),
        "faster than SeqWindows": record.ratio(seconds["SeqWindows"], seconds["feed"]),
        "thousand windows per CPU second": round(batches * 1.024 / min(seconds["feed"])),
    }


if __name__ == "__main__":
    main()
