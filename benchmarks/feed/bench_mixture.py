"""How fast is a feed of three stores, compared with a feed of one store that has all their series?

Both read in random order on one core: order, index, gather, tensors. The stores are a half, a third and a sixth of the whole, so
every batch has rows of all of them. CPU time of the process, interleaved.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import stoker
from benchmarks import record

QUESTION = "What is the speed of a mixture of 3 stores, relative to one store of the same total size?"
SHARES = (3, 2, 1)


def main() -> None:
    """Windows of several lengths and columns, whole sequences, and weights."""
    options = record.arguments(QUESTION)
    series, steps, rounds = (60, 400, 3) if options.small else (600, 20_000, options.rounds or 15)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    cases: dict[str, tuple[Any, int, dict[str, Any]]] = {
        "windows of 192, batch 32": (stoker.Windows(168, horizon=24, tail="drop"), 32, {}),
        "windows of 192, batch 256": (stoker.Windows(168, horizon=24, tail="drop"), 256, {}),
        "windows of 192, batch 2048": (stoker.Windows(168, horizon=24, tail="drop"), 2048, {}),
        "windows of 192, batch 256, normalized": (stoker.Windows(168, horizon=24, tail="drop"), 256, {"normalize": "zero"}),
        "windows of 192, batch 256, padded": (stoker.Windows(168, horizon=24), 256, {}),
        "windows of 192 x 8 columns, batch 256": (stoker.Windows(168, horizon=24, tail="drop"), 256, {"columns": list("abcdefgh")}),
        "windows of 2048, batch 64": (stoker.Windows(2047 if not options.small else 255, shift=1, tail="drop"), 64, {}),
    }
    names = list("abcdefgh")
    lengths = rng.integers(steps // 2, steps, series)
    columns = {name: rng.standard_normal(int(lengths.sum()), dtype=np.float32) for name in names}
    one = stoker.Store.from_arrays(lengths=lengths, **columns)
    cuts = np.cumsum([0, *SHARES]) * series // sum(SHARES)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    several = [
        stoker.Store.from_arrays(lengths=lengths[a:b], **{name: columns[name][ends[a] : ends[b]] for name in names})
        for a, b in pairwise(cuts.tolist())
    ]
    answer: dict[str, Any] = {"rounds": rounds, "series": series, "steps": int(lengths.sum()), "shares": list(SHARES), "cases": {}}
    for name, (view, batch_size, given) in cases.items():
        common = {"batch_size": batch_size, "order": stoker.Shuffle(0), "last_batch": "drop", "columns": ["a"], **given}
        feeds = {"one": stoker.Feed(one, view, **common), "mixture": stoker.Feed(several, view, **common)}
        feeds["mixture with weights"] = stoker.Feed(
            several, view, **{**common, "order": stoker.Mixture(stoker.Shuffle(0), weights=[1, 1, 1])}
        )
        batches = min(len(feeds["one"]), max(4, 2**15 // batch_size))
        seconds = record.interleave(
            {name: taking(feed, batches) for name, feed in feeds.items()}, rounds=rounds, clock=time.process_time
        )
        answer["cases"][name] = {
            "speed of the mixture, relative to one store": record.ratio(seconds["one"], seconds["mixture"]),
            "speed with weights, relative to one store": record.ratio(seconds["one"], seconds["mixture with weights"]),
            "thousand samples per CPU second, mixture": round(batches * batch_size / min(seconds["mixture"]) / 1e3),
            "batches equal": is_equal(one, several, view, common),
        }
        print(name, answer["cases"][name], flush=True)
    print("done") if options.small else record.save("bench_mixture", QUESTION, answer)


def taking(feed: stoker.Feed, number: int) -> Callable[[], None]:
    """Go through the first batches of an epoch."""

    def run() -> None:
        for count, _ in enumerate(feed, 1):
            if count == number:
                return

    return run


def is_equal(one: stoker.Store, several: list[stoker.Store], view: Any, options: dict[str, Any]) -> bool:
    """Whether a batch of the mixture has the rows that the one store has under the same numbers."""
    batch = next(iter(stoker.Feed(several, view, returns=stoker.feed.Returns(index=True), **options)))
    rows = stoker.Feed(one, view, returns=stoker.feed.Returns(index=True), **options).dataset[batch["sample"].numpy()]
    return all(torch.equal(batch[name], rows[name]) for name in rows)


if __name__ == "__main__":
    main()
