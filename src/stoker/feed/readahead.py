"""Read-ahead: tells the operating system which stretches of the columns come next, a window of blocks at a time.

Without hints the kernel guesses that a reader goes on where it is, and reads megabytes that are thrown away. So guessing is
switched off, and for each window of a block order its blocks, sorted and merged, are asked for one window ahead. For any
other order the samples of a batch are asked for before they are copied.
"""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.feed.batches import Steps
from stoker.feed.columns import FedColumn
from stoker.order.blocks import BlockPlan
from stoker.order.samples import Samples

Array = npt.NDArray[Any]

PAGE = mmap.PAGESIZE


def merge(starts: Array, stops: Array, *, gap: int = 0) -> tuple[Array, Array]:
    """Stretches sorted, those that touch (or lie within `gap`) joined."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    if not len(starts):
        return starts, stops
    cuts = np.flatnonzero(starts[1:] > stops[:-1] + gap)
    return starts[np.concatenate([[0], cuts + 1])], stops[np.concatenate([cuts, [len(stops) - 1]])]


class MappedColumn:
    """The file behind a column, as far as hints go."""

    def __init__(self, column: FedColumn) -> None:
        base: Any = column.values
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        self.map: mmap.mmap | None = base if isinstance(base, mmap.mmap) else None
        self._step_bytes = column.values.dtype.itemsize * (column.width or 1)
        if self.map is not None:
            self._lead = len(self.map) - column.values.nbytes  # the header
            self.map.madvise(mmap.MADV_RANDOM)

    def will_need(self, starts: Array, stops: Array) -> int:
        """Ask for stretches given in steps; returns the bytes asked for, in whole pages."""
        some = stops > starts  # an empty stretch may begin where the file ends, which cannot be asked for
        starts, stops = starts[some], stops[some]
        if self.map is None or not len(starts):
            return 0
        first = (starts * self._step_bytes + self._lead) // PAGE * PAGE
        end = -(-(stops * self._step_bytes + self._lead) // PAGE) * PAGE
        first, end = merge(first, end)
        for start, stop in zip(first.tolist(), np.minimum(end, len(self.map)).tolist(), strict=True):
            self.map.madvise(mmap.MADV_WILLNEED, start, stop - start)
        return int((end - first).sum())


class ReadAhead:
    """Hints for the columns of a feed. Threads may share it."""

    def __init__(self, columns: list[FedColumn], samples: Samples) -> None:
        self._columns = [MappedColumn(column) for column in columns if column.level == "step"]
        self._samples = samples
        self._lock = threading.Lock()
        self._hinted: tuple[int, int, int] | None = None
        self.asked_bytes = 0

    def before(self, steps: Steps, step: int, numbers: Array) -> None:
        """Called before a step is gathered."""
        plan = steps.plan
        if not isinstance(plan, BlockPlan):
            self._ask(numbers)
            return
        window = plan.window_of(steps.epoch, min(steps.start + step * steps.stride, plan.num_positions - 1))
        with self._lock:
            known = self._hinted
            first = window if known is None or known[:2] != (id(steps), steps.epoch) else known[2] + 1
            last = min(window + 1, plan.num_windows - 1)
            if first > last:
                return
            self._hinted = (id(steps), steps.epoch, last)
        for number in range(first, last + 1):
            self._ask_blocks(plan, plan.origins(steps.epoch, number))

    def _ask_blocks(self, plan: BlockPlan, blocks: Array) -> None:
        """A block is a run of samples: its first and last say where it lies."""
        firsts = blocks * plan.block
        lasts = np.minimum(firsts + plan.block, plan.num_positions) - 1
        starts, ends = self._samples.locate(firsts).starts, self._samples.locate(lasts)
        self._ask_stretches(starts, ends.starts + ends.counts)

    def _ask(self, numbers: Array) -> None:
        found = self._samples.locate(numbers)
        self._ask_stretches(found.starts, found.starts + found.counts)

    def _ask_stretches(self, starts: Array, stops: Array) -> None:
        for column in self._columns:
            self.asked_bytes += column.will_need(starts, stops)
