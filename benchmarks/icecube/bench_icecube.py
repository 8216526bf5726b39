"""What do packing, shuffling and padding neutrino events cost, next to pyarrow and to iceaggr's own loading?

Events are those of `stoker icecube make`: many small files, and few large ones. Rates and times are CPU time of the process, without
threads; torch runs on one. Batches have 128 events, as in the report of iceaggr's authors: ragged as a model is fed, and padded by
sensor (DOM) with 16 and with 84 pulses each. A pack and a read of the same Parquet files by pyarrow use all cores, so both are also
compared by wall time; also for one file as large as those of the competition. Memcpy copies the columns in pieces as large as a batch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

import stoker
from benchmarks import record
from benchmarks.before import iceaggr_events as iceaggr
from stoker_recipes.icecube import Dataset, EventFeed, make_events, pack_events

QUESTION = "What do packing, shuffling and padding neutrino events cost, next to pyarrow and to iceaggr's own loading?"

Array = npt.NDArray[Any]
COLUMNS = ("time", "charge", "sensor_id", "auxiliary")
PARTS = ("pack", "bare gather", "batches", "next to iceaggr", "equal to iceaggr's batches")
BATCH, LARGE_BATCH = 128, 1024
THEIR_BATCH, THEIR_SLOW_BATCH, THEIR_SECONDS = 1024, 8, 1.5
_PEAK = """
import json, sys
from stoker_recipes.icecube import data as packing
def peak():  # not ru_maxrss, which begins with that of the parent process
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1e3)
before = peak()
packing.pack_events(sys.argv[1], sys.argv[2])
print(json.dumps({"after imports, MB": before, "peak, MB": peak()}))
"""


def main() -> None:
    """Both layouts; with `--parts`, the other parts of the result file stay as they are."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, help="Where the result goes. [default: benchmarks/results/bench_icecube.json]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 2 if options.small else options.rounds
    shapes = {"66 files of 1,500": (66, 1500), "5 files of 18,000": (5, 18_000)}
    if options.small:
        shapes = {"3 files of 500": (3, 500)}
    is_part = set(options.parts) < set(PARTS) and not options.small
    earlier = json.loads((record.RESULTS / "bench_icecube.json").read_text()) if is_part else {}
    answer: dict[str, Any] = {"rounds": rounds, "batch": BATCH}
    if is_part:
        others = ", ".join(part for part in PARTS if part not in options.parts)
        answer["note"] = f"{others} are those of commit {earlier['commit']}, {earlier['rounds']} rounds."
    with tempfile.TemporaryDirectory() as name:
        for words, (files, events) in shapes.items():
            folder = make_events(Path(name) / words, files=files, events=events)
            store = pack_events(folder, folder / "events.stoker")
            measured: dict[str, Callable[[], dict[str, Any]]] = {
                "pack": partial(packing, folder, rounds),
                "bare gather": partial(bare, store, rounds),
                "batches": partial(batches, store, rounds),
                "next to iceaggr": partial(beside, store, folder, 1 if options.small else max(2, rounds // 3)),
                "equal to iceaggr's batches": partial(equal, Dataset(store), folder),
            }
            answer[words] = earlier.get(words, {}) | {part: measured[part]() for part in options.parts}
            print(words, json.dumps(answer[words], indent=1), flush=True)
        if not options.small:
            folder = make_events(Path(name) / "whole", files=1, events=200_000)  # as large as a file of the competition
            answer["1 file of 200,000"] = {"pack": packing(folder, min(rounds, 3))}
    print("done") if options.small else record.save("bench_icecube", QUESTION, answer, path=options.out)


def packing(folder: Path, rounds: int) -> dict[str, Any]:
    """A pack, and a read of the same files into memory by pyarrow; peak memory of a pack in a process of its own."""
    files = sorted((folder / "train").iterdir())
    numbers = itertools.count()
    targets: list[Path] = []

    def read() -> None:
        for file in files:
            pq.read_table(file)

    def pack() -> None:
        targets.append(folder / f"pack{next(numbers)}.stoker")
        pack_events(folder, targets[-1])

    def remove() -> None:
        for target in targets:
            subprocess.run(["rm", "-r", str(target)], check=True)
        targets.clear()

    wall: dict[str, list[float]] = {"read": [], "pack": []}
    cpu: dict[str, list[float]] = {"read": [], "pack": []}
    for number in range(rounds + 1):
        for name, side in (("read", read), ("pack", pack)):
            remove()
            began = time.perf_counter(), time.process_time()
            side()
            if number:
                wall[name].append(time.perf_counter() - began[0])
                cpu[name].append(time.process_time() - began[1])
    remove()
    ran = subprocess.run([sys.executable, "-c", _PEAK, folder, folder / "peak.stoker"], check=True, capture_output=True, text=True)
    return {
        "speed over pyarrow's read, wall time": record.ratio(wall["read"], wall["pack"]),
        "speed over pyarrow's read, CPU time": record.ratio(cpu["read"], cpu["pack"]),
        "memory": json.loads(ran.stdout.splitlines()[-1]),
    }


def feed_of(store: stoker.Store, order: Any) -> stoker.Feed:
    """Whole events end to end, made when asked for."""
    view = stoker.Sequences(200_000, layout="packed")
    return stoker.Feed(
        store,
        view,
        batch_size=LARGE_BATCH,
        order=order,
        columns=COLUMNS,
        loading=stoker.feed.Loading(residency="host", threads=0),
        last_batch="short",
    )


def through(batches: Any) -> None:
    """Take all of them, and keep none."""
    for _ in batches:
        pass


def bare(store: stoker.Store, rounds: int) -> dict[str, Any]:
    """Events as the store has them, and memcpy of the same bytes."""
    flat = [store.column(name).view(np.uint8) for name in COLUMNS]
    num_bytes = sum(len(one) for one in flat)
    num_batches = -(-len(store) // LARGE_BATCH)
    buffer = np.empty(max(len(one) for one in flat), dtype=np.uint8)

    def copy() -> None:
        for one in flat:
            piece = -(-len(one) // num_batches)
            for start in range(0, len(one), piece):
                np.copyto(buffer[: min(piece, len(one) - start)], one[start : start + piece])

    orders = {"sequential": stoker.Sequential(), "shuffled": stoker.Shuffle(0)}
    feeds = {name: feed_of(store, order) for name, order in orders.items()}
    sides: dict[str, Callable[[], Any]] = {"memcpy": copy}
    sides |= {name: lambda feed=feed: through(feed) for name, feed in feeds.items()}
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    return {
        "bytes per event": round(num_bytes / len(store)),
        "shuffled over sequential": record.ratio(seconds["shuffled"], seconds["sequential"]),
    } | {
        name: {
            "events per CPU second": record.spread([len(store) / second for second in seconds[name]]),
            "share of memcpy": record.ratio(seconds["memcpy"], seconds[name]),
        }
        for name in feeds
    }


def kinds_of_batches(store: stoker.Store) -> dict[str, Callable[[str], Iterator[Any]]]:
    """Each kind as a function from the name of an order to a pass."""
    orders = {
        "sequential": stoker.Sequential(),
        "shuffled": stoker.Shuffle(0),
        "block 64 in 16K": stoker.BlockShuffle(0, 64, 16384),
    }
    plans = {name: feed_of(store, order).plan for name, order in orders.items()}

    def collated(dataset: Dataset, collate: Callable[[Any], Any], order: str) -> Iterator[Any]:
        for start in range(0, len(store), BATCH):
            yield collate(dataset.__getitems__(plans[order].numbers(0, start, start + BATCH)))

    def fed(size: int, order: str) -> Iterator[Any]:
        return iter(
            EventFeed(
                store,
                batch_size=size,
                order=orders[order],
                loading=stoker.feed.Loading(threads=0, residency="host"),
            )
        )

    few, many = Dataset(store, max_pulses=16), Dataset(store)
    return {
        "ragged, 84 pulses": partial(collated, many, many.collate_ragged),
        "ragged, 84 pulses, by EventFeed": partial(fed, BATCH),
        "padded, 16 pulses": partial(collated, few, few.collate_padded),
        "padded, 84 pulses": partial(collated, many, many.collate_padded),
    }


def batches(store: stoker.Store, rounds: int) -> dict[str, Any]:
    """A whole epoch in three orders, batch by batch in turn: what disturbs the machine meets all alike.

    A part of an epoch would not do. A thousandth of the events has a quarter of all pulses, so parts of two orders differ by up to 9 %.
    """
    found: dict[str, Any] = {}
    num_batches = -(-len(store) // BATCH)
    for kind, passes in kinds_of_batches(store).items():
        seconds: dict[str, list[float]] = {"sequential": [], "shuffled": [], "block 64 in 16K": []}
        for number in range(rounds + 1):
            begun = {name: passes(name) for name in seconds}
            spent = dict.fromkeys(begun, 0.0)
            for name in itertools.chain.from_iterable(itertools.repeat([*begun, *reversed(begun)], num_batches // 2 + 1)):
                start = time.process_time()
                next(begun[name], None)
                spent[name] += time.process_time() - start
            for name in seconds if number else ():
                seconds[name].append(spent[name])
        found[kind] = {
            "CPU ms per batch": {
                name: record.spread([1e3 * value / num_batches for value in values]) for name, values in seconds.items()
            },
            "shuffled over sequential": record.ratio(seconds["shuffled"], seconds["sequential"]),
            "blocks over sequential": record.ratio(seconds["block 64 in 16K"], seconds["sequential"]),
        }
        if kind.startswith("padded"):
            tokens = next(passes("sequential"))["tokens"].numpy()
            cleared = record.interleave({"fill": partial(tokens.fill, 0)}, rounds=20 * rounds, clock=time.process_time)["fill"]
            found[kind]["CPU ms to fill the memory of its tokens with 0 by NumPy"] = record.spread([1e3 * one for one in cleared])
    return found


def beside(store: stoker.Store, folder: Path, rounds: int) -> dict[str, Any]:
    """Rates of iceaggr's loading, of a few seconds each, in turn with ours: the same padded batches, 16 pulses per DOM."""
    collate = iceaggr.make_collate_flat(iceaggr.sensor_positions(folder))
    dataset = Dataset(store, max_pulses=16)
    samplers: dict[str, Any] = {"sequential": SequentialSampler, "shuffled": RandomSampler}
    rates: dict[str, list[float]] = {f"{who}, {name}": [] for who in ("stoker", "iceaggr") for name in samplers}
    rate(DataLoader(dataset, batch_size=BATCH, collate_fn=dataset.collate_padded), len(store), BATCH)  # kernels are loaded
    for _, (name, sampler) in itertools.product(range(rounds), samplers.items()):
        ours = DataLoader(dataset, batch_size=BATCH, sampler=sampler(dataset), collate_fn=dataset.collate_padded)
        rates[f"stoker, {name}"].append(rate(ours, len(store), BATCH))
        theirs = iceaggr.IceCubeDataset(folder)
        size = THEIR_BATCH if name == "sequential" else THEIR_SLOW_BATCH
        loader = DataLoader(theirs, batch_size=size, sampler=sampler(theirs), collate_fn=collate)
        rates[f"iceaggr, {name}"].append(rate(loader, len(theirs), size))
    return {
        "events per CPU second": {name: record.spread(found) for name, found in rates.items()},
        "times as fast": {name: record.ratio(rates[f"stoker, {name}"], rates[f"iceaggr, {name}"]) for name in samplers},
    }


def rate(batches: Any, num_events: int, size: int) -> float:
    """Events per CPU second, of an epoch or as many batches as `THEIR_SECONDS` hold."""
    seen, start = 0, time.process_time()
    for _ in batches:
        seen = min(seen + size, num_events)
        if time.process_time() - start > THEIR_SECONDS:
            break
    return seen / (time.process_time() - start)


def equal(dataset: Dataset, folder: Path) -> dict[str, Any]:
    """Some shuffled events made both ways, 84 pulses per DOM."""
    theirs = iceaggr.IceCubeDataset(folder, cache_size=len(list((folder / "train").iterdir())))
    collate = iceaggr.make_collate_flat(iceaggr.sensor_positions(folder), max_pulses=84)
    numbers = np.random.default_rng(0).permutation(len(dataset))[:2048].tolist()
    ties, others, largest = 0, 0, 0.0
    for start in range(0, len(numbers), BATCH):
        items = [theirs[number] for number in numbers[start : start + BATCH]]
        expected, made = collate(items), dataset.collate_padded(dataset.__getitems__(numbers[start : start + BATCH]))
        gaps = (made["tokens"] - expected["dom_vectors"]).abs().flatten(1).amax(1)
        alike = (gaps < 1e-6) & (made["mask"] == expected["padding_mask"]).all(1)
        tied = [has_tie(items[row]["pulse_features"].numpy()) for row in (~alike).nonzero()[:, 0].tolist()]
        ties, others = ties + sum(tied), others + len(tied) - sum(tied)
        largest = max(largest, float(gaps[alike].max()))
    return {
        "events compared": len(numbers),
        "events that differ as two sensors were first hit at the same time, at the limit of 128": ties,
        "events that differ otherwise": others,
        "largest gap of a value in all others": largest,
    }


def has_tie(pulses: Array) -> bool:
    """Whether the 128th and the 129th sensor of an event were first hit at the same time: iceaggr may then keep either."""
    _, first = np.unique(pulses[:, 2], return_index=True)  # pulses are in time order
    times = np.sort(pulses[first, 0])
    return len(times) > 128 and bool(times[127] == times[128])


if __name__ == "__main__":
    main()
