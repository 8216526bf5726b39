"""Slots: the memory that batches are made in, used again once nobody looks at the batch any more.

A batch on the CPU is a tensor over the slot itself, and holds a reference to it; a slot is free when only the ring refers
to it. For a GPU the slot is pinned, and free when the copy out of it has ended. When no slot is free, a new one is made:
a batch that is kept never changes.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.memory import ALIGNMENT

Array = npt.NDArray[Any]

POISON = 0xCB


class Event(Protocol):
    """What tells that a copy has ended (a CUDA event)."""

    def query(self) -> bool:
        """Whether it has."""


class Slot:
    """Bytes for one batch. `buffer` is the object that tensors refer to; `lead` is where the aligned bytes begin."""

    __slots__ = ("__weakref__", "buffer", "copied", "lead")

    def __init__(self, num_bytes: int, *, pinned: bool) -> None:
        self.buffer: Array = _pinned(num_bytes) if pinned else np.empty(num_bytes + ALIGNMENT, dtype=np.uint8)
        self.lead = -self.buffer.ctypes.data % ALIGNMENT
        self.copied: Event | None = None

    @property
    def capacity(self) -> int:
        """Bytes behind `lead`."""
        return len(self.buffer) - self.lead


@cache
def _guard_forks() -> None:
    """Let a forked process (a worker of somebody's DataLoader) never collect what the parent had left as garbage.

    Freeing pinned memory or an event asks CUDA, which a fork does not have, and that kills the process.
    """
    os.register_at_fork(after_in_child=gc.freeze)


def _pinned(num_bytes: int) -> Array:
    import torch

    _guard_forks()
    return torch.empty(num_bytes + ALIGNMENT, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()


def _references(slot: Slot) -> int:
    return sys.getrefcount(slot.buffer)


_EMPTY = Slot(1, pinned=False)
_ALONE = _references(_EMPTY)  # what a buffer has that nobody but its slot refers to


def _is_free(slot: Slot) -> bool:
    return _references(slot) == _ALONE and (slot.copied is None or slot.copied.query())


class Ring:
    """Slots that are lent and come back by themselves."""

    def __init__(self, *, pinned: bool, keep: int, poison: bool = False) -> None:
        self._pinned = pinned
        self._keep = keep
        self._poison = poison
        self._slots: list[Slot] = []
        self._lent: set[int] = set()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def take(self, num_bytes: int) -> Slot:
        """A slot of at least this size that nobody looks at. Give it back when the batch has been made from it."""
        if os.getpid() != self._process:
            self._lock, self._process = threading.Lock(), os.getpid()  # a fork may have come while a thread held it
        with self._lock:
            free = [slot for slot in self._slots if id(slot) not in self._lent and _is_free(slot)]
            fitting = next((slot for slot in free if slot.capacity >= num_bytes), None)
            if fitting is None:
                fitting = Slot(num_bytes, pinned=self._pinned)
                self._slots.append(fitting)
                surplus = free  # all too small
            else:
                surplus = [slot for slot in free if slot is not fitting][self._keep :]
            for slot in surplus:
                self._slots.remove(slot)
            self._lent.add(id(fitting))
        if self._poison:
            fitting.buffer.fill(POISON)
        return fitting

    def give_back(self, slot: Slot) -> None:
        """Let the slot be taken again, as soon as nothing else refers to its buffer."""
        with self._lock:
            self._lent.discard(id(slot))

    @property
    def num_slots(self) -> int:
        """How many slots there are."""
        return len(self._slots)
