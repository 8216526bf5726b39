"""What does shuffling ragged events cost, bare and padded by sensor, and how do iceaggr's own ways compare?

Events are those of `benchmarks.events`: a tenth of the files that its report speaks of, and a tenth of what it really read.
All rates are events per second of CPU time of the process, without threads; torch runs on one. Memcpy copies the same columns
in pieces as large as a batch, one after the other, into a buffer that it uses again. Padding is into a buffer that is used
again too.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

import stoker
from benchmarks import events, record
from benchmarks.before import iceaggr_events as iceaggr
from benchmarks.dom_padding import pad_doms

QUESTION = "What does shuffling ragged events cost, bare and padded by sensor, next to iceaggr's own loading?"

Array = npt.NDArray[Any]
Passes = dict[str, Callable[[], Iterator[Any]]]
COLUMNS = ("time", "charge", "sensor_id", "auxiliary")
ORDERS = {"sequential": stoker.Sequential(), "shuffled": stoker.Shuffle(0)}
AS_MODELS_TAKE_THEM = {"time": "float32", "charge": "float32"}
BATCH = 1024
THEIR_BATCH, THEIR_SLOW_BATCH, THEIR_SECONDS = 1024, 32, 1.5


def main() -> None:
    """Both sets of files, each with columns as stored and as the model takes them."""
    options = record.arguments(QUESTION)
    torch.set_num_threads(1)
    rounds = 2 if options.small else options.rounds or 11
    shapes = {"66 files of 1,500": events.CLAIMED, "5 files of 18,000": events.REALLY_RUN}
    if options.small:
        shapes = {"3 files of 500": events.Shape(files=3, events_per_file=500)}
    answer: dict[str, Any] = {"rounds": rounds, "batch": BATCH}
    with tempfile.TemporaryDirectory() as name:
        for words, shape in shapes.items():
            folder = events.write(Path(name) / words, shape)
            files = str(folder / "train" / "*.parquet")
            stored = stoker.pack(files, folder / "stored", series="event_id")
            lean = stoker.pack(files, folder / "lean", series="event_id", dtype=AS_MODELS_TAKE_THEM)
            positions = iceaggr.sensor_positions(folder).numpy()
            answer[words] = {
                "bare gather, time and charge as float32": bare(lean, rounds),
                "bare gather, columns as stored": bare(stored, rounds),
                "padded by sensor, by the feed": padded(by_feed(lean, positions), len(lean), rounds),
                "padded by sensor, straight from the columns": padded(by_columns(lean, positions), len(lean), rounds),
                "next to iceaggr": beside(lean, folder, positions, 1 if options.small else max(2, rounds // 3)),
                "equal to iceaggr's batches": equal(lean, folder, positions),
            }
            print(words, answer[words], flush=True)
    print("done") if options.small else record.save("bench_events", QUESTION, answer)


def feed_of(store: stoker.Store, order: Any, **options: Any) -> stoker.Feed:
    """Whole events end to end, made when asked for."""
    view = stoker.Sequences(200_000, layout="packed")
    return stoker.Feed(
        store, view, batch_size=BATCH, order=order, columns=COLUMNS, residency="host", threads=0, last_batch="short", **options
    )


def through(batches: Any) -> None:
    """Take all of them, and keep none."""
    for _ in batches:
        pass


def bare(store: stoker.Store, rounds: int) -> dict[str, Any]:
    """Batches as the store has them, and memcpy of the same bytes."""
    flat = [store.column(name).view(np.uint8) for name in COLUMNS]
    num_bytes = sum(len(one) for one in flat)
    num_batches = -(-len(store) // BATCH)
    buffer = np.empty(max(len(one) for one in flat), dtype=np.uint8)

    def copy() -> None:
        for one in flat:
            piece = -(-len(one) // num_batches)
            for start in range(0, len(one), piece):
                np.copyto(buffer[: min(piece, len(one) - start)], one[start : start + piece])

    feeds = {name: feed_of(store, order) for name, order in ORDERS.items()}
    sides: dict[str, Callable[[], Any]] = {"memcpy": copy}
    sides |= {name: lambda feed=feed: through(feed) for name, feed in feeds.items()}
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    return {
        "bytes per event": round(num_bytes / len(store)),
        "memcpy GB/s": record.spread([num_bytes / one / 1e9 for one in seconds["memcpy"]]),
        "shuffled over sequential": record.ratio(seconds["shuffled"], seconds["sequential"]),
    } | {
        name: {
            "events per CPU second": record.spread([len(store) / one for one in seconds[name]]),
            "share of memcpy": record.ratio(seconds["memcpy"], seconds[name]),
        }
        for name in feeds
    }


class Padding:
    """Sensor vectors of a packed batch, into buffers that are used again."""

    def __init__(self, positions: Array) -> None:
        self._positions = positions
        self._vectors = np.empty((BATCH, 128, 52), dtype=np.float32)
        self._mask = np.empty((BATCH, 128), dtype=np.bool_)

    def fill(self, columns: dict[str, Array], starts: Array, stops: Array) -> dict[str, Array]:
        """Of events that lie there in these columns."""
        time, charge, sensor, auxiliary = (columns[name] for name in COLUMNS)
        vectors, mask = self._vectors[: len(starts)], self._mask[: len(starts)]
        pad_doms(time, charge, sensor, auxiliary, starts, stops, self._positions, out=vectors, mask=mask)
        return {"dom_vectors": vectors, "padding_mask": mask}

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """As an encoder of a feed."""
        bounds = batch["cu_seqlens"]
        return self.fill(batch, bounds[:-1], bounds[1:])


def by_feed(store: stoker.Store, positions: Array) -> Passes:
    """Gathered, then padded: what a user of a feed writes."""
    feeds = {name: feed_of(store, order, transform=Padding(positions)) for name, order in ORDERS.items()}
    return {name: feed.__iter__ for name, feed in feeds.items()}


def by_columns(store: stoker.Store, positions: Array) -> Passes:
    """Padded out of the columns where events lie: one pass less, for those who want no pulses."""
    columns = {name: store.column(name) for name in COLUMNS}
    padding = Padding(positions)

    def run(feed: stoker.Feed) -> Iterator[dict[str, Array]]:
        for start in range(0, len(store), BATCH):
            found = feed.samples.locate(feed.plan.numbers(0, start, start + BATCH))
            yield padding.fill(columns, found.starts, found.starts + found.counts)

    return {name: partial(run, feed_of(store, order)) for name, order in ORDERS.items()}


def padded(passes: Passes, num_events: int, rounds: int) -> dict[str, Any]:
    """Whole epochs in both orders, batch by batch in turn: what disturbs the machine for a moment meets both alike."""
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for number in range(rounds + 1):
        begun = {name: begin() for name, begin in passes.items()}
        spent = dict.fromkeys(begun, 0.0)
        for name in itertools.chain.from_iterable(itertools.repeat([*begun, *reversed(begun)], -(-num_events // BATCH) // 2 + 1)):
            start = time.process_time()
            next(begun[name], None)
            spent[name] += time.process_time() - start
        for name in passes if number else ():
            seconds[name].append(spent[name])
    return {
        "shuffled over sequential": record.ratio(seconds["shuffled"], seconds["sequential"]),
        "events per CPU second": {name: record.spread([num_events / one for one in seconds[name]]) for name in passes},
    }


def beside(store: stoker.Store, folder: Path, positions: Array, rounds: int) -> dict[str, Any]:
    """Rates of iceaggr's loading, of a few seconds each, in turn with those of the feed."""
    collators = {"bare": iceaggr.collate_variable_length, "padded": iceaggr.make_collate_flat(torch.from_numpy(positions))}
    encoders = {"bare": None, "padded": Padding(positions)}
    rates: dict[str, list[float]] = {}
    for kind, collate in collators.items():
        ours = {name: feed_of(store, order, transform=encoders[kind]) for name, order in ORDERS.items()}
        for name, feed in ours.items():
            through(itertools.islice(feed, 2))  # kernels are compiled, or loaded, on their first use
            rates |= {f"feed, {kind}, {name}": [], f"iceaggr, {kind}, {name}": []}
        for _, (name, feed) in itertools.product(range(rounds), ours.items()):
            rates[f"feed, {kind}, {name}"].append(rate(feed, len(store), BATCH))
            theirs = iceaggr.IceCubeDataset(folder)
            size = THEIR_BATCH if name == "sequential" else THEIR_SLOW_BATCH
            sampler = SequentialSampler(theirs) if name == "sequential" else RandomSampler(theirs)
            loader = DataLoader(theirs, batch_size=size, sampler=sampler, collate_fn=collate)
            rates[f"iceaggr, {kind}, {name}"].append(rate(loader, len(theirs), size))
    return {
        "events per CPU second": {name: record.spread(found) for name, found in rates.items()},
        "times as fast": {
            f"{kind}, {name}": record.ratio(rates[f"feed, {kind}, {name}"], rates[f"iceaggr, {kind}, {name}"])
            for kind, name in itertools.product(collators, ORDERS)
        },
    }


def rate(batches: Any, num_events: int, size: int) -> float:
    """Events per CPU second, of an epoch or as many batches as `THEIR_SECONDS` hold."""
    seen, start = 0, time.process_time()
    for _ in batches:
        seen = min(seen + size, num_events)
        if time.process_time() - start > THEIR_SECONDS:
            break
    return seen / (time.process_time() - start)


def equal(store: stoker.Store, folder: Path, positions: Array) -> dict[str, Any]:
    """Two shuffled batches made both ways."""
    theirs = iceaggr.IceCubeDataset(folder, cache_size=len(list((folder / "train").iterdir())))
    collate = iceaggr.make_collate_flat(torch.from_numpy(positions))
    bare_equal, ties, others, largest, num_events = True, 0, 0, 0.0, 0
    for flat, vectors, numbers in itertools.islice(both(store, positions), 2):
        batch = [theirs[number] for number in numbers]
        features = torch.stack([flat[name].float() for name in COLUMNS], dim=1)
        packed = iceaggr.collate_variable_length(batch)
        bare_equal &= torch.equal(features, packed["pulse_features"])
        bare_equal &= torch.equal(flat["cu_seqlens"].diff().long(), packed["event_lengths"])
        expected = collate(batch)
        gaps = (vectors["dom_vectors"] - expected["dom_vectors"]).abs().flatten(1).amax(1)
        alike = (gaps < 1e-6) & (vectors["padding_mask"] == expected["padding_mask"]).all(1)
        tied = [has_tie(batch[row]["pulse_features"].numpy()) for row in (~alike).nonzero()[:, 0].tolist()]
        ties, others = ties + sum(tied), others + len(tied) - sum(tied)
        largest = max(largest, float(gaps[alike].max()))
        num_events += len(numbers)
    return {
        "events compared": num_events,
        "bare batches, bit for bit": bare_equal,
        "padded events that differ as two sensors were first hit at the same time, at the limit of 128": ties,
        "padded events that differ otherwise": others,
        "largest gap of a padded value in all others": largest,
    }


def has_tie(pulses: Array) -> bool:
    """Whether the 128th and the 129th sensor of an event were first hit at the same time: either may then be the last."""
    _, first = np.unique(pulses[:, 2], return_index=True)  # pulses stand in time order
    times = np.sort(pulses[first, 0])
    return len(times) > 128 and bool(times[127] == times[128])


def both(store: stoker.Store, positions: Array) -> Iterator[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[int]]]:
    """Batches of the bare and of the padding feed, and which events they hold."""
    flat = feed_of(store, ORDERS["shuffled"], return_index=True)
    vectors = feed_of(store, ORDERS["shuffled"], transform=Padding(positions))
    for one, other in zip(flat, vectors, strict=True):
        yield one, other, one["sample"].tolist()


if __name__ == "__main__":
    main()
