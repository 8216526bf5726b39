"""Permutations: one-to-one, equal to their definition bit for bit, any part without the rest, and no order favoured."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from tests.sampling import twins

from stoker.sampling import permutation
from stoker.sampling.permutation import MAX_SIZE, Permutation, epoch_key

LARGE = [2**20 - 1, 2**20, 2**31 + 11, 2**32, 132_000_000, 10**10 + 7, 2**40 - 87, 2**40, 2**53 + 1, MAX_SIZE]


def shuffled(size: int, seed: int, epoch: int = 0) -> Permutation:
    return Permutation(size, epoch_key(seed, epoch))


def test_every_number_once_for_every_small_size() -> None:
    for size in range(201):
        for seed in range(3):
            whole = shuffled(size, seed).part(0, size)
            assert whole.dtype == np.int64
            assert sorted(whole.tolist()) == list(range(size)), (size, seed)


@pytest.mark.parametrize("size", LARGE)
def test_numbers_of_large_permutations_differ_and_are_found_again(size: int) -> None:
    order = shuffled(size, 5)
    starts = [0, 1, 1000, size // 3, size // 2, size - 1000]
    numbers = np.concatenate([order.part(start, start + 1000) for start in starts])
    places = np.concatenate([np.arange(start, start + 1000) for start in starts])
    assert numbers.min() >= 0
    assert numbers.max() < size
    assert len(set(numbers.tolist())) == len(set(places.tolist()))
    for place, number in zip(places[::97].tolist(), numbers[::97].tolist(), strict=True):
        assert order.inverse(number) == place


@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 100, 127, 1000, 4097])
def test_the_inverse_undoes_a_permutation(size: int) -> None:
    order = shuffled(size, 1)
    whole = order.part(0, size)
    assert [order.inverse(number) for number in whole.tolist()] == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 63, 64, 65, 129, 1000])
def test_a_permutation_equals_its_definition_bit_for_bit(size: int) -> None:
    for seed in range(3):
        key = epoch_key(seed, seed + 1)
        assert Permutation(size, key).part(0, size).tolist() == [twins.permute(i, size, int(key)) for i in range(size)]


@pytest.mark.parametrize("size", LARGE)
def test_large_permutations_equal_their_definition_bit_for_bit(size: int) -> None:
    key = epoch_key(2**40, 3)
    order = Permutation(size, key)
    for start in (0, 77, size // 2 - 1, size - 70):
        expected = [twins.permute(i, size, int(key)) for i in range(start, min(start + 70, size))]
        assert order.part(start, start + 70).tolist() == expected


def chi_square(counts: list[int], cells: int) -> float:
    """How many standard deviations the counts are away from equal shares."""
    expected = sum(counts) / cells
    statistic = sum((count - expected) ** 2 / expected for count in counts) + (cells - len(counts)) * expected
    return (statistic - (cells - 1)) / math.sqrt(2 * (cells - 1))


@pytest.mark.parametrize(("size", "trials"), [(2, 20_000), (3, 20_000), (4, 20_000), (5, 24_000), (6, 36_000)])
@pytest.mark.parametrize("varied", ["seed", "epoch"])
def test_all_orders_of_a_handful_are_equally_likely(size: int, trials: int, varied: str) -> None:
    keys = (epoch_key(i, 0) if varied == "seed" else epoch_key(0, i) for i in range(trials))
    seen = Counter(tuple(Permutation(size, key).part(0, size).tolist()) for key in keys)
    assert set(seen) == set(itertools.permutations(range(size)))
    assert abs(chi_square(list(seen.values()), math.factorial(size))) < 4


def test_an_order_that_is_favoured_would_be_seen() -> None:
    assert chi_square([1200, 960, 960, 960, 960, 960], 6) > 4
    assert chi_square([1200, 1200, 1200, 1200, 1200, 0], 6) > 4


@pytest.mark.parametrize("rounds", [2, 4])
def test_too_few_rounds_would_be_seen(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    monkeypatch.setattr(permutation, "NUM_ROUNDS", rounds)
    seen = Counter(tuple(shuffled(4, seed).part(0, 4).tolist()) for seed in range(20_000))
    assert chi_square(list(seen.values()), 24) > 4


def test_places_and_neighbours_of_a_thousand_are_those_of_chance() -> None:
    size, trials = 1000, 400
    orders = np.stack([shuffled(size, seed, seed % 7).part(0, size) for seed in range(trials)])
    # Where a number lands, in tenths: each tenth of the numbers in each tenth of the places.
    table = np.histogram2d(np.tile(np.arange(size) // 100, trials), orders.reshape(-1) // 100, bins=10)[0]
    assert abs(chi_square(table.reshape(-1).astype(int).tolist(), 100)) < 4
    # One random permutation has one fixed point on average, and 1 - 1/n followers (i then i + 1), each with variance 1.
    fixed = (orders == np.arange(size)).sum(axis=1)
    followers = (np.diff(orders, axis=1) == 1).sum(axis=1)
    descending = (np.diff(orders, axis=1) == -1).sum(axis=1)
    for counts in (fixed, followers, descending):
        assert abs(counts.mean() - 1) < 4 / math.sqrt(trials)
        assert abs(counts.var() - 1) < 4 * math.sqrt(3 / trials)  # a Poisson variance of 1 has a kurtosis of 4
    # Neighbours are unrelated: the correlation of consecutive numbers is -1/n, give or take.
    left, right = orders[:, :-1].reshape(-1), orders[:, 1:].reshape(-1)
    assert abs(np.corrcoef(left, right)[0, 1] + 1 / size) < 4 / math.sqrt(left.size)


def test_orders_of_two_keys_are_unrelated() -> None:
    size = 1000
    orders = [shuffled(size, seed, epoch).part(0, size) for seed in range(8) for epoch in range(8)]
    agreeing = [int((one == other).sum()) for one, other in itertools.combinations(orders, 2)]
    assert max(agreeing) < 12
    assert abs(np.mean(agreeing) - 1) < 4 / math.sqrt(len(agreeing))
