"""Orders: which sample comes when, as a pure function of (seed, epoch, position).

    Sequential      as stored
    Shuffle         every sample once, in random order
    BlockShuffle    the same for data larger than memory: neighbours are read together
    Weighted        each sample as often as its weight says
    ByLength        like Shuffle, but samples of similar length share a batch

An order holds no list of samples: any range of any epoch is computed when asked for, the same on every machine. So the state of a
feed is a position, and neither ranks nor threads nor restarts can change what comes next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Protocol

import numpy as np
import xxhash
from msgspec import Meta

from stoker._kernels import kernel
from stoker._types import Array, CheckedFields, Count, Seed, check_fields
from stoker.errors import OptionError
from stoker.sampling.permutation import Permutation, epoch_key
from stoker.sampling.views import Samples

# What the keys of an epoch are for; windows of blocks take the numbers from _WITHIN on.
_BLOCKS, _WITHIN, _DRAWS, _PHASE, _SAMPLES, _GROUPS = 1, 2**32, 3, 4, 5, 6


class Plan(Protocol):
    """An order over given samples."""

    num_positions: int
    """Positions per epoch: the number of samples, except where samples are weighted."""
    shape: Mapping[str, int] = {}
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


def _adopted(order: Order, name: str, shape: Mapping[str, int], *, parameter: str) -> int | None:
    """A choice of a saved state; refuses another one than the order was made with."""
    asked: int | None = getattr(order, name)
    chosen = shape.get(name, asked)
    if asked not in (None, chosen):
        kind = type(order).__name__
        raise OptionError(
            f"the state was saved with {kind}({name}={chosen}), but this feed has {name}={asked}: another order. Give the same {name}, "
            f"or none to take that of the state.",
            parameter=parameter,
        )
    return chosen


@dataclass(frozen=True)
class Sequential:
    """Samples in the order in which they are stored.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(4.0)])
        >>> feed = stoker.Feed(store, stoker.Segments(1), batch_size=4, order=stoker.Sequential(), returns=stoker.feed.Returns(index=True))
        >>> next(iter(feed))["sample"].tolist()
        [0, 1, 2, 3]
    """

    seed: int = field(default=0, init=False, repr=False)
    kind = "sequential"

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> Plan:
        """The plan for these samples."""
        return _SequentialPlan(samples.num_samples)

    def adopt(self, seed: int, shape: Mapping[str, int]) -> Sequential:
        """Itself: there is nothing to choose."""
        return self


class _SequentialPlan(Plan):
    def __init__(self, num_samples: int) -> None:
        self.num_positions = num_samples

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        return np.arange(start, min(stop, self.num_positions), dtype=np.int64)

    def describe(self) -> str:
        return "sequential"


@dataclass(frozen=True)
class Shuffle(CheckedFields):
    """Every sample once per epoch, in an order that depends on seed and epoch alone.

    Args:
        seed: An integer from 0 to 2**63 - 1.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(6.0)])
        >>> numbered = stoker.feed.Returns(index=True)
        >>> feed = stoker.Feed(store, stoker.Segments(1), batch_size=6, order=stoker.Shuffle(seed=1), returns=numbered)
        >>> sorted(next(iter(feed))["sample"].tolist())
        [0, 1, 2, 3, 4, 5]
    """

    seed: Seed = 0
    kind = "shuffled"

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> Plan:
        """The plan for these samples."""
        return ShufflePlan(samples.num_samples, self.seed)

    def adopt(self, seed: int, shape: Mapping[str, int]) -> Shuffle:
        """With another seed."""
        return Shuffle(seed)


class ShufflePlan(Plan):
    """A permutation of all samples for each epoch."""

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_positions = num_samples
        self._seed = seed
        self._epoch: tuple[int, Permutation] | None = None  # one tuple, so that threads see all of it or the one before

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        """A part of this epoch."""
        known = self._epoch
        if known is None or known[0] != epoch:
            known = self._epoch = epoch, self.permutation(epoch)
        return known[1].part(start, stop)

    def permutation(self, epoch: int) -> Permutation:
        """All of an epoch."""
        return Permutation(self.num_positions, epoch_key(self._seed, epoch))

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
        >>> feed = stoker.Feed(store, stoker.Segments(1), batch_size=3, order=order, returns=stoker.feed.Returns(index=True))
        >>> sorted(next(iter(feed))["sample"].tolist())
        [0, 2, 2]
    """

    weights: Sequence[float] | Array
    seed: Seed = 0
    num_samples: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.ndim != 1 or not len(weights):
            raise OptionError(
                f"Weighted: weights have shape {weights.shape}; expected a list with one number per sample or series.",
                parameter="weights",
            )
        bad = np.flatnonzero(~((weights >= 0) & (weights <= MAX_WEIGHT)))
        if len(bad):
            raise OptionError(
                f"Weighted: weight {bad[0]:,} is {weights[bad[0]]}; expected numbers from 0 to {MAX_WEIGHT}.", parameter="weights"
            )
        if not weights.sum() > 0:
            raise OptionError("Weighted: all weights are 0, so that no sample can be drawn.", parameter="weights")
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
                f"or {samples.num_series:,} (one per series).",
                parameter="weights",
            )
        firsts = samples.first_samples() if len(weights) != samples.num_samples else None
        mass = weights if firsts is None else weights * np.diff(firsts)
        if not mass.sum() > 0:
            raise OptionError(
                "Weighted: only series without a sample have a weight, so that no sample can be drawn.", parameter="weights"
            )
        return _WeightedPlan(running_sums(mass), weights, firsts, self.num_samples or samples.num_samples, self.seed)

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


class _WeightedPlan(Plan):
    def __init__(self, ends: Array, weights: Array, firsts: Array | None, num_draws: int, seed: int) -> None:
        self.num_positions = num_draws
        self._ends = ends
        self._weights = weights
        self._firsts = firsts
        self._seed = seed

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
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
        return f"{self.num_positions:,} draws per epoch in proportion to weights, seed {self._seed}"


# Order by length: samples of similar length share a batch, so that padding is short; otherwise a shuffle.
#
# The shuffled samples are taken a pool at a time, sorted by length within it, cut into groups, and the groups are shuffled.


@dataclass(frozen=True)
class ByLength(CheckedFields):
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

    seed: Seed = 0
    group: Count | None = None
    pool: Count = 100

    @property
    def kind(self) -> str:
        """What must be the same, beside seed and shape, for a position to mean the same sample."""
        return f"by length in pools of {self.pool}"

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> Plan:
        """The plan for these samples."""
        return _ByLengthPlan(samples, self.seed, self.group or batch_size, self.pool)

    def adopt(self, seed: int, shape: Mapping[str, int]) -> ByLength:
        """With the seed and group of a saved state."""
        return ByLength(seed, _adopted(self, "group", shape, parameter="group"), self.pool)


class _ByLengthPlan(Plan):
    def __init__(self, samples: Samples, seed: int, group: int, pool: int) -> None:
        self.num_positions = samples.num_samples
        self.shape = {"group": group}
        self._samples = samples
        self._seed = seed
        self._group = min(group, max(1, samples.num_samples))  # the same order; a state may say any number
        self._pool_size = self._group * pool
        self._last: tuple[int, int, Array] | None = None  # one tuple, so that threads see all of it or the one before

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
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
        lengths = np.minimum(
            self._samples.locate(shuffled).counts, self._samples.row
        )  # at random places, they are those of the series
        by_length = shuffled[np.argsort(lengths, kind="stable")]
        # Groups change places among themselves; a short one, at the end of the epoch, keeps its place.
        whole = len(by_length) // self._group
        groups = Permutation(whole, epoch_key(self._seed, epoch, _GROUPS) + np.uint64(pool)).part(0, whole)
        heads = by_length[: whole * self._group].reshape(whole, self._group)[groups].reshape(-1)
        numbers: Array = np.concatenate([heads, by_length[whole * self._group :]])
        self._last = (epoch, pool, numbers)
        return numbers

    def describe(self) -> str:
        return f"shuffled, groups of {self._group:,} of similar length, seed {self._seed}"


# Block shuffle: blocks of neighbours are permuted, then the samples within a window of blocks.
#
#     stored      [a a a a][b b b b][c c c c][d d d d][e e e e][f f f f]
#     blocks      [e e e e][a a a a][d d d d] | [f f f f][c c c c][b b b b]      read in this order, a window at a time
#     samples      d e a a e d d a e d e a    |  b f c c b f f c b b f c         the order of the epoch
#
# A batch of B samples out of a window of w blocks meets samples of one block about (B - 1) / w times as often as a full
# shuffle would. If a block has but one label (the worst case) the variance of a batch mean grows by 1 + (B - 1) / w, and the
# batch is worth B over that. `BlockShuffle()` takes w from this so that a batch is worth at least 0.85 of itself.

WORTH = 0.85
"""What a batch must at least be worth, as a share of its size."""
BLOCK_BYTES = 256 * 2**10
"""A read of this size is as good as a sequential one on today's disks."""
WINDOW_BYTES = 2**30
"""Blocks become smaller before a window becomes larger than this."""
_DEFAULT_BLOCK = 64
NumSamples = Annotated[int, Meta(ge=1, le=2**63 - 1)]


@dataclass(frozen=True)
class BlockShuffle:
    """Every sample once per epoch, for data larger than memory: neighbours are read together.

    Blocks of neighbours are permuted, then the samples within a window of blocks.

    Args:
        seed: An integer from 0 to 2**63 - 1.
        block: Samples that are read together; by default chosen by their size.
        window: Samples that are mixed together; by default as many as make a batch worth 0.85 of a fully shuffled one.

    Raises:
        OptionError: A value is invalid, or the window is smaller than a block.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.arange(8.0)])
        >>> order = stoker.BlockShuffle(seed=0, block=2, window=4)
        >>> feed = stoker.Feed(store, stoker.Segments(1), batch_size=8, order=order, returns=stoker.feed.Returns(index=True))
        >>> sorted(next(iter(feed))["sample"].tolist())
        [0, 1, 2, 3, 4, 5, 6, 7]
    """

    seed: Seed = 0
    block: NumSamples | None = None
    window: NumSamples | None = None
    kind = "blocks"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.block is not None and self.window is not None and self.window < self.block:
            raise OptionError(
                f"BlockShuffle: a window of {self.window:,} samples cannot hold a block of {self.block:,}.", parameter="window"
            )

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> Plan:
        """The plan for these samples."""
        block, window = choose(batch_size, sample_bytes, block=self.block, window=self.window)
        share = worth(batch_size, block, window)
        reason = "as given: a batch" if self.block and self.window else "so that a batch"
        reason += f" of {batch_size:,} is worth {share:.0%} of itself"
        return BlockPlan(samples.num_samples, self.seed, block, window, reason)

    def adopt(self, seed: int, shape: Mapping[str, int]) -> BlockShuffle:
        """With the seed, block and window of a saved state."""
        block, window = (_adopted(self, name, shape, parameter="state") for name in ("block", "window"))
        return BlockShuffle(seed, block, window)


def num_blocks_for(batch_size: int) -> int:
    """Blocks of a window that make a batch worth `WORTH` of itself."""
    return max(1, math.ceil((batch_size - 1) * WORTH / (1 - WORTH)))


def worth(batch_size: int, block: int, window: int) -> float:
    """The share of a batch's size that it is worth, if samples of a block are all alike."""
    alike = (block - 1) / max(1, window // block * block - 1)  # of the others in a window, those of the same block
    return 1 / (1 + (batch_size - 1) * alike)


def choose(batch_size: int, sample_bytes: float, *, block: int | None, window: int | None) -> tuple[int, int]:
    """Block and window in samples. Blocks are as large as a disk likes, unless the window would then not fit memory."""
    blocks = num_blocks_for(batch_size)
    if block is None and window is not None:
        block = max(1, window // blocks)
    if block is None:
        block = _DEFAULT_BLOCK
        if sample_bytes > 0:
            largest = max(1, int(WINDOW_BYTES / (blocks * sample_bytes)))
            block = min(max(1, math.ceil(BLOCK_BYTES / sample_bytes)), largest)
    if window is None:
        window = block * blocks
        if block == 1 and sample_bytes > 0:  # samples of one each are shuffled freely: a larger window makes it no better
            window = min(window, max(batch_size, int(WINDOW_BYTES / sample_bytes)))
    return block, max(block, window)


@kernel
def _resolve(places: Array, start: int, origins: Array, first_slot: int, block: int, short_end: int, missing: int) -> None:
    """Turn places of a window, which begins at `start`, into numbers of samples.

    Slots behind the short block have moved up by `missing`.
    """
    for i in range(len(places)):
        place = places[i] + start
        place += missing if place >= short_end else 0
        slot = place // block
        places[i] = origins[slot - first_slot] * block + place - slot * block


class _Epoch(NamedTuple):
    """The order of blocks in an epoch. The last block of the store may be short; the slots behind it then move up."""

    number: int
    blocks: Permutation
    short_end: int
    """Where the slot of the last block ends."""
    missing: int


class _Window(NamedTuple):
    """What is mixed together: positions `start` to `stop` of an epoch."""

    epoch: int
    start: int
    stop: int
    samples: Permutation
    whereabouts: tuple[int, Array, int, int, int, int]
    """The arguments of `_resolve`."""


class BlockPlan(Plan):
    """A permutation of blocks for each epoch, and one of samples for each window of blocks."""

    def __init__(self, num_samples: int, seed: int, block: int, window: int, reason: str) -> None:
        self.num_positions = num_samples
        self.block = block
        self.window = window // block * block
        self.num_blocks = -(-num_samples // block)
        # As many windows as fit, of equal size: a small one at the end would be shuffled worse than the others.
        self.num_windows = max(1, self.num_blocks // (window // block))
        self.shape = {"block": block, "window": window}
        self._seed = seed
        self._reason = reason
        # What threads share is replaced whole, never changed.
        self._epoch: _Epoch | None = None
        self._window: _Window | None = None

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        """A part of this epoch."""
        stop = min(stop, self.num_positions)
        parts = []
        while start < stop:
            window = self._window_at(epoch, start)
            places = window.samples.part(start - window.start, min(stop, window.stop) - window.start)
            _resolve(places, *window.whereabouts)
            parts.append(places)
            start += len(places)
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _window_at(self, epoch: int, position: int) -> _Window:
        known = self._window
        if known is None or known.epoch != epoch or not known.start <= position < known.stop:
            number = self.window_of(epoch, position)
            slots = self.window_slots(number)
            _, _, short_end, missing = self._order(epoch)
            start, stop = (slot * self.block - (missing if slot * self.block >= short_end + missing else 0) for slot in slots)
            samples = Permutation(stop - start, epoch_key(self._seed, epoch, _WITHIN + number))
            whereabouts = (start, self.origins(epoch, number), slots[0], self.block, short_end, missing)
            known = self._window = _Window(epoch, start, stop, samples, whereabouts)
        return known

    def origins(self, epoch: int, window: int) -> Array:
        """The numbers of the blocks of a window, in the order in which they are mixed."""
        return self._order(epoch).blocks.part(*self.window_slots(window))

    def block_ranges(self, epoch: int, window: int, samples: Samples) -> tuple[Array, Array, Array, Array]:
        """Of the blocks of a window: their first and last samples, and the steps at which these begin and end."""
        firsts = self.origins(epoch, window) * self.block
        lasts = np.minimum(firsts + self.block, self.num_positions) - 1
        ends = samples.locate(lasts)
        return firsts, lasts, samples.locate(firsts).starts, ends.starts + ends.counts

    def window_slots(self, window: int) -> tuple[int, int]:
        """The first place in the order of blocks that belongs to a window, and the one behind its last."""
        return window * self.num_blocks // self.num_windows, (window + 1) * self.num_blocks // self.num_windows

    def window_of(self, epoch: int, position: int) -> int:
        """The window that a position belongs to."""
        order = self._order(epoch)
        slot = (position + (order.missing if position >= order.short_end else 0)) // self.block
        return ((slot + 1) * self.num_windows - 1) // self.num_blocks

    def _order(self, epoch: int) -> _Epoch:
        order = self._epoch
        if order is None or order.number != epoch:
            blocks = Permutation(self.num_blocks, epoch_key(self._seed, epoch, _BLOCKS))
            missing = self.num_blocks * self.block - self.num_positions
            short_slot = blocks.inverse(self.num_blocks - 1) if self.num_blocks else 0
            order = self._epoch = _Epoch(epoch, blocks, (short_slot + 1) * self.block - missing, missing)
        return order

    def describe(self) -> str:
        """In a line."""
        blocks = f"blocks of {self.block:,} samples"
        if self.num_windows == 1:
            return f"{blocks}, all in one window: a full shuffle, seed {self._seed}"
        return f"{blocks}, mixed in {self.num_windows:,} windows of about {self.window:,} ({self._reason}), seed {self._seed}"
