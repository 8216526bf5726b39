"""Orders: which sample comes when, as a pure function of (seed, epoch, position).

    Sequential      as stored
    Shuffle         every sample once, in random order
    BlockShuffle    the same for data larger than memory: neighbours are read together, but come apart
    Weighted        each sample as often as its weight says
    ByLength        like Shuffle, but samples of similar length share a batch

An order holds no list of samples: any part of any epoch is computed when asked for, alike on every machine. So the state
of a feed is a position, and neither ranks nor threads nor restarts can change what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.order.keys import checked_seed, epoch_key
from stoker.order.permutation import Permutation
from stoker.order.samples import Samples

Array = npt.NDArray[Any]


class Plan(Protocol):
    """An order over given samples."""

    num_positions: int
    """Positions of an epoch: the number of samples, except where samples are weighted."""
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
        """The plan for these samples, of so many bytes each, in batches of so many (of all ranks together)."""

    def adopt(self, seed: int, shape: Mapping[str, int]) -> Order:
        """This order with the seed and the choices of a saved state."""


@dataclass(frozen=True)
class Sequential:
    """Samples as they are stored."""

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
    """Every sample once an epoch, in an order that seed and epoch decide."""

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
