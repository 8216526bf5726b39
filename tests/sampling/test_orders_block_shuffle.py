"""Block shuffle: every sample once, each window reads its own blocks only, and a batch is worth what was promised."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.sampling.plans import Array, in_pieces, series_of, times_seen, whole

from stoker.sampling.orders import WINDOW_BYTES, WORTH, BlockPlan, BlockShuffle, choose, num_blocks_for, worth


def block_plan(order: BlockShuffle, num_samples: int, batch_size: int = 32, sample_bytes: float = 0.0) -> BlockPlan:
    plan = order.over(series_of(num_samples), batch_size=batch_size, sample_bytes=sample_bytes)
    assert isinstance(plan, BlockPlan)
    return plan


@pytest.mark.parametrize("num_samples", [0, 1, 2, 3, 15, 16, 17, 100, 127, 128, 129, 1000, 1001])
def test_every_sample_once_for_any_block_and_window(num_samples: int) -> None:
    for block, window in itertools.product([1, 2, 3, 16, 100, 2000], [1, 2, 5, 16, 33, 128, 5000]):
        if window < block:
            continue
        plan = block_plan(BlockShuffle(block + window, block, window), num_samples)
        for epoch in (0, 1):
            numbers = whole(plan, epoch)
            assert times_seen(numbers, num_samples) == [1] * num_samples, (block, window, epoch)
            assert (in_pieces(plan, epoch, list(range(0, num_samples, 7))) == numbers).all()


@pytest.mark.parametrize(("num_samples", "block", "window"), [(1000, 16, 128), (1001, 16, 128), (999, 7, 30), (50, 8, 1000)])
def test_a_window_reads_its_own_blocks_only(num_samples: int, block: int, window: int) -> None:
    plan = block_plan(BlockShuffle(1, block, window), num_samples)
    for epoch in range(20):  # the short last block of the store comes in another place each time
        numbers = whole(plan, epoch)
        owners = np.array([plan.window_of(epoch, position) for position in range(num_samples)])
        assert (np.diff(owners) >= 0).all()
        assert set(owners.tolist()) == set(range(plan.num_windows))
        seen: list[int] = []
        for one in range(plan.num_windows):
            blocks = plan.origins(epoch, one).tolist()
            expected = {n for b in blocks for n in range(b * block, min((b + 1) * block, num_samples))}
            assert set(numbers[owners == one].tolist()) == expected
            assert len(blocks) >= min(window // block, plan.num_blocks)
            seen += blocks
        assert sorted(seen) == list(range(plan.num_blocks))


def test_blocks_meet_other_blocks_in_the_next_epoch() -> None:
    plan = block_plan(BlockShuffle(0, 4, 40), 4000)
    windows = [{frozenset(plan.origins(epoch, one).tolist()) for one in range(plan.num_windows)} for epoch in (0, 1)]
    assert not windows[0] & windows[1]


def test_a_window_that_holds_all_is_a_full_shuffle() -> None:
    plan = block_plan(BlockShuffle(3, 8, 10_000), 1000)
    assert plan.num_windows == 1
    numbers = whole(plan)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.15
    assert plan.describe() == "blocks of 8 samples, all in one window: a full shuffle, seed 3"


def same_block_pairs(batches: Array, block: int) -> float:
    """Ordered pairs of samples from one block in a batch, on average."""
    groups = np.sort(batches // block, axis=1)
    total = 0
    for row in groups:
        counts = np.unique(row, return_counts=True)[1]
        total += int((counts * (counts - 1)).sum())
    return total / len(batches)


SIZES = [100.0, 2_600.0, 50_000.0, 1_000_000.0]


def test_the_formula_is_what_is_counted() -> None:
    for block, window in [(64, 64 * 50), (16, 16 * 300)]:
        plan = block_plan(BlockShuffle(1, block, window), window * 40, 256)
        batches = whole(plan)[: window * 40 // 256 * 256].reshape(-1, 256)
        counted = 1 / (1 + same_block_pairs(batches, block) / 256)
        assert counted == pytest.approx(worth(256, block, window), rel=0.05)  # some batches reach into two windows


@pytest.mark.parametrize("batch_size", [1, 2, 32, 256, 4096, 100_000])
@pytest.mark.parametrize("sample_bytes", [0.0, 1.0, *SIZES, 1e9])
def test_the_chosen_window_is_bounded_and_worth_it(batch_size: int, sample_bytes: float) -> None:
    block, window = choose(batch_size, sample_bytes, block=None, window=None)
    assert worth(batch_size, block, window) >= WORTH
    assert window % block == 0
    blocks = window // block
    # Memory is bounded, unless a batch is too large for it already.
    assert window * sample_bytes <= WINDOW_BYTES or (block, window) == (1, batch_size)
    assert blocks == num_blocks_for(batch_size) or block == 1
    # A block is a good read where memory allows.
    assert (
        block * sample_bytes >= 256 * 2**10
        or (block + 1) * num_blocks_for(batch_size) * sample_bytes > WINDOW_BYTES
        or sample_bytes == 0
    )


def test_a_saved_state_brings_block_and_window() -> None:
    chosen = block_plan(BlockShuffle(5), 10**6, 256, 1000.0)
    for order in (BlockShuffle(0), BlockShuffle(0, block=chosen.shape["block"]), BlockShuffle(0, None, chosen.shape["window"])):
        adopted = block_plan(order.adopt(5, chosen.shape), 10**6, 64, 10.0)
        assert adopted.shape == chosen.shape
        assert (adopted.numbers(1, 0, 1000) == chosen.numbers(1, 0, 1000)).all()
