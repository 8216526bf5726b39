"""Ranks: a training of several processes, measured by all of them at the same steps.

Each process has a session of its own. What they must do alike, such as the number of steps of a stretch, the first decides and
tells the others through the store that torch's processes share; nothing is added to their collectives. A stretch of steps without
the exchange of gradients shows what each process takes by itself, and so who is slow. One in which all meet before each exchange
shows what that costs when nobody is late: who has slept until the last one came is slow to wake, which is no cost of exchanging.
The first concludes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed

from stoker._clock import now_ns
from stoker.diagnose.measurements import Rank

PATIENCE = timedelta(seconds=60)
COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "barrier", "all_gather", "gather", "scatter", "all_to_all", "all_to_all_single"),
    *("all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_gather_object", "broadcast_object_list"),
)


class Ranks:
    """The processes of a training, as one of them sees them."""

    def __init__(self, rank: int, number: int, store: Any) -> None:
        self.rank = rank
        self.number = number
        self._store = store
        self._asked = 0
        self._meetings = 0
        self._alone: list[Any] = []
        self._undo: list[Callable[[], Any]] = []
        self.exchanged_ns = 0
        """Spent in collectives that the program called itself, from `part` or `meet` on until `join`."""

    def agree(self, value: float) -> float:
        """What the first process says; all must ask at the same step."""
        self._asked += 1
        key = f"agreed/{self._asked}"
        if self.rank == 0:
            self._store.set(key, repr(float(value)))
            return float(value)
        self._store.wait([key], PATIENCE)
        return float(self._store.get(key))

    # ---- steps without the exchange ----

    def part(self, modules: list[torch.nn.Module]) -> None:
        """From the next step on, gradients stay where they are, and what is exchanged by hand is timed."""
        for module in _parallel(modules):
            if module.require_backward_grad_sync:
                module.require_backward_grad_sync = False
                self._alone.append(module)
        for name in COLLECTIVES:
            self._time(name)

    def meet(self, modules: list[torch.nn.Module]) -> Meeting:
        """From the next step on, all begin to exchange gradients at the same time, and what is exchanged by hand is timed.

        Gradients of parallel modules are exchanged within the backward pass, those that a program exchanges by hand after it.
        """
        self._meetings += 1
        meeting = Meeting(self._store, self.number, name=f"met/{self._meetings}")
        parallel, original = _parallel(modules), torch.autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> None:
            if any(module.require_backward_grad_sync for module in parallel):
                meeting.wait()
            original(*args, **kwargs)
            if not parallel:
                meeting.wait()

        setattr(torch.autograd, "backward", backward)  # noqa: B010
        self._undo.append(lambda: setattr(torch.autograd, "backward", original))
        for name in COLLECTIVES:
            self._time(name)
        return meeting

    def join(self) -> None:
        """As before."""
        for module in self._alone:
            module.require_backward_grad_sync = True
        self._alone.clear()
        while self._undo:
            self._undo.pop()()

    def _time(self, name: str) -> None:
        original = getattr(torch.distributed, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = now_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self.exchanged_ns += now_ns() - begin

        setattr(torch.distributed, name, timed)
        self._undo.append(lambda: setattr(torch.distributed, name, original))

    # ---- what each has found ----

    def tell(self, found: Rank) -> None:
        """What this process takes."""
        self._store.set(f"found/{self.rank}", msgspec.json.encode(found).decode())

    def all(self) -> list[Rank]:
        """What each process takes, this one being the first."""
        keys = [f"found/{number}" for number in range(self.number)]
        self._store.wait(keys, PATIENCE)
        return [msgspec.json.decode(self._store.get(key), type=Rank) for key in keys]

    def take_turns(self, measure: Callable[[], Any]) -> Any:
        """Measure the machine: the first process alone, and then the others."""
        if self.rank:
            self._store.wait(["measured"], PATIENCE)
        try:
            return measure()
        finally:
            if self.rank == 0:
                self._store.set("measured", "1")


def _parallel(modules: list[torch.nn.Module]) -> list[Any]:
    return [module for module in modules if isinstance(module, torch.nn.parallel.DistributedDataParallel)]


def find_ranks() -> Ranks | None:
    """The processes of this training; None where it is one alone."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return None
    shared: Any = distributed.distributed_c10d
    store = shared.PrefixStore("stoker-diagnose", shared._get_default_store())
    return Ranks(distributed.get_rank(), distributed.get_world_size(), store)


# The meeting: a point of each step that no process of a training passes before all have come to it.
#
# Between the backward pass of a program and the exchange of its gradients. Where all begin to exchange at the same time, nobody
# waits
# for a slow one, and what the exchange itself takes is seen. The law: a process that does not come is not waited for for long,
# and
# never a second time.

PAUSE_SECONDS = 5e-5
"""Between two looks at who has come: a process that spins would take the core of one that is on its way."""
PATIENCE_SECONDS = 5.0


class Meeting:
    """Of so many processes, by a store that they share; one object for all steps of a stretch."""

    def __init__(self, store: Any, number: int, *, name: str) -> None:
        self._store = store
        self._number = number
        self._name = name
        self.held = 0
        """How often all came."""
        self.missed = False
        """Whether somebody did not come."""

    def wait(self) -> None:
        """Until all are here."""
        if self.missed:
            return
        key = f"{self._name}/{self.held}"
        come, until_ns = self._store.add(key, 1), now_ns() + int(PATIENCE_SECONDS * 1e9)
        while come < self._number:
            if now_ns() > until_ns:
                self.missed = True
                return
            time.sleep(PAUSE_SECONDS)
            come = self._store.add(key, 0)
        self.held += 1
