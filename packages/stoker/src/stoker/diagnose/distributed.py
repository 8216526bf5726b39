"""A distributed run, measured by all of its processes at the same steps. windows.py and child.py use it.

Each process has its own session. Rank 0 decides what all must do alike, such as the number of steps of a window, and publishes it
through the key-value store of torch.distributed; no collective is added. A window without the all-reduce (`MeasuredRanks.part`) shows
how long each rank takes alone, and so which one is slow. Rank 0 makes the verdict.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed

from stoker._clock import now_ns
from stoker.diagnose.hooks import replace
from stoker.diagnose.measurements import Rank

PATIENCE = timedelta(seconds=60)
COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "barrier", "all_gather", "gather", "scatter", "all_to_all", "all_to_all_single"),
    *("all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_gather_object", "broadcast_object_list"),
)


class MeasuredRanks:
    """The processes of a distributed run, used by one of them."""

    def __init__(self, rank: int, number: int, store: Any) -> None:
        self.rank = rank
        self.number = number
        self._store = store
        self._asked = 0
        self._undo = ExitStack()
        self.collective_ns = 0  # time in collectives that the program called itself, between `part` and `join`

    def agree(self, value: float) -> float:
        """The value of rank 0. All ranks must call this at the same step."""
        self._asked += 1
        key = f"agreed/{self._asked}"
        if self.rank == 0:
            self._store.set(key, repr(float(value)))
            return float(value)
        self._store.wait([key], PATIENCE)
        return float(self._store.get(key))

    def part(self, modules: list[torch.nn.Module]) -> None:
        """From the next step on, skip the all-reduce of gradients and time the program's own collectives."""
        for module in modules:
            if isinstance(module, torch.nn.parallel.DistributedDataParallel) and module.require_backward_grad_sync:
                replace(self._undo, module, "require_backward_grad_sync", False)
        self._time_collectives()

    def join(self) -> None:
        """Undo `part`."""
        self._undo.close()

    def _time_collectives(self) -> None:
        def timed(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def collective(*args: Any, **kwargs: Any) -> Any:
                begin = now_ns()
                try:
                    return original(*args, **kwargs)
                finally:
                    self.collective_ns += now_ns() - begin

            return collective

        for name in COLLECTIVES:
            replace(self._undo, torch.distributed, name, timed(getattr(torch.distributed, name)))

    def publish(self, found: Rank) -> None:
        """Publish the step times of this rank."""
        self._store.set(f"found/{self.rank}", msgspec.json.encode(found).decode())

    def all(self) -> list[Rank]:
        """The step times of all ranks."""
        keys = [f"found/{number}" for number in range(self.number)]
        self._store.wait(keys, PATIENCE)
        return [msgspec.json.decode(self._store.get(key), type=Rank) for key in keys]

    def take_turns(self, measure: Callable[[], Any]) -> Any:
        """Measure the machine: rank 0 alone, and then the others."""
        if self.rank:
            self._store.wait(["measured"], PATIENCE)
        try:
            return measure()
        finally:
            if self.rank == 0:
                self._store.set("measured", "1")


def find_ranks() -> MeasuredRanks | None:
    """The processes of a distributed run; None if there is only one process."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return None
    shared: Any = distributed.distributed_c10d
    store = shared.PrefixStore("stoker-diagnose", shared._get_default_store())
    return MeasuredRanks(distributed.get_rank(), distributed.get_world_size(), store)
