"""Read-ahead (madvise) for columns that stay on disk.

Without hints the kernel assumes that a reader continues where it is, and reads megabytes that are not used. So its own read-ahead
is switched off, and what comes next is requested: a window of blocks where the order has them, otherwise some batches; sorted,
merged, and one such unit ahead. A thread of its own does this, because a request waits for room in the queue of the disk. A batch
is gathered only when all of its unit was requested: a page touched before would be a small read of its own.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import types

from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import StoreDamagedError
from stoker.feed.columns import FedColumn
from stoker.feed.prefetch import Steps
from stoker.sampling.mixture import JoinedSamples, MixturePlan
from stoker.sampling.orders import BlockPlan
from stoker.sampling.subset import merge_ranges
from stoker.sampling.views import Samples
from stoker.store.remote import CachedFile

PAGE = mmap.PAGESIZE
UNIT_BYTES = 8 * 2**20
"""Bytes per request, in batches, where the order has no windows."""
PIECE_BYTES = 4 * 2**20
"""Ranges are asked for in pieces of this size; a closed pass stops after a piece."""

_madvise = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))


def split_ranges(starts: Array, stops: Array, size: int) -> tuple[Array, Array]:
    """Ranges cut into pieces of at most this size."""
    pieces = -(-(stops - starts) // size)
    owner = np.repeat(np.arange(len(starts)), pieces)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = starts[owner] + place * size
    return begin, np.minimum(begin + size, stops[owner])


@kernel
def advise(addresses: Array, sizes: Array, advice: int, stop: Array) -> None:
    """Give this advice about ranges of memory, until `stop` is set. The system may ignore it."""
    for i in range(len(addresses)):
        if stop[0]:
            return
        _madvise(addresses[i], sizes[i], advice)


class MappedColumn:
    """The file behind a column, as far as hints go."""

    def __init__(self, column: FedColumn, first: int = 0) -> None:
        base: Any = column.values
        self._first = first
        """The step at which it begins, where the columns of several stores are numbered on."""
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        self.num_steps = len(column.values)
        self.step_bytes = column.values.dtype.itemsize * (column.width or 1)
        self.is_on_disk = isinstance(base, mmap.mmap)
        self.file = base if isinstance(base, CachedFile) else None
        """Of a column whose blocks must be fetched first."""
        if isinstance(base, mmap.mmap):
            self._mapped = np.frombuffer(base, dtype=np.uint8)  # also keeps the file mapped while its pages are requested
            self._lead = len(self._mapped) - column.values.nbytes  # the header
            self.address: int = self._mapped.ctypes.data
            base.madvise(mmap.MADV_RANDOM)

    @property
    def is_here(self) -> bool:
        """Whether no block of it has to be fetched now."""
        return self.file is None or self.file.cache.has_all(self.file.file)

    def own(self, starts: Array, stops: Array) -> tuple[Array, Array]:
        """Ranges of the steps of all stores as those of this column; those of other stores become empty."""
        return np.clip(starts - self._first, 0, self.num_steps), np.clip(stops - self._first, 0, self.num_steps)

    def pages(self, starts: Array, stops: Array) -> tuple[Array, Array]:
        """Ranges given in steps, as ranges of the file in bytes: whole pages, sorted and merged."""
        starts, stops = self.own(starts, stops)
        some = stops > starts  # an empty range may begin where the file ends, which cannot be asked for
        first = (starts[some] * self.step_bytes + self._lead) // PAGE * PAGE
        end = -(-(stops[some] * self.step_bytes + self._lead) // PAGE) * PAGE
        return merge_ranges(first, np.minimum(end, len(self._mapped)))


class WindowUnits:
    """What is requested together: the windows of a block order, as a pass comes to them."""

    def __init__(self, steps: Steps, plan: BlockPlan, samples: Samples) -> None:
        self.count = plan.num_windows
        self._steps = steps
        self._plan = plan
        self._samples = samples

    def of(self, step: int) -> tuple[int, int]:
        """The first and the last window that a step has samples of, on any rank."""
        steps, plan = self._steps, self._plan
        return plan.window_of(steps.epoch, steps.end(step - 1)), plan.window_of(steps.epoch, steps.end(step) - 1)

    def ranges(self, unit: int) -> tuple[Array, Array]:
        """Where the blocks of a window lie, in steps of the columns."""
        _, _, starts, stops = self._plan.block_ranges(self._steps.epoch, unit, self._samples)
        return starts, stops


class StoreUnits:
    """The same for one of several stores: unit `e * num_windows + w` is the window w of its own epoch e."""

    def __init__(self, steps: Steps, store: int, samples: Any) -> None:
        self._steps = steps
        self._store = store
        self._plan: Any = steps.plan.plans[store]  # type: ignore[attr-defined]
        self._samples, self._first_step = samples.parts[store], int(samples.first_steps[store])
        self.count = 2**62
        self.count = self.of(max(len(steps) - 1, 0))[1] + 1

    def of(self, step: int) -> tuple[int, int]:
        """The first and the last window that a step has samples of, on any rank."""
        plan: Any = self._steps.plan
        ends = self._steps.end(step - 1), self._steps.end(step)
        first, stop = (int(plan.read_before(self._steps.epoch, end)[self._store]) for end in ends)
        # A step without samples of this store may be the last one before its next epoch.
        return min(self._unit(first), self.count - 1), min(self._unit(max(first, stop - 1)), self.count - 1)

    def _unit(self, place: int) -> int:
        epoch, position = divmod(place, self._plan.num_positions)
        return int(epoch * self._plan.num_windows + self._plan.window_of(epoch, position))

    def ranges(self, unit: int) -> tuple[Array, Array]:
        """Where the blocks of a window lie, in steps of the columns of all stores."""
        _, _, starts, stops = self._plan.block_ranges(*divmod(unit, self._plan.num_windows), self._samples)
        return starts + self._first_step, stops + self._first_step


class BatchUnits:
    """Some batches at a time, of an order that has no windows."""

    def __init__(self, steps: Steps, samples: Samples, sample_bytes: float, unit_bytes: int = UNIT_BYTES) -> None:
        self._steps = steps
        self._samples = samples
        self._batches = max(1, int(unit_bytes / max(1.0, sample_bytes * steps.batch_size)))
        self.count = -(-len(steps) // self._batches)

    def of(self, step: int) -> tuple[int, int]:
        """A batch is in one unit."""
        return step // self._batches, step // self._batches

    def ranges(self, unit: int) -> tuple[Array, Array]:
        """Where the samples lie."""
        first = unit * self._batches
        count = min(self._batches, len(self._steps) - first)
        located = self._samples.locate(self._steps.numbers(first, count), self._steps.draw)
        return located.starts, located.starts + located.counts


Units = WindowUnits | StoreUnits | BatchUnits


class Hints:
    """What a pass has asked for. Its threads share it; the thread that asks lives while there is something to ask for."""

    ahead = 1
    """Units that are asked for before they are needed."""
    keeps_all = True
    """Whether all that the pass reads stays readable until `close`; otherwise each gather must see to it."""

    def __init__(self, columns: list[MappedColumn], units: Units) -> None:
        self._columns = columns
        self._units = units
        self._stop = np.zeros(1, dtype=np.bool_)
        self._begin(0)

    def _begin(self, step: int) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._first_step = step
        self._next = self._wanted = -1  # the unit to be asked for, and the last one that may be
        self._is_asking = False
        self._error: Exception | None = None

    def before(self, step: int) -> None:
        """Called before a step is gathered; waits until all of it was asked for."""
        if os.getpid() != self._process:
            self._begin(step)  # a fork has none of the threads
        _, last = self._units.of(step)
        with self._changed:
            if self._next < 0:
                self._next, _ = self._units.of(self._first_step)
            if last + (self.ahead + 1) // 2 > self._wanted:  # in strides, as a thread is started for each
                self._wanted = max(self._wanted, min(last + self.ahead, self._units.count - 1))
            if not self._is_asking and self._next <= self._wanted:
                threading.Thread(target=self._ask, name="stoker-hints", daemon=True).start()
                self._is_asking = True
            self._changed.wait_for(lambda: self._next > last or self._error is not None or self._stop[0])
            if self._error is not None:
                raise self._error

    def after(self, step: int) -> None:
        """Called when a step was gathered, or could not be."""

    def close(self) -> None:
        """Ask for nothing more."""
        self._stop[0] = True
        if os.getpid() == self._process:  # in a fork, a thread that is not there may hold the lock
            with self._changed:
                self._changed.notify_all()

    def _ask(self) -> None:
        while True:
            with self._changed:
                unit = self._next
                if unit > self._wanted or self._stop[0] or self._error is not None:
                    self._is_asking = False
                    return
            error, last = None, unit
            try:
                last = self._request(unit)
            except StoreDamagedError:
                pass  # the gather of the damaged series raises it, in its batch
            except Exception as raised:  # raised again in the thread that waits
                error = raised
            with self._changed:
                self._next, self._error = last + 1, error
                self._changed.notify_all()

    def _request(self, unit: int) -> int:
        """Ask for a unit; returns the last unit that was asked for with it."""
        starts, stops = self._units.ranges(unit)
        pieces = [split_ranges(*column.pages(starts, stops), PIECE_BYTES) for column in self._columns]
        addresses = [first + column.address for (first, _), column in zip(pieces, self._columns, strict=True)]
        sizes = [end - first for first, end in pieces]
        # All in one call: each would wait for the GIL when it comes back.
        advise(np.concatenate(addresses), np.concatenate(sizes), mmap.MADV_WILLNEED, self._stop)
        return unit


MakeHints = Callable[[list[MappedColumn], Units, Units], Hints]
"""From the columns of a store, the units of this epoch and those of the next."""


class ReadAhead:
    """Hints for the columns of a feed."""

    def __init__(self, columns: list[FedColumn], samples: Samples, make_hints: MakeHints | None = None) -> None:
        self._samples = samples
        self._make_hints = make_hints or (lambda columns, units, _: Hints(columns, units))
        firsts = samples.first_steps.tolist() if isinstance(samples, JoinedSamples) else [0]
        pieces = [
            column.pieces if isinstance(samples, JoinedSamples) else (column,) for column in columns if column.level == "step"
        ]
        mapped = [
            [MappedColumn(piece[i], first) for piece in pieces] for i, first in enumerate(firsts[: len(pieces[0]) if pieces else 0])
        ]
        self._by_store = [[column for column in columns if column.is_on_disk] for columns in mapped]
        self._columns = [column for columns in self._by_store for column in columns]

    def over(self, steps: Steps) -> list[Hints]:
        """The hints of a pass over these steps, of each store for which there is something to ask."""
        if not self._columns:
            return []
        following = replace(steps, epoch=steps.epoch + 1, start=0)
        units = zip(self._units(steps), self._units(following), strict=True)
        return [self._make_hints(columns, now, later) for (columns, now), (_, later) in units]

    def _units(self, steps: Steps) -> list[tuple[list[MappedColumn], Units]]:
        if isinstance(steps.plan, BlockPlan):
            return [(self._columns, WindowUnits(steps, steps.plan, self._samples))]
        if isinstance(steps.plan, MixturePlan) and all(isinstance(plan, BlockPlan) for plan in steps.plan.plans):
            on_disk = [i for i, columns in enumerate(self._by_store) if columns]
            return [(self._by_store[i], StoreUnits(steps, i, self._samples)) for i in on_disk]
        length = min(self._samples.row, self._columns[0].num_steps / max(1, self._samples.num_series))
        sample_bytes = length * sum(column.step_bytes for column in self._columns)
        # Samples of a few kilobytes may be in as many blocks of megabytes: what is fetched together is then a single batch.
        unit_bytes = UNIT_BYTES if all(column.is_here for column in self._columns) else 0
        return [(self._columns, BatchUnits(steps, self._samples, sample_bytes, unit_bytes))]
