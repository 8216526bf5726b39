"""What tests of orders share: plans over so many samples, and how to take an epoch in pieces."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.sampling import twins

from stoker.sampling.orders import BlockShuffle, ByLength, Order, Plan, Sequential, Shuffle, Weighted
from stoker.sampling.views import Samples, Sequences

Array = npt.NDArray[Any]


ORDERS: list[Order] = [Sequential(), Shuffle(1), BlockShuffle(1), BlockShuffle(1, 4, 64), ByLength(1), Weighted(np.ones(777), 1)]
"""One of each kind, for 777 samples."""


def series_of(num_samples: int) -> Samples:
    """So many samples, one step each."""
    return Sequences(1).over(twins.uniform(1, num_samples))


def plan_of(order: Order, num_samples: int, batch_size: int = 32, sample_bytes: float = 0.0) -> Plan:
    """An order over so many samples."""
    return order.over(series_of(num_samples), batch_size=batch_size, sample_bytes=sample_bytes)


def whole(plan: Plan, epoch: int = 0) -> Array:
    """All numbers of an epoch."""
    return plan.numbers(epoch, 0, plan.num_positions)


def in_pieces(plan: Plan, epoch: int, cuts: list[int]) -> Array:
    """All numbers of an epoch, asked for between cuts."""
    edges = [0, *sorted(cuts), plan.num_positions]
    return np.concatenate([plan.numbers(epoch, a, b) for a, b in itertools.pairwise(edges)])


def times_seen(numbers: Array, num_samples: int) -> list[int]:
    """How often each sample comes."""
    return np.bincount(numbers, minlength=num_samples).tolist()
