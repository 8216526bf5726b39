"""`assert_exactly_once` accepts epochs that are whole and of one order, and says what is wrong with all others."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.harness import loaders
from tests.harness.flat_feed import flat_feed

from stoker import Sequences, Shuffle, Store, Windows
from stoker.testing import assert_exactly_once


@pytest.mark.parametrize("loader", [loaders.Loader, loaders.WritesOver])
def test_a_right_loader_passes(loader: Any) -> None:
    assert_exactly_once(loader)


@pytest.mark.parametrize("view", [Windows(3), Sequences(5), Sequences(5, layout="packed")])
def test_a_feed_passes(view: Any) -> None:
    store = Store.from_arrays(x=[np.arange(5.0), np.arange(9.0), np.ones(3)])
    assert_exactly_once(partial(flat_feed, store, view, batch_size=2, order=Shuffle(), return_index=True))


def test_rows_padded_to_different_lengths_are_the_same_sample() -> None:
    store = Store.from_arrays(x=[np.arange(1.0, 2 + i) for i in range(9)])
    assert_exactly_once(partial(flat_feed, store, Sequences(20), batch_size=2, order=Shuffle()))


@pytest.mark.promise("P9", control=True)
@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (loaders.FillsUp, r"on 1 rank, the sample of row 2 of batch 3 of epoch 0 came twice: as row 0 of batch 0"),
        (loaders.DropsTail, r"epoch 0 on 1 rank has 9 samples; expected 11"),
        (loaders.OrderByRanks, r"the order depends on the number of ranks: at position \d+ of epoch 0 on 2 ranks comes the"),
        (partial(loaders.EndsEarlyOnOneRank, 13), r"in epoch 0, rank 0 of 2 ended after 2 batches, but rank 1 continues"),
    ],
)
def test_a_wrong_loader_is_caught(loader: Any, message: str) -> None:
    # Of 13 samples, 2 ranks have one left for the last step.
    with pytest.raises(AssertionError, match=message):
        assert_exactly_once(loader)


def test_an_order_by_ranks_may_be_allowed() -> None:
    assert_exactly_once(loaders.OrderByRanks, one_order=False)


def test_a_dropped_tail_is_caught_without_a_stated_number() -> None:
    """Another epoch, or another number of ranks, has what this one lacks."""

    class Unstated(loaders.DropsTail):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            del self.dataset

    with pytest.raises(AssertionError, match=r"the sample of row . of batch . of epoch . came in epoch 0 on 1 rank, but not"):
        assert_exactly_once(Unstated)


def test_equal_samples_need_numbers() -> None:
    store = Store.from_arrays(x=[np.ones(5)])
    with pytest.raises(AssertionError, match=r"came twice: .*returns=Returns\(index=True\) for a feed of stoker"):
        assert_exactly_once(partial(flat_feed, store, Windows(2), batch_size=2))
    assert_exactly_once(partial(flat_feed, store, Windows(2), batch_size=2, return_index=True))
