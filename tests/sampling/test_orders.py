"""Sequential and shuffled orders: every sample once, any part without the rest, another order each epoch and seed."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from tests.sampling.plans import plan_of, whole

from stoker.sampling.orders import BlockShuffle, ByLength, Order, Sequential, Shuffle, Weighted

SHUFFLED: list[Order] = [Shuffle(3), BlockShuffle(3, 4, 32), ByLength(3, 8, 4), Weighted(np.ones(500), 3)]
ALL: list[Order] = [Sequential(), *SHUFFLED]


def with_seed(order: Order, seed: int) -> Order:
    return order.adopt(seed, {})


@pytest.mark.parametrize("order", SHUFFLED, ids=lambda order: type(order).__name__)
def test_epochs_and_seeds_differ(order: Order) -> None:
    orders = [whole(plan_of(with_seed(order, seed), 500), epoch) for seed in (0, 1, 2**63 - 1) for epoch in (0, 1, 2)]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).mean() < 0.05


@pytest.mark.parametrize("order", ALL, ids=lambda order: type(order).__name__)
def test_threads_that_share_a_plan_do_not_disturb_each_other(order: Order) -> None:
    plan = plan_of(order, 500)
    expected = [whole(plan_of(order, 500), epoch) for epoch in range(4)]
    wrong: list[int] = []

    def read(epoch: int) -> None:
        for i in range(200):
            start = i * 37 % 480
            if not (plan.numbers(epoch, start, start + 20) == expected[epoch][start : start + 20]).all():
                wrong.append(epoch)

    threads = [threading.Thread(target=read, args=(epoch,)) for epoch in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_kinds_distinguish_orders() -> None:
    orders: list[Order] = [*ALL, Weighted(np.ones(499), 3), Weighted(np.arange(500.0), 3), ByLength(3, 8, 5)]
    assert len({order.kind for order in orders}) == len(orders)
    assert Shuffle(1).kind == Shuffle(2).kind  # the seed is kept by itself
