"""Order by length: samples of similar length share a batch, so that padding is short; otherwise a shuffle.

The shuffled samples are taken a pool at a time, sorted by length within it, cut into groups, and the groups are shuffled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError
from stoker.order.keys import checked_seed, epoch_key
from stoker.order.order import Plan
from stoker.order.permutation import Permutation
from stoker.order.samples import Samples

Array = npt.NDArray[Any]

_SAMPLES, _GROUPS = 5, 6


@dataclass(frozen=True)
class ByLength:
    """Every sample once an epoch; groups of `group` samples (a batch of all ranks) are of similar length.

    A larger `pool` (in groups) makes groups more alike and the shuffle a little less free.
    """

    seed: int = 0
    group: int | None = None
    pool: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))
        for name, value in (("group", self.group), ("pool", self.pool)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
                raise OptionError(f"ByLength: {name} is {value!r}; expected a whole number from 1.")
            object.__setattr__(self, name, None if value is None else int(value))

    @property
    def kind(self) -> str:
        """What must be the same, beside seed and shape, for a position to mean the same sample."""
        return f"by length in pools of {self.pool}"

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> Plan:
        """The plan for these samples."""
        return ByLengthPlan(samples, self.seed, self.group or batch_size, self.pool)

    def adopt(self, seed: int, shape: Mapping[str, int]) -> ByLength:
        """With the seed and group of a saved state."""
        group = shape.get("group", self.group)
        if self.group is not None and self.group != group:
            raise OptionError(
                f"the state was saved with ByLength(group={group}), but this feed has group={self.group}: another order."
            )
        return ByLength(seed, group, self.pool)


class ByLengthPlan:
    """Shuffle, sort within a pool, shuffle the groups of the pool."""

    def __init__(self, samples: Samples, seed: int, group: int, pool: int) -> None:
        self.num_positions = samples.num_samples
        self.shape: Mapping[str, int] = {"group": group}
        self._samples = samples
        self._seed = seed
        self._group = min(group, max(1, samples.num_samples))  # the same order; a state may say any number
        self._pool_size = self._group * pool
        self._last: tuple[int, int, Array] | None = None  # one tuple, so that threads see all of it or the one before

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        """A part of this epoch; computes the pools that it touches."""
        stop = min(stop, self.num_positions)
        parts = []
        while start < stop:
            pool = start // self._pool_size
            first = pool * self._pool_size
            numbers = self._pool_numbers(epoch, pool)
            parts.append(numbers[start - first : stop - first])
            start = first + len(numbers)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _pool_numbers(self, epoch: int, pool: int) -> Array:
        last = self._last
        if last is not None and last[:2] == (epoch, pool):
            return last[2]
        first = pool * self._pool_size
        shuffled = Permutation(self.num_positions, epoch_key(self._seed, epoch, _SAMPLES)).part(first, first + self._pool_size)
        counts = self._samples.locate(shuffled).counts
        by_length = shuffled[np.argsort(counts, kind="stable")]
        # Groups change places among themselves; a short one, at the end of the epoch, keeps its place.
        whole = len(by_length) // self._group
        groups = Permutation(whole, epoch_key(self._seed, epoch, _GROUPS) + np.uint64(pool)).part(0, whole)
        heads = by_length[: whole * self._group].reshape(whole, self._group)[groups].reshape(-1)
        numbers: Array = np.concatenate([heads, by_length[whole * self._group :]])
        self._last = (epoch, pool, numbers)
        return numbers

    def describe(self) -> str:
        """In a line."""
        return f"shuffled, groups of {self._group:,} of similar length, seed {self._seed}"
