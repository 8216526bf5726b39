"""Mixture: one order over the samples of several stores, each of which is read in its own order.

The law: the k-th sample of a store with the weight w is due at (k + 0.5) / w. The samples of all stores are read by the time they
are due, those due at the same time by store. So any part of an epoch has each store's share of samples, to within one. A store that
has given all of its samples begins its own next epoch, however far the others are; without weights all of them do so together.

The stores and ranks of any range of positions are computed when asked for: the state of a mixture is a position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import OptionError
from stoker.sampling.orders import Plan


class MixturePlan:
    """The plans of several stores as one plan; the samples of a store are numbered behind those of the stores before it."""

    def __init__(self, plans: Sequence[Plan], num_samples: Sequence[int], weights: Sequence[float] | None = None) -> None:
        sizes = [plan.num_positions for plan in plans]
        self.plans = list(plans)
        self.num_positions = sum(sizes)
        self.shape: Mapping[str, int] = {f"{name}{i}": value for i, plan in enumerate(plans) for name, value in plan.shape.items()}
        self._bases = np.concatenate([[0], np.cumsum(num_samples)[:-1]]).astype(np.int64)
        self._periods = 1.0 / check_weights(weights, sizes)
        self._per_epoch = self._seek(self.num_positions)
        """Samples of each store per epoch of the mixture."""

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        """The numbers of the samples at positions `start` to `stop` of an epoch, int64."""
        before = self._seek(start)
        stores = np.empty(max(min(stop, self.num_positions) - start, 0), dtype=np.int64)
        after = before.copy()
        _merge(self._periods, after, stores)
        numbers = np.empty(len(stores), dtype=np.int64)
        for i, plan in enumerate(self.plans):
            done = epoch * int(self._per_epoch[i])
            numbers[stores == i] = self._bases[i] + _consecutive(plan, done + int(before[i]), done + int(after[i]))
        return numbers

    def describe(self) -> str:
        """In a line."""
        shares = ", ".join(f"{count / self.num_positions:.1%}" for count in self._per_epoch)
        return f"mixture of {len(self.plans)} stores ({shares})"

    def _seek(self, position: int) -> Array:
        """How many samples of each store come before a position: those due before some time, corrected one by one."""
        time = position / (1.0 / self._periods).sum()
        counts: Array = np.maximum(np.floor(time / self._periods - 0.5).astype(np.int64), 0)
        _correct(self._periods, counts, position)
        return counts


def check_weights(weights: Sequence[float] | None, sizes: Sequence[int]) -> Array:
    """The weights as float64; the numbers of samples where there are none."""
    if weights is None:
        return np.asarray(sizes, dtype=np.float64)
    found = np.asarray(weights, dtype=np.float64)
    if found.shape != (len(sizes),) or not (np.isfinite(found) & (found > 0)).all() or found.max() / found.min() > 2**40:
        raise OptionError(f"weights is {list(weights)!r}; expected {len(sizes)} positive numbers, one per store.")
    shares: Array = found / found.sum()
    return shares


def _consecutive(plan: Plan, start: int, stop: int) -> Array:
    """Samples `start` to `stop` of a plan that is repeated, epoch after epoch."""
    parts, size = [np.empty(0, dtype=np.int64)], plan.num_positions
    while start < stop:
        epoch, place = divmod(start, size)
        count = min(stop - start, size - place)
        parts.append(plan.numbers(epoch, place, place + count))
        start += count
    return np.concatenate(parts)


@kernel
def _merge(periods: Array, counts: Array, stores: Array) -> None:
    """The store of each of the next positions; `counts` is moved on."""
    for i in range(len(stores)):
        best = 0
        for s in range(1, len(periods)):
            if (counts[s] + 0.5) * periods[s] < (counts[best] + 0.5) * periods[best]:
                best = s
        stores[i] = best
        counts[best] += 1


@kernel
def _correct(periods: Array, counts: Array, position: int) -> None:
    """Add what is due next, or take back what was due last, until the counts are those of the position."""
    total = counts.sum()
    # First to a state that merging can reach: nothing taken may be due after something that is left.
    while True:
        last, following = -1, 0
        for s in range(len(periods)):
            if counts[s] > 0 and (last < 0 or (counts[s] - 0.5) * periods[s] >= (counts[last] - 0.5) * periods[last]):
                last = s
            if (counts[s] + 0.5) * periods[s] < (counts[following] + 0.5) * periods[following]:
                following = s
        is_ahead = False
        if last >= 0:
            taken, left = (counts[last] - 0.5) * periods[last], (counts[following] + 0.5) * periods[following]
            is_ahead = taken > left or (taken == left and last > following)
        if total > position or (total == position and is_ahead):
            counts[last] -= 1
            total -= 1
        elif total < position:
            counts[following] += 1
            total += 1
        else:
            return
