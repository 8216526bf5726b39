"""The golden orders: `python -m tests.sampling.golden` writes them anew to tests/data/orders.json.

Do that for a new case only. If a case that is there changes, states saved by earlier versions resume elsewhere: that is a
break of the format, to be made on purpose, with a new version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from tests.sampling import twins

from stoker.sampling.orders import BlockShuffle, ByLength, Order, Sequential, Shuffle, Weighted
from stoker.sampling.views import Sequences

FILE = Path(__file__).parents[1] / "data" / "orders.json"
ENDS = 12
HASHED = 100_000

ORDERS: Mapping[str, Any] = {
    "Sequential()": lambda n: Sequential(),
    "Shuffle(seed=0)": lambda n: Shuffle(0),
    "Shuffle(seed=1)": lambda n: Shuffle(1),
    "Shuffle(seed=2**63 - 1)": lambda n: Shuffle(2**63 - 1),
    "BlockShuffle(seed=0, block=64, window=11264)": lambda n: BlockShuffle(0, 64, 11264),
    "BlockShuffle(seed=7, block=16, window=1024)": lambda n: BlockShuffle(7, 16, 1024),
    "BlockShuffle(seed=7, block=5, window=33)": lambda n: BlockShuffle(7, 5, 33),
}
SMALL_ORDERS: Mapping[str, Any] = {
    "Weighted([(i + 1) % 7 for i in range(n)], seed=3)": lambda n: Weighted((np.arange(n) + 1) % 7, 3),
    "ByLength(seed=3, group=8, pool=4)": lambda n: ByLength(3, 8, 4),
}
SIZES = (1, 2, 10, 1000, 99_000, 132_000_000, 2**40)
EPOCHS = (0, 1, 1000)


def golden() -> list[dict[str, Any]]:
    """Every case: its first, middle and last numbers, and a hash of all of them where they are not too many."""
    cases = []
    for size in SIZES:
        known = {**ORDERS, **SMALL_ORDERS} if size <= HASHED else ORDERS
        for name, make in known.items():
            cases += [case(name, make(size), size, epoch) for epoch in EPOCHS]
    return cases


def case(name: str, order: Order, size: int, epoch: int) -> dict[str, Any]:
    """Samples are series of 1 to 13 steps."""
    lengths = twins.ragged([i * i % 13 + 1 for i in range(size)]) if size <= HASHED else twins.uniform(1, size)
    plan = order.over(Sequences(64).over(lengths), batch_size=32)
    middle = size // 2
    return {
        "order": name,
        "samples": size,
        "epoch": epoch,
        "first": plan.numbers(epoch, 0, ENDS).tolist(),
        "middle": plan.numbers(epoch, middle, middle + ENDS).tolist(),
        "last": plan.numbers(epoch, max(0, size - ENDS), size).tolist(),
        "xxh3": xxhash.xxh3_64_hexdigest(plan.numbers(epoch, 0, size)) if size <= HASHED else None,
    }


if __name__ == "__main__":
    FILE.write_text("[\n" + ",\n".join(json.dumps(case) for case in golden()) + "\n]\n")
