"""Quality: how good a shuffle is, counted from the samples that come together.

The worst for a shuffle is data whose neighbours are alike: events of one file, days of one machine. So let every group of `c`
consecutive samples have one label of its own. Then the mean label over N samples that come together varies in proportion to

    sum over groups of (n_g - N s_g / n)²        n_g of the N, s_g of all n samples are in group g

and a uniform draw without replacement would give N (n - N) / (n - 1) (1 - sum of (s_g / n)²). The variance ratio is one over
the other, at the `c` where it is worst. A batch of B samples is worth B over its ratio: its effective size.

It is the pairs of a group in a batch that are counted, for all labels at once, so that nothing but the choice of batches is
left to chance. A ratio counts only as far as it is above what that choice explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.sampling.orders import BlockPlan, Plan
from stoker.sampling.permutation import Permutation, epoch_key
from stoker.sampling.subset import merge_ranges
from stoker.sampling.views import Samples

RUNS = (1, 10, 50)
"""Batches in a row whose mean is measured: noise that lasts is worse than noise that averages out."""
NUM_COUNTED = 2**20
"""Samples to count for each of them, unless that makes too few or too many runs."""
MIN_RUNS, MAX_RUNS = 8, 4096
MAX_COUNTED = 2**24

_SURE = 3.0  # standard errors
_ALIKE = 0.98
_CHOICE = 7  # what keys are for here; orders have the numbers below


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How good a shuffle is, in batches of `batch_size`."""

    num_samples: int
    batch_size: int
    effective_batch_size: float
    """The batch of a full shuffle that says as much as a batch of this order, where labels are at their worst."""
    worst_group: int
    """Samples in a row that are alike where labels are at their worst; 1 where no label sees a difference to a full shuffle."""
    variance_ratios: Mapping[int, float]
    """Variance of the mean over this number of batches in a row, as a multiple of that of a full shuffle."""
    spread: float
    """Of sample numbers inside a batch: 1.0 where a batch comes from everywhere, 0.0 where it is one run."""
    num_counted: int
    """Batches that were counted."""

    @property
    def worth(self) -> float:
        """The effective batch size as a share of the batch size."""
        return self.effective_batch_size / self.batch_size

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        ratios = {str(run): ratio for run, ratio in self.variance_ratios.items()}
        return {**asdict(self), "variance_ratios": ratios, "worth": self.worth}


def measure(plan: Plan, *, batch_size: int, groups: Sequence[int] | None = None) -> Quality:
    """Count how an order that gives every sample once mixes them. `groups` are the sizes to count; by default powers of 2."""
    num_samples = plan.num_positions
    # Powers of two, and the blocks of the order: labels that change with them are what it mixes worst.
    wanted = groups or [2**power for power in range(num_samples.bit_length())] + [plan.shape.get("block", 1)]
    sizes = np.array(sorted({size for size in wanted if 1 <= size < num_samples}), dtype=np.int64)
    ratios, worst, spread, counted = {RUNS[0]: 1.0}, 1, 1.0, 0
    for run in RUNS:
        length = run * batch_size
        if length >= num_samples or (run > 1 and length * MIN_RUNS > MAX_COUNTED) or not len(sizes):
            continue
        runs = choose_runs(plan, batch_size, length)
        if run == 1:
            counted = len(runs)
            if batch_size > 1:
                spread = float(np.sqrt(runs.var(axis=1, ddof=1).mean() / (num_samples * (num_samples + 1) / 12)))
        ratios[run], group = _worst_ratio(runs, sizes, num_samples)
        worst = group if run == 1 else worst
    return Quality(
        num_samples=num_samples,
        batch_size=batch_size,
        effective_batch_size=batch_size / ratios[1],
        worst_group=worst,
        variance_ratios=ratios,
        spread=spread,
        num_counted=counted,
    )


def choose_runs(plan: Plan, batch_size: int, length: int) -> Array:
    """Samples at `length` positions in a row, beginning with a batch: [runs, length], from as many epochs as it takes."""
    per_epoch = plan.num_positions // length
    num_offsets = (plan.num_positions - per_epoch * length) // batch_size + 1
    wanted = min(MAX_RUNS, max(MIN_RUNS, NUM_COUNTED // length))
    rows: list[Array] = []
    for epoch in range(-(-wanted // per_epoch)):
        places = Permutation(per_epoch, epoch_key(0, epoch, _CHOICE)).part(0, wanted - len(rows))
        # Sorted, so that an order which prepares a window at a time prepares each but once.
        starts = np.sort(places) * length + epoch % num_offsets * batch_size
        rows += [plan.numbers(epoch, start, start + length) for start in starts.tolist()]
    return np.stack(rows)


@kernel
def _count_groups(rows: Array, sizes: Array, num_samples: int, squares: Array, in_last: Array) -> None:
    """For sorted rows and each size of a group: the sum of squared counts of groups, and the count of the last group."""
    for i in range(len(rows)):
        for j in range(len(sizes)):
            size = sizes[j]
            total, count, end = 0, 0, 0
            for number in rows[i]:
                if number >= end:
                    total += count * count
                    count = 0
                    end = (number // size + 1) * size
                count += 1
            squares[i, j] = total + count * count
            in_last[i, j] = count if end >= num_samples else 0


def _worst_ratio(runs: Array, sizes: Array, num_samples: int) -> tuple[float, int]:
    """The largest variance ratio that chance does not explain, and the size of groups that it is found with."""
    squares = np.empty((len(runs), len(sizes)), dtype=np.int64)
    in_last = np.empty_like(squares)
    _count_groups(np.sort(runs, axis=1), sizes, num_samples, squares, in_last)
    length = runs.shape[1]
    share = length / num_samples
    num_whole = (num_samples - 1) // sizes
    last_size = num_samples - num_whole * sizes
    all_squares = num_whole * sizes.astype(np.float64) ** 2 + last_size.astype(np.float64) ** 2
    in_groups = length * sizes - in_last * (sizes - last_size)
    found = squares - 2 * share * in_groups + share**2 * all_squares
    uniform = length * (num_samples - length) / (num_samples - 1) * (1 - all_squares / float(num_samples) ** 2)
    ratios = found / uniform
    means = ratios.mean(axis=0)
    errors = ratios.std(axis=0, ddof=1) / np.sqrt(len(ratios))
    surely = means - _SURE * errors
    if surely.max() <= 1:
        return 1.0, 1
    worst = int(np.argmax(surely >= _ALIKE * surely.max()))  # larger groups of the same groups often do as badly: name the smallest
    return float(means[worst]), int(sizes[worst])


# Reads: what an order costs a disk, counted in pages from where its samples lie.
#
# What is read together is asked for together, sorted, and runs that touch are one read: a window of blocks at a time where
# the order has them, otherwise a batch. Pages of a batch are still there for the next one, but no longer, as if the data were
# far larger than memory.

Ranges = tuple[Array, Array]
"""Where they begin, and where they end."""

PAGE = 4096
NUM_READS_COUNTED = 2**18
"""Samples, or blocks, to count."""
MAX_BATCHES, NUM_RUNS, MAX_WINDOWS = 2048, 8, 16

_CHOICE_READS = 8  # what keys are for here; orders have the numbers below


@dataclass(frozen=True, kw_only=True)
class DiskReads:
    """What an order costs a disk. Each column is a file of its own."""

    unit: Literal["batch", "window"]
    """What is read, and held, together."""
    unit_bytes: float
    """Read for it."""
    batch_bytes: float
    """Read for a batch, of all columns."""
    reads_per_batch: float
    """Separate runs, of all columns."""
    amplification: float
    """Bytes read in an epoch for each byte that its samples have; those that samples share count once."""

    @property
    def bytes_per_read(self) -> float:
        """The mean size of a run."""
        return self.batch_bytes / self.reads_per_batch if self.reads_per_batch else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "bytes_per_read": self.bytes_per_read}


def count_reads(plan: Plan, samples: Samples, *, batch_size: int, step_bytes: Sequence[int]) -> DiskReads:
    """Count what batches (or windows of blocks) of the first epoch read, in columns of `step_bytes` bytes per step."""
    counted = _count_windows(plan, samples, step_bytes) if isinstance(plan, BlockPlan) else None
    unit: Literal["batch", "window"] = "window" if counted else "batch"
    counted = counted or _count_batches(plan, samples, batch_size, step_bytes)
    per_batch = min(batch_size, plan.num_positions) / max(1, counted.samples)
    return DiskReads(
        unit=unit,
        unit_bytes=counted.read / max(1, counted.units),
        batch_bytes=counted.read * per_batch,
        reads_per_batch=counted.runs * per_batch,
        amplification=counted.read / counted.used if counted.used else 1.0,
    )


@dataclass
class _Counted:
    """Sums over what was counted; `read` and `used` in bytes."""

    units: int = 0
    samples: int = 0
    runs: int = 0
    read: int = 0
    used: float = 0.0


def _count_batches(plan: Plan, samples: Samples, batch_size: int, step_bytes: Sequence[int]) -> _Counted:
    """Some runs of batches."""
    counted = _Counted()
    num_batches = -(-plan.num_positions // batch_size)
    length = max(1, min(num_batches, MAX_BATCHES // NUM_RUNS, NUM_READS_COUNTED // NUM_RUNS // batch_size))
    for run in Permutation(num_batches // length, epoch_key(0, 0, _CHOICE_READS)).part(0, NUM_RUNS).tolist():
        kept: list[Ranges] = []
        for batch in range(run * length - 1, (run + 1) * length):
            numbers = plan.numbers(0, max(0, batch) * batch_size, (batch + 1) * batch_size)
            found = samples.locate(numbers)
            pages = [_pages(found.starts, found.starts + found.counts, width) for width in step_bytes]
            if kept:
                counted.samples += len(numbers)
                counted.units += 1
                counted.runs += sum(len(starts) for starts, _ in pages)
                for new, old in zip(pages, kept, strict=True):
                    starts, stops = (np.concatenate(parts) for parts in zip(new, old, strict=True))
                    counted.read += (_size(merge_ranges(starts, stops)) - _size(old)) * PAGE
                counted.used += float(_own_steps(samples, numbers).sum()) * sum(step_bytes)
            kept = pages
    return counted


def _count_windows(plan: BlockPlan, samples: Samples, step_bytes: Sequence[int]) -> _Counted:
    counted = _Counted()
    for window in Permutation(plan.num_windows, epoch_key(0, 0, _CHOICE_READS)).part(0, MAX_WINDOWS).tolist():
        # A block is read from its first step to its last.
        firsts, lasts, starts, stops = plan.block_ranges(0, window, samples)
        # How much of that its samples own is looked up for some blocks only: they may hold millions of samples.
        some = slice(0, max(1, NUM_READS_COUNTED // MAX_WINDOWS // plan.block))
        inside = np.concatenate([np.arange(first, last + 1) for first, last in zip(firsts[some], lasts[some], strict=True)])
        share = float(_own_steps(samples, inside).sum()) / max(1, int((stops - starts)[some].sum()))
        for width in step_bytes:
            pages = _pages(starts, stops, width)
            counted.runs += len(pages[0])
            counted.read += _size(pages) * PAGE
        counted.used += share * float((stops - starts).sum()) * sum(step_bytes)
        counted.samples += int((lasts - firsts + 1).sum())
        counted.units += 1
        if counted.units * len(firsts) >= NUM_READS_COUNTED:
            break
    return counted


def _pages(starts: Array, stops: Array, width: int) -> Ranges:
    full = stops > starts
    return merge_ranges(starts[full] * width // PAGE, -(-stops[full] * width // PAGE))


def _size(runs: Ranges) -> int:
    return int((runs[1] - runs[0]).sum())


def _own_steps(samples: Samples, numbers: Array) -> Array:
    """Steps that a sample does not share with the one before it."""
    here, before = samples.locate(numbers), samples.locate(np.maximum(numbers - 1, 0))
    seen = np.where(numbers > 0, before.starts + before.counts, 0)
    own: Array = np.maximum(here.starts + here.counts - np.maximum(here.starts, seen), 0)
    return own
