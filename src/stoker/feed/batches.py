"""Batches: one pass over the rest of an epoch. Steps are made ahead by threads; what was handed out is what counts as seen."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from stoker.errors import FeedError
from stoker.feed.cursor import Cursor
from stoker.feed.ranks import Ranks
from stoker.order.order import Plan

Array = npt.NDArray[Any]
Batch = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of one pass: which positions each takes, and which of them are this rank's."""

    plan: Plan
    epoch: int
    start: int
    batch_size: int
    ranks: Ranks
    drops_last: bool

    @property
    def stride(self) -> int:
        """Positions of a step, of all ranks."""
        return self.batch_size * self.ranks.world_size

    def __len__(self) -> int:
        left = self.plan.num_positions - self.start
        return left // self.stride if self.drops_last else -(-left // self.stride)

    def end(self, step: int) -> int:
        """The position behind a step."""
        return min(self.start + (step + 1) * self.stride, self.plan.num_positions)

    @property
    def num_whole(self) -> int:
        """Steps in which each rank has a whole batch: all but perhaps the last."""
        return (self.plan.num_positions - self.start) // self.stride

    def numbers(self, step: int, count: int = 1) -> Array:
        """The samples of this rank in a step, or in so many steps from there on."""
        if self.ranks.world_size == 1:
            return self.plan.numbers(self.epoch, self.start + step * self.stride, self.end(step + count - 1))
        shares = [self.ranks.share(self.start + one * self.stride, self.end(one)) for one in range(step, step + count)]
        return np.concatenate([self.plan.numbers(self.epoch, *share) for share in shares])


class Source(Protocol):
    """What makes the batches of a pass, in order."""

    def __next__(self) -> Batch:
        """The next one."""

    def close(self) -> None:
        """End its threads."""


class Batches(Iterator[Batch]):
    """The iterator that a feed gives out. Threads may share it: each batch goes to one of them."""

    def __init__(self, source: Source, steps: Steps, cursor: Cursor) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()
        self._is_closed = False
        self._begin(source, steps, cursor)

    def _begin(self, source: Source, steps: Steps, cursor: Cursor) -> None:
        self._source = source
        self._steps = steps
        self.cursor = cursor
        self._step = 0
        if not len(steps):
            self._turn_over()

    def begin_elsewhere(self, source: Source, steps: Steps, cursor: Cursor) -> None:
        """Be a pass over these steps instead; for one that has handed out nothing yet."""
        self._source.close()
        self._begin(source, steps, cursor)
        if self._is_closed:
            source.close()

    def __next__(self) -> Batch:
        if os.getpid() != self._process:
            self._lock, self._process = threading.RLock(), os.getpid()  # a fork may have come while a thread held it
        with self._lock:
            batch = next(self._source)
            self.cursor.position = self._steps.end(self._step)
            self._step += 1
            if self._step == len(self._steps):
                self._turn_over()
        return batch

    def __len__(self) -> int:
        return len(self._steps) - self._step

    def _turn_over(self) -> None:
        """With the last batch an epoch is done: a state saved now begins the next one."""
        self.cursor.epoch, self.cursor.position = self._steps.epoch + 1, 0

    def close(self) -> None:
        """End the threads. Without the lock: it ends the wait of a thread that holds it."""
        self._is_closed = True
        self._source.close()

    def __reduce__(self) -> NoReturn:
        raise FeedError(
            "a pass over a feed cannot be pickled or copied: its threads are those of this process. Make the feed in the "
            "other process and load feed.state_dict() there."
        )
