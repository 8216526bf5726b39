"""What does an epoch over 370 series of 26,304 hours cost, windows 168 -> 24, each series scaled by its own training steps?

The shape is that of the electricity data set (ECL). Every day one window, an MLP of one hidden layer, one thread, CPU time of the
process. The other sides scale all values once before, outside of what is measured; the feed scales in every gather.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import stoker
from benchmarks import record
from benchmarks.before.window_loops import Pair, loader, plain_loop, scaling_loop

QUESTION = "CPU time of an epoch: 370 series x 26,304 hours, windows 168 -> 24, scaled per series?"
LENGTH, HORIZON, STRIDE, BATCH, HIDDEN = 168, 24, 24, 256, 64


def main() -> None:
    """The batches alone, and with a step of an MLP each."""
    options = record.arguments(QUESTION)
    num_series, steps, rounds = (8, 1_000, 2) if options.small else (370, 26_304, options.rounds or 9)
    torch.set_num_threads(1)
    values, store = make_data(num_series, steps)
    view = stoker.Windows(LENGTH, stride=STRIDE, horizon=HORIZON, tail="drop")
    scaler = stoker.split.SeriesScaler.fit(store, None, columns=["x"])
    feed = stoker.Feed(
        store,
        view,
        batch_size=BATCH,
        order=stoker.Shuffle(0),
        normalize=scaler,
        last_batch="short",
        loading=stoker.feed.Loading(threads=0),
    )
    centers, divisors = (torch.from_numpy(scale[:, 0]) for scale in scaler.scales("x")[:2])
    scaled = (values - centers[:, None]) / divisors[:, None]
    cut: Any = {"length": LENGTH, "horizon": HORIZON, "stride": STRIDE, "batch_size": BATCH, "seed": 0}
    sides: dict[str, Callable[[], Iterable[Pair]]] = {
        "feed": lambda: pairs(feed),
        "plain loop": lambda: plain_loop(scaled, **cut),
        "plain loop that scales": lambda: scaling_loop(values, centers, divisors, **cut),
        "DataLoader": lambda: loader(scaled, **cut),
    }
    answer = {
        "windows per epoch": feed.num_samples,
        "batch": BATCH,
        "rounds": rounds,
        "every window once, bit-equal to the plain loop": all(same_windows(sides["feed"](), sides[name]()) for name in sides),
        "batches and an MLP": measure(sides, rounds, trains=True),
        "batches alone": measure(sides, rounds, trains=False),
    }
    if options.small:
        print(json.dumps(answer))
    else:
        record.save("bench_windows", QUESTION, answer)


def make_data(num_series: int, steps: int) -> tuple[Tensor, stoker.Store]:
    """Loads with a daily cycle, of very different levels; as a tensor, and as a store."""
    rng = np.random.default_rng(0)
    hours = np.arange(steps, dtype=np.float32)
    levels = rng.lognormal(5, 2, num_series).astype(np.float32)[:, None]
    noise = rng.standard_normal((num_series, steps), dtype=np.float32)
    found = levels * (1 + 0.3 * np.sin(hours * (2 * np.pi / 24)) + 0.1 * noise)
    return torch.from_numpy(found), stoker.Store.from_arrays(x=list(found))


def pairs(feed: stoker.Feed) -> Iterator[Pair]:
    """An epoch as inputs and targets."""
    feed.set_epoch(0)
    for batch in feed:
        yield batch["x"], batch["x_target"]


def epoch(make: Callable[[], Iterable[Pair]], *, trains: bool) -> Callable[[], None]:
    """One epoch: batches that are looked at, or steps of an MLP."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(LENGTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HORIZON))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def run() -> None:
        for x, y in make():
            if trains:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()

    return run


def measure(sides: dict[str, Callable[[], Iterable[Pair]]], rounds: int, *, trains: bool) -> dict[str, Any]:
    """CPU seconds of each side, and what part of the others the feed takes."""
    runs = {name: epoch(make, trains=trains) for name, make in sides.items()}
    seconds = record.interleave(runs, rounds=rounds, clock=time.process_time)
    return {
        "CPU seconds": {name: record.spread(values) for name, values in seconds.items()},
        "feed / others": {name: record.ratio(seconds["feed"], seconds[name]) for name in sides if name != "feed"},
    }


def same_windows(some: Iterable[Pair], others: Iterable[Pair]) -> bool:
    """Whether both have the same windows, in whatever order: hashes of the bits of each."""
    weights = np.random.default_rng(1).integers(0, 2**63, LENGTH + HORIZON, dtype=np.uint64)

    def hashes(side: Iterable[Pair]) -> np.ndarray[Any, Any]:
        return np.sort(np.concatenate([torch.cat(pair, dim=1).numpy().view(np.uint32) @ weights for pair in side]))

    return bool(np.array_equal(hashes(some), hashes(others)))


if __name__ == "__main__":
    main()
