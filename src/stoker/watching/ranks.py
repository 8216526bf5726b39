"""Which rank slows a distributed run down: explanations of all ranks, exchanged after a slowdown.

Ranks that train together have the same step times, because each all-reduce waits for the last one. So every rank explains its slowdown
by its own counters, and publishes that through the key-value store of torch.distributed; nothing is added to the collectives of the
program, and a rank that does not answer is not waited for. The rank whose own counters explain the time is the slow one.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import msgspec

from stoker.watching.cause import SHARE, Explanation

NEAR_STEPS = 512  # explanations of the same slowdown are as near as this


class WatchedRanks:
    """The ranks of a run, as one of them sees them.

    Args:
        rank: The number of this one.
        number: How many there are.
        store: The key-value store of torch.distributed, or what has its `set`, `check` and `get`.
    """

    def __init__(self, rank: int, number: int, store: Any) -> None:
        self.rank = rank
        self.number = number
        self._store = store

    def publish(self, step: int, found: Explanation) -> None:
        """Let other ranks read what this one has found."""
        self._store.set(f"{self.rank}", msgspec.json.encode({"step": step, **asdict(found)}).decode())

    def collect(self, step: int) -> dict[int, Explanation]:
        """What ranks have published about the slowdown at this step, by rank."""
        found = {}
        for rank in range(self.number):
            if self._store.check([f"{rank}"]):
                values = msgspec.json.decode(self._store.get(f"{rank}"))
                if abs(values.pop("step") - step) <= NEAR_STEPS:
                    found[rank] = Explanation(**values)
        return found


def slow_rank(found: dict[int, Explanation], number: int) -> int | None:
    """The rank that explains the slowdown; None if none does, or if most do, as with a slow file system."""
    known = {rank: one for rank, one in found.items() if one.cause != "step"}
    if not known:
        # A rank that computes longer is busy while the others sleep in the all-reduce.
        known = {rank: one for rank, one in found.items() if one.busy_share >= SHARE}
    if not known or 2 * len(known) > number:
        return None
    return max(known, key=lambda rank: (known[rank].share, known[rank].busy_share))


def find_ranks() -> WatchedRanks | None:
    """The ranks that this process belongs to; None if it trains alone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() < 2:
        return None
    shared: Any = distributed.distributed_c10d
    store = shared.PrefixStore("stoker-watch", shared._get_default_store())
    return WatchedRanks(distributed.get_rank(), distributed.get_world_size(), store)
