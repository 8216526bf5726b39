"""An oracle for block orders: how much a batch is worth, counted from the samples that come together.

The worst for a shuffle is data whose neighbours are alike: events of one file, days of one machine. So let every group of `c`
consecutive samples have one label of its own. Then the mean label over N samples that come together varies in proportion to

    sum over groups of (n_g - N s_g / n)²        n_g of the N, s_g of all n samples are in group g

and a uniform draw without replacement would give N (n - N) / (n - 1) (1 - sum of (s_g / n)²). The variance ratio is one over the other,
at the `c` where it is worst. A batch of B samples is worth B over its ratio. Pairs of a group in a batch are counted, for all labels at
once, so that nothing but the choice of batches is left to chance. A ratio counts only as far as it is above what that choice explains.
"""

from __future__ import annotations

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.sampling.orders import Plan
from stoker.sampling.permutation import Permutation, epoch_key

NUM_COUNTED = 2**20
"""Samples to count, unless that makes too few or too many batches."""
MIN_RUNS, MAX_RUNS = 8, 4096

_SURE = 3.0  # standard errors
_ALIKE = 0.98
_CHOICE = 7  # orders have lower numbers for their keys


def effective_batch_size(plan: Plan, batch_size: int, *, groups: list[int] | None = None, num_counted: int = NUM_COUNTED) -> float:
    """Count how an order that gives every sample once mixes them. `groups` are the sizes to count; by default powers of 2."""
    num_samples = plan.num_positions
    # Powers of two, and the blocks of the order: labels that change with them are what it mixes worst.
    wanted = groups or [2**power for power in range(num_samples.bit_length())] + [plan.shape.get("block", 1)]
    sizes = np.array(sorted({size for size in wanted if 1 <= size < num_samples}), dtype=np.int64)
    return batch_size / _worst_ratio(choose_runs(plan, batch_size, batch_size, num_counted), sizes, num_samples)[0]


def choose_runs(plan: Plan, batch_size: int, length: int, num_counted: int) -> Array:
    """Samples at `length` positions in a row, beginning with a batch: [runs, length], from as many epochs as it takes."""
    per_epoch = plan.num_positions // length
    num_offsets = (plan.num_positions - per_epoch * length) // batch_size + 1
    wanted = min(MAX_RUNS, max(MIN_RUNS, num_counted // length))
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
