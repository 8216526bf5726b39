"""Reads: what an order costs a disk, counted in pages from where its samples lie.

What is read together is asked for together, sorted, and stretches that touch are one read: a window of blocks at a time where
the order has them, otherwise a batch. Pages of a batch are still there for the next one, but no longer, as if the data were
far larger than memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stoker.order.blocks import BlockPlan
from stoker.order.keys import epoch_key
from stoker.order.order import Plan
from stoker.order.permutation import Permutation
from stoker.order.samples import Samples

Array = npt.NDArray[Any]
Stretches = tuple[Array, Array]
"""Where they begin, and where they end."""

PAGE = 4096
NUM_COUNTED = 2**18
"""Samples, or blocks, to look at."""
MAX_BATCHES, NUM_RUNS, MAX_WINDOWS = 2048, 8, 16

_CHOICE = 8  # what keys are for here; orders have the numbers below


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What an order costs a disk. Each column is a file of its own."""

    unit: Literal["batch", "window"]
    """What is read, and held, together."""
    unit_bytes: float
    """Read for it."""
    batch_bytes: float
    """Read for a batch, of all columns."""
    reads_per_batch: float
    """Separate stretches, of all columns."""
    amplification: float
    """Bytes read in an epoch for each byte that its samples have; those that samples share count once."""

    @property
    def bytes_per_read(self) -> float:
        """The mean size of a stretch."""
        return self.batch_bytes / self.reads_per_batch if self.reads_per_batch else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "bytes_per_read": self.bytes_per_read}


def merge(starts: Array, stops: Array) -> Stretches:
    """Stretches sorted, those that touch joined."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    is_cut = starts[1:] > stops[:-1]
    return starts[np.concatenate([[True], is_cut])[: len(starts)]], stops[np.concatenate([is_cut, [True]])[: len(stops)]]


def count_reads(plan: Plan, samples: Samples, *, batch_size: int, step_bytes: Sequence[int]) -> Reads:
    """Count what batches (or windows of blocks) of the first epoch read, in columns of so many bytes a step."""
    counted = _count_windows(plan, samples, step_bytes) if isinstance(plan, BlockPlan) else None
    unit: Literal["batch", "window"] = "window" if counted else "batch"
    counted = counted or _count_batches(plan, samples, batch_size, step_bytes)
    per_batch = min(batch_size, plan.num_positions) / max(1, counted.samples)
    return Reads(
        unit=unit,
        unit_bytes=counted.read / max(1, counted.units),
        batch_bytes=counted.read * per_batch,
        reads_per_batch=counted.stretches * per_batch,
        amplification=counted.read / counted.used if counted.used else 1.0,
    )


@dataclass
class _Counted:
    """Sums over what was looked at; `read` and `used` in bytes."""

    units: int = 0
    samples: int = 0
    stretches: int = 0
    read: int = 0
    used: float = 0.0


def _count_batches(plan: Plan, samples: Samples, batch_size: int, step_bytes: Sequence[int]) -> _Counted:
    """Some runs of batches."""
    counted = _Counted()
    num_batches = -(-plan.num_positions // batch_size)
    length = max(1, min(num_batches, MAX_BATCHES // NUM_RUNS, NUM_COUNTED // NUM_RUNS // batch_size))
    for run in Permutation(num_batches // length, epoch_key(0, 0, _CHOICE)).part(0, NUM_RUNS).tolist():
        kept: list[Stretches] = []
        for batch in range(run * length - 1, (run + 1) * length):
            numbers = plan.numbers(0, max(0, batch) * batch_size, (batch + 1) * batch_size)
            found = samples.locate(numbers)
            pages = [_pages(found.starts, found.starts + found.counts, width) for width in step_bytes]
            if kept:
                counted.samples += len(numbers)
                counted.units += 1
                counted.stretches += sum(len(starts) for starts, _ in pages)
                counted.read += sum(_size(_join(new, old)) - _size(old) for new, old in zip(pages, kept, strict=True)) * PAGE
                counted.used += float(_own_steps(samples, numbers).sum()) * sum(step_bytes)
            kept = pages
    return counted


def _count_windows(plan: BlockPlan, samples: Samples, step_bytes: Sequence[int]) -> _Counted:
    counted = _Counted()
    for window in Permutation(plan.num_windows, epoch_key(0, 0, _CHOICE)).part(0, MAX_WINDOWS).tolist():
        firsts = plan.origins(0, window) * plan.block
        lasts = np.minimum(firsts + plan.block, plan.num_positions) - 1
        ends = samples.locate(lasts)
        # A block is read from its first step to its last.
        starts, stops = samples.locate(firsts).starts, ends.starts + ends.counts
        # How much of that its samples own is looked up for some blocks only: they may hold millions of samples.
        some = slice(0, max(1, NUM_COUNTED // MAX_WINDOWS // plan.block))
        inside = np.concatenate([np.arange(first, last + 1) for first, last in zip(firsts[some], lasts[some], strict=True)])
        share = float(_own_steps(samples, inside).sum()) / max(1, int((stops - starts)[some].sum()))
        for width in step_bytes:
            pages = _pages(starts, stops, width)
            counted.stretches += len(pages[0])
            counted.read += _size(pages) * PAGE
        counted.used += share * float((stops - starts).sum()) * sum(step_bytes)
        counted.samples += int((lasts - firsts + 1).sum())
        counted.units += 1
        if counted.units * len(firsts) >= NUM_COUNTED:
            break
    return counted


def _pages(starts: Array, stops: Array, width: int) -> Stretches:
    full = stops > starts
    return merge(starts[full] * width // PAGE, -(-stops[full] * width // PAGE))


def _join(one: Stretches, other: Stretches) -> Stretches:
    return merge(np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]]))


def _size(stretches: Stretches) -> int:
    return int((stretches[1] - stretches[0]).sum())


def _own_steps(samples: Samples, numbers: Array) -> Array:
    """Steps that a sample does not share with the one before it."""
    here, before = samples.locate(numbers), samples.locate(np.maximum(numbers - 1, 0))
    seen = np.where(numbers > 0, before.starts + before.counts, 0)
    own: Array = np.maximum(here.starts + here.counts - np.maximum(here.starts, seen), 0)
    return own
