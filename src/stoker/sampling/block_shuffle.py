"""Block shuffle: blocks of neighbours are permuted, then the samples within a window of blocks.

    stored      [a a a a][b b b b][c c c c][d d d d][e e e e][f f f f]
    blocks      [e e e e][a a a a][d d d d] | [f f f f][c c c c][b b b b]      read in this order, a window at a time
    samples      d e a a e d d a e d e a    |  b f c c b f f c b b f c         the order of the epoch

A batch of B samples out of a window of w blocks meets samples of one block about (B - 1) / w times as often as a full
shuffle would. If a block has but one label (the worst case) the variance of a batch mean grows by 1 + (B - 1) / w, and the
batch is worth B over that. `BlockShuffle()` takes w from this so that a batch is worth at least 0.85 of itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import OptionError
from stoker.sampling.orders import Plan
from stoker.sampling.permutation import Permutation, checked_seed, epoch_key
from stoker.sampling.views import Samples

WORTH = 0.85
"""What a batch must at least be worth, as a share of its size."""
BLOCK_BYTES = 256 * 2**10
"""A read of this size is as good as a sequential one on today's disks."""
WINDOW_BYTES = 2**30
"""Blocks become smaller before a window becomes larger than this."""
_DEFAULT_BLOCK = 64

_BLOCKS, _WITHIN = 1, 2**32  # what the keys of an epoch are for; windows take the numbers from _WITHIN on


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
        >>> feed = stoker.Feed(store, stoker.Segments(1), batch_size=8, order=order, return_index=True)
        >>> sorted(next(iter(feed))["sample"].tolist())
        [0, 1, 2, 3, 4, 5, 6, 7]
    """

    seed: int = 0
    block: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))
        for name in ("block", "window"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value < 2**63):
                raise OptionError(f"BlockShuffle: {name} is {value!r}; expected a number of samples from 1.")
            object.__setattr__(self, name, None if value is None else int(value))
        if self.block is not None and self.window is not None and self.window < self.block:
            raise OptionError(f"BlockShuffle: a window of {self.window:,} samples cannot hold a block of {self.block:,}.")

    @property
    def kind(self) -> str:
        """What must be the same, beside seed and shape, for a position to mean the same sample."""
        return "blocks"

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> Plan:
        """The plan for these samples."""
        block, window = choose(batch_size, sample_bytes, block=self.block, window=self.window)
        share = worth(batch_size, block, window)
        reason = "as given" if self.block and self.window else f"so that a batch of {batch_size:,} is worth {share:.0%} of itself"
        return BlockPlan(samples.num_samples, self.seed, block, window, reason)

    def adopt(self, seed: int, shape: Mapping[str, int]) -> BlockShuffle:
        """With the seed, block and window of a saved state."""
        for name in ("block", "window"):
            given = getattr(self, name)
            if given is not None and given != shape.get(name, given):
                raise OptionError(
                    f"the state was saved with BlockShuffle({name}={shape[name]}), but this feed has {name}={given}: "
                    f"another order. Give the same {name}, or none to take that of the state."
                )
        return BlockShuffle(seed, shape.get("block", self.block), shape.get("window", self.window))


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


@dataclass(frozen=True, kw_only=True)
class _Epoch:
    """The order of blocks in an epoch. The last block of the store may be short; the slots behind it then move up."""

    number: int
    blocks: Permutation
    short_end: int
    """Where the slot of the last block ends."""
    missing: int

    def start(self, slot: int, block: int) -> int:
        """The position at which a slot begins."""
        return slot * block - (self.missing if slot * block >= self.short_end + self.missing else 0)


@dataclass(frozen=True, kw_only=True)
class _Window:
    """What is mixed together: positions `start` to `stop` of an epoch."""

    epoch: int
    start: int
    stop: int
    samples: Permutation
    whereabouts: tuple[int, Array, int, int, int, int]
    """What `_resolve` is told."""


class BlockPlan:
    """A permutation of blocks an epoch, and one of samples for each window of blocks."""

    def __init__(self, num_samples: int, seed: int, block: int, window: int, reason: str) -> None:
        self.num_positions = num_samples
        self.block = block
        self.window = window // block * block
        self.num_blocks = -(-num_samples // block)
        # As many windows as fit, of equal size: a small one at the end would be shuffled worse than the others.
        self.num_windows = max(1, self.num_blocks // (window // block))
        self.shape: Mapping[str, int] = {"block": block, "window": window}
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
            first_slot, end_slot = self.window_slots(number)
            order = self._order(epoch)
            start, stop = order.start(first_slot, self.block), order.start(end_slot, self.block)
            known = self._window = _Window(
                epoch=epoch,
                start=start,
                stop=stop,
                whereabouts=(start, self.origins(epoch, number), first_slot, self.block, order.short_end, order.missing),
                samples=Permutation(stop - start, epoch_key(self._seed, epoch, _WITHIN + number)),
            )
        return known

    def origins(self, epoch: int, window: int) -> Array:
        """The numbers of the blocks of a window, in the order in which they are mixed."""
        return self._order(epoch).blocks.part(*self.window_slots(window))

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
            short_end = (short_slot + 1) * self.block - missing
            order = self._epoch = _Epoch(number=epoch, blocks=blocks, short_end=short_end, missing=missing)
        return order

    def describe(self) -> str:
        """In a line."""
        blocks = f"blocks of {self.block:,} samples"
        if self.num_windows == 1:
            return f"{blocks}, all in one window: a full shuffle, seed {self._seed}"
        return f"{blocks}, mixed in {self.num_windows:,} windows of about {self.window:,} ({self._reason}), seed {self._seed}"
