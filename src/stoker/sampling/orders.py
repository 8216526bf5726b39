"""Orders: which sample comes when, as a pure function of (seed, epoch, position).

    Sequential      as stored
    Shuffle         every sample once, in random order
    BlockShuffle    the same for data larger than memory: neighbours are read together (block_shuffle.py)
    Weighted        each sample as often as its weight says
    ByLength        like Shuffle, but samples of similar length share a batch

An order holds no list of samples: any range of any epoch is computed when asked for, the same on every machine. So the state of a
feed is a position, and neither ranks nor threads nor restarts can change what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import xxhash

from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import OptionError
from stoker.sampling.permutation import Permutation, checked_seed, epoch_key
from stoker.sampling.views import Samples


class Plan(Protocol):
    """An order over given samples."""

    num_positions: int
    """Positions per epoch: the number of samples, except where samples are weighted."""
    shape: Mapping[str, int]
    """What the order chose for itself, to be kept with the state: a later run may have another batch size."""

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        """The numbers of the samples at positions `start` to `stop` of an epoch, int64."""

    def describe(self) -> str:
        """The order and what it chose, in a line."""


class Order(Protocol):
    """Which sample comes when."""

    @property
    def seed(self) -> int:
        """Decides the order, together with the epoch."""

    @property
    def kind(self) -> str:
        """What must be the same, beside seed and shape, for a position to mean the same sample."""

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> Plan:
        """The plan for these samples of `sample_bytes` each, in batches of `batch_size` (of all ranks together)."""

    def adopt(self, seed: int, shape: Mapping[str, int]) -> Order:
        """This order with the seed and the choices of a saved state."""


@dataclass(frozen=True)
class Sequential:
    """Samples in the order in which they are stored.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(4.0)])
        >>> feed = stoker.Feed(store, stoker.Segments(1), batch_size=4, order=stoker.Sequential(), return_index=True)
        >>> next(iter(feed))["sample"].tolist()
        [0, 1, 2, 3]
    """

    seed: int = field(default=0, init=False, repr=False)

    @property
    def kind(self) -> str:
        """What must be the same, beside seed and shape, for a position to mean the same sample."""
        return "sequential"

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> Plan:
        """The plan for these samples."""
        return SequentialPlan(samples.num_samples)

    def adopt(self, seed: int, shape: Mapping[str, int]) -> Sequential:
        """Itself: there is nothing to choose."""
        return self


class SequentialPlan:
    """Positions are numbers."""

    shape: Mapping[str, int] = {}

    def __init__(self, num_samples: int) -> None:
        self.num_positions = num_samples

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        """The positions themselves."""
        return np.arange(start, min(stop, self.num_positions), dtype=np.int64)

    def describe(self) -> str:
        """In a line."""
        return "sequential"


@dataclass(frozen=True)
class Shuffle:
    """Every sample once per epoch, in an order that depends on seed and epoch alone.

    Args:
        seed: An integer from 0 to 2**63 - 1.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(6.0)])
        >>> feed = stoker.Feed(store, stoker.Segments(1), batch_size=6, order=stoker.Shuffle(seed=1), return_index=True)
        >>> sorted(next(iter(feed))["sample"].tolist())
        [0, 1, 2, 3, 4, 5]
    """

    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))

    @property
    def kind(self) -> str:
        """What must be the same, beside seed and shape, for a position to mean the same sample."""
        return "shuffled"

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> Plan:
        """The plan for these samples."""
        return ShufflePlan(samples.num_samples, self.seed)

    def adopt(self, seed: int, shape: Mapping[str, int]) -> Shuffle:
        """With another seed."""
        return Shuffle(seed)


class ShufflePlan:
    """One permutation of all samples an epoch."""

    shape: Mapping[str, int] = {}

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_positions = num_samples
        self._seed = seed
        self._epoch: tuple[int, Permutation] | None = None  # one tuple, so that threads see all of it or the one before

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        """A part of the permutation of this epoch."""
        known = self._epoch
        if known is None or known[0] != epoch:
            known = self._epoch = epoch, Permutation(self.num_positions, epoch_key(self._seed, epoch))
        return known[1].part(start, stop)

    def describe(self) -> str:
        """In a line."""
        return f"shuffled, seed {self._seed}"


# Weighted order: each sample as often as its weight says, no more than one time more or less.
#
# The weights are laid end to end on a line, and the line is cut at equal distances: each cut draws the sample it falls in.
# Where the first cut is depends on seed and epoch, so that over epochs each sample has its exact share. The draws are then
# shuffled. Equal weights and as many draws as samples give every sample exactly once.

MAX_WEIGHT = 1e200
"""So that no sum of weights is infinite."""

_DRAWS, _PHASE = 3, 4
_PHASE_BITS = 20


@dataclass(frozen=True, eq=False)
class Weighted:
    """Samples in proportion to weights.

    Each sample comes as often as its weight says, rounded up or down.

    Args:
        weights: One per sample, or one per series, which all its samples then have. From 0 to 1e200.
        seed: An integer from 0 to 2**63 - 1.
        num_samples: Draws per epoch; by default as many as there are samples.

    Raises:
        OptionError: A weight is invalid, or their number fits neither samples nor series.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(3.0)])
        >>> order = stoker.Weighted([1, 0, 2])
        >>> feed = stoker.Feed(store, stoker.Segments(1), batch_size=3, order=order, return_index=True)
        >>> sorted(next(iter(feed))["sample"].tolist())
        [0, 2, 2]
    """

    weights: Sequence[float] | Array
    seed: int = 0
    num_samples: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.ndim != 1 or not len(weights):
            raise OptionError(
                f"Weighted: weights have shape {weights.shape}; expected a list with one number per sample or series."
            )
        bad = np.flatnonzero(~((weights >= 0) & (weights <= MAX_WEIGHT)))
        if len(bad):
            raise OptionError(f"Weighted: weight {bad[0]:,} is {weights[bad[0]]}; expected numbers from 0 to {MAX_WEIGHT}.")
        if not weights.sum() > 0:
            raise OptionError("Weighted: all weights are 0, so that no sample can be drawn.")
        draws = self.num_samples
        if draws is not None:
            if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
                raise OptionError(f"Weighted: num_samples is {draws!r}; expected an integer from 1.")
            object.__setattr__(self, "num_samples", int(draws))
        object.__setattr__(self, "weights", weights)

    @property
    def kind(self) -> str:
        """What must be the same, beside seed and shape, for a position to mean the same sample."""
        return f"{len(self.weights)} weights {xxhash.xxh3_64_hexdigest(np.ascontiguousarray(self.weights))}"

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> Plan:
        """The plan for these samples."""
        weights = np.asarray(self.weights)
        if len(weights) not in (samples.num_samples, samples.num_series):
            raise OptionError(
                f"Weighted: {len(weights):,} weights; expected {samples.num_samples:,} (one per sample) "
                f"or {samples.num_series:,} (one per series)."
            )
        firsts = samples.first_samples() if len(weights) == samples.num_series else None
        if firsts is not None and len(weights) == samples.num_samples:
            firsts = None
        mass = weights if firsts is None else weights * np.diff(firsts)
        if not mass.sum() > 0:
            raise OptionError("Weighted: only series without a sample have a weight, so that no sample can be drawn.")
        return WeightedPlan(running_sums(mass), weights, firsts, self.num_samples or samples.num_samples, self.seed)

    def adopt(self, seed: int, shape: Mapping[str, int]) -> Weighted:
        """With another seed."""
        return Weighted(self.weights, seed, self.num_samples)


@kernel
def running_sums(values: Array) -> Array:
    """The sum up to each value, each rounded once. Errors that add up would draw some samples of 132M twice and some never."""
    sums = np.empty(len(values), dtype=np.float64)
    total, lost = 0.0, 0.0
    for i in range(len(values)):
        value = values[i]
        larger = total + value
        # What the addition rounded away, exactly (Knuth's TwoSum).
        part = larger - total
        lost += (total - (larger - part)) + (value - part)
        total = larger
        sums[i] = total + lost
    return sums


class WeightedPlan:
    """Cuts at equal distances, shuffled."""

    shape: Mapping[str, int] = {}

    def __init__(self, ends: Array, weights: Array, firsts: Array | None, num_draws: int, seed: int) -> None:
        self.num_positions = num_draws
        self._ends = ends
        self._weights = weights
        self._firsts = firsts
        self._seed = seed

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        """A part of the draws of this epoch."""
        draws = Permutation(self.num_positions, epoch_key(self._seed, epoch, _DRAWS)).part(start, stop)
        # Half a cell away from 0 and 1: rounding cannot move a cut over the edge between two samples of equal weight.
        phase = (float(epoch_key(self._seed, epoch, _PHASE) >> np.uint64(64 - _PHASE_BITS)) + 0.5) / 2**_PHASE_BITS
        cuts = (draws + phase) / self.num_positions * self._ends[-1]
        drawn = np.searchsorted(self._ends, cuts, side="right")
        # Rounding may push the last cut onto the end of the line: it belongs to the last sample that has a weight.
        drawn = np.minimum(drawn, np.searchsorted(self._ends, self._ends[-1], side="left"))
        if self._firsts is None:
            return np.asarray(drawn, dtype=np.int64)
        behind = self._ends[drawn] - cuts
        sizes = self._firsts[drawn + 1] - self._firsts[drawn]
        within = sizes - np.ceil(behind / self._weights[drawn]).astype(np.int64)
        return np.asarray(self._firsts[drawn] + np.clip(within, 0, sizes - 1), dtype=np.int64)

    def describe(self) -> str:
        """In a line."""
        return f"{self.num_positions:,} draws per epoch in proportion to weights, seed {self._seed}"


# Order by length: samples of similar length share a batch, so that padding is short; otherwise a shuffle.
#
# The shuffled samples are taken a pool at a time, sorted by length within it, cut into groups, and the groups are shuffled.

_SAMPLES, _GROUPS = 5, 6


@dataclass(frozen=True)
class ByLength:
    """Every sample once per epoch, in groups of similar length, so that padding is short.

    Args:
        seed: An integer from 0 to 2**63 - 1.
        group: Samples per group; by default a batch of all ranks.
        pool: Groups that are sorted by length together. A larger pool makes lengths in a group more alike, and the shuffle
            less random.

    Raises:
        OptionError: A value is invalid.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(float(n)) for n in (9, 2, 8, 1)])
        >>> feed = stoker.Feed(store, stoker.Sequences(9), batch_size=2, order=stoker.ByLength())
        >>> sorted(batch["x"].shape[1] for batch in feed)
        [2, 9]
    """

    seed: int = 0
    group: int | None = None
    pool: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))
        for name, value in (("group", self.group), ("pool", self.pool)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
                raise OptionError(f"ByLength: {name} is {value!r}; expected an integer from 1.")
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
