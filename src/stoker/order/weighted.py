"""Weighted order: each sample as often as its weight says, no more than one time more or less.

The weights are laid end to end on a line, and the line is cut at equal distances: each cut draws the sample it falls in.
Where the first cut is depends on seed and epoch, so that over epochs each sample has its exact share. The draws are then
shuffled. Equal weights and as many draws as samples give every sample exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from stoker.errors import OptionError
from stoker.kernel import kernel
from stoker.order.keys import checked_seed, epoch_key
from stoker.order.order import Plan
from stoker.order.permutation import Permutation
from stoker.order.samples import Samples

Array = npt.NDArray[Any]

MAX_WEIGHT = 1e200
"""So that no sum of weights is infinite."""

_DRAWS, _PHASE = 3, 4
_PHASE_BITS = 20


@dataclass(frozen=True, eq=False)
class Weighted:
    """Samples in proportion to `weights`: one a sample, or one a series, which all its samples then have.

    An epoch has `num_samples` draws; by default as many as there are samples.
    """

    weights: Sequence[float] | Array
    seed: int = 0
    num_samples: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.ndim != 1 or not len(weights):
            raise OptionError(
                f"Weighted: weights have shape {weights.shape}; expected a list with one number a sample or a series."
            )
        bad = np.flatnonzero(~((weights >= 0) & (weights <= MAX_WEIGHT)))
        if len(bad):
            raise OptionError(f"Weighted: weight {bad[0]:,} is {weights[bad[0]]}; expected numbers from 0 to {MAX_WEIGHT}.")
        if not weights.sum() > 0:
            raise OptionError("Weighted: all weights are 0, so that no sample can be drawn.")
        draws = self.num_samples
        if draws is not None:
            if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
                raise OptionError(f"Weighted: num_samples is {draws!r}; expected a whole number from 1.")
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
                f"Weighted: {len(weights):,} weights; expected {samples.num_samples:,} (one a sample) "
                f"or {samples.num_series:,} (one a series)."
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
        return f"{self.num_positions:,} draws an epoch in proportion to weights, seed {self._seed}"
