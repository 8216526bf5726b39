"""Mixtures: equal to a sorted list of due times, exactly once per store and epoch, for any cut into ranges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import twins

from stoker.sampling.mixture import MixturePlan, store_seed
from stoker.sampling.orders import ShufflePlan
from stoker.sampling.orders import _SequentialPlan as SequentialPlan

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def plans_of(sizes: list[int]) -> list[ShufflePlan]:
    return [ShufflePlan(size, seed) for seed, size in enumerate(sizes)]


@pytest.mark.promise("P9")
@given(SIZES, st.data())
def test_a_mixture_is_the_sorted_list_of_due_times(sizes: list[int], data: st.DataObject) -> None:
    weights = data.draw(st.none() | st.lists(st.floats(0.01, 100), min_size=len(sizes), max_size=len(sizes)))
    plan = MixturePlan(plans_of(sizes), sizes, weights)
    expected = twins.list_due(plans_of(sizes), sizes, weights, epochs=3)
    for epoch in range(3):
        cuts = sorted({0, plan.num_positions, *data.draw(st.lists(st.integers(0, plan.num_positions), max_size=4))})
        found = np.concatenate([plan.numbers(epoch, start, stop) for start, stop in pairwise(cuts)])
        assert found.tolist() == expected[epoch]


@pytest.mark.promise("P9")
@given(SIZES, st.data())
def test_each_store_gives_all_samples_before_it_repeats_one(sizes: list[int], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=len(sizes), max_size=len(sizes)))
    plan = MixturePlan(plans_of(sizes), sizes, weights)
    read = np.concatenate([plan.numbers(epoch, 0, plan.num_positions) for epoch in range(4)])
    first = 0
    for size in sizes:
        own = read[(read >= first) & (read < first + size)] - first
        for begin in range(0, len(own), size):
            part = own[begin : begin + size]
            assert len(set(part.tolist())) == len(part)
        first += size


def test_every_part_of_an_epoch_has_each_stores_share() -> None:
    plan = MixturePlan([SequentialPlan(1000)] * 3, [1000] * 3, [5, 3, 2])
    stores = plan.numbers(0, 0, 3000) // 1000
    counts = np.cumsum(stores[:, None] == np.arange(3), axis=0)
    expected = np.arange(1, 3001)[:, None] * np.array([0.5, 0.3, 0.2])
    assert np.abs(counts - expected).max() <= 1.5


def test_positions_of_a_long_epoch_are_found_at_once() -> None:
    sizes = [2**40, 2**33 + 1, 77]
    plan = MixturePlan([SequentialPlan(size) for size in sizes], sizes)
    middle = plan.num_positions // 3
    one_by_one = np.concatenate([plan.numbers(0, middle + i, middle + i + 1) for i in range(100)])
    assert plan.numbers(0, middle, middle + 100).tolist() == one_by_one.tolist()


@pytest.mark.promise("P9", control=True)
def test_negative_control_a_store_that_begins_again_early_repeats_samples() -> None:
    class Restless(SequentialPlan):
        def numbers(self, epoch: int, start: int, stop: int) -> np.ndarray:
            return super().numbers(epoch, start, stop) % 3

    plan = MixturePlan([Restless(5), SequentialPlan(4)], [5, 4])
    assert sorted(plan.numbers(0, 0, 9).tolist()) != list(range(9))


def test_the_order_of_a_mixture_is_what_it_always_was() -> None:
    """States of users name positions in it."""
    seeds = [store_seed(7, store) for store in range(3)]
    assert seeds == [7, 8187762994002270468, 5930632995308125352]
    plans = [ShufflePlan(4, seeds[0]), ShufflePlan(3, seeds[1])]
    assert MixturePlan(plans, [4, 3]).numbers(1, 0, 7).tolist() == [0, 5, 3, 6, 2, 4, 1]
    assert MixturePlan(plans, [4, 3], [1, 3]).numbers(1, 0, 7).tolist() == [4, 1, 6, 4, 5, 2, 6]
