"""Block shuffle: every sample once, each window reads its own blocks only, and a batch is worth what was promised."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tests.sampling.plans import Array, in_pieces, series_of, times_seen, whole

from stoker.errors import OptionError
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


def test_windows_are_of_equal_size() -> None:
    plan = block_plan(BlockShuffle(0, 4, 40), 4 * 129)
    sizes = [end - first for first, end in map(plan.window_slots, range(plan.num_windows))]
    assert sum(sizes) == 129
    assert min(sizes) >= 10
    assert max(sizes) - min(sizes) <= 1


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


@pytest.mark.parametrize("batch_size", [32, 256, 1024, 4096])
@pytest.mark.parametrize("sample_bytes", SIZES)
def test_a_batch_is_worth_at_least_what_was_promised(batch_size: int, sample_bytes: float) -> None:
    # The worst labels: all samples of a block have the same, and no two blocks share one. Then the variance of a batch
    # mean is that of B independent samples times 1 + (pairs of one block) / B.
    num_samples = 10**10
    plan = block_plan(BlockShuffle(0), num_samples, batch_size, sample_bytes)
    assert plan.num_windows > 3
    starts = np.random.default_rng(batch_size).integers(0, num_samples // batch_size, max(4, 60_000 // batch_size)) * batch_size
    batches = np.stack([plan.numbers(0, start, start + batch_size) for start in starts.tolist()])
    ratio = 1 + same_block_pairs(batches, plan.block) / batch_size
    assert 1 / ratio >= WORTH - 0.01  # a count of pairs, a little noisy
    assert 1 / ratio <= WORTH + 0.05 or plan.block == 1  # a window that is larger than need be costs memory
    assert f"so that a batch of {batch_size:,} is worth {'100%' if plan.block == 1 else '8'}" in plan.describe()


def test_the_formula_is_what_is_counted() -> None:
    for block, window in [(64, 64 * 50), (16, 16 * 300)]:
        plan = block_plan(BlockShuffle(1, block, window), window * 40, 256)
        batches = whole(plan)[: window * 40 // 256 * 256].reshape(-1, 256)
        counted = 1 / (1 + same_block_pairs(batches, block) / 256)
        assert counted == pytest.approx(worth(256, block, window), rel=0.05)  # some batches reach into two windows


def test_a_window_too_small_is_seen() -> None:
    assert worth(256, 64, 64 * 50) < 0.2
    assert worth(256, 64, 64 * num_blocks_for(256)) >= WORTH
    assert worth(256, 64, 64 * int(num_blocks_for(256) * 0.95)) < WORTH


@pytest.mark.parametrize("batch_size", [1, 2, 32, 256, 4096, 100_000])
@pytest.mark.parametrize("sample_bytes", [0.0, 1.0, *SIZES, 1e9])
def test_what_is_chosen(batch_size: int, sample_bytes: float) -> None:
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


def test_what_is_given_is_kept() -> None:
    assert choose(256, 1000.0, block=10, window=None) == (10, 10 * num_blocks_for(256))
    assert choose(256, 1000.0, block=10, window=10_007) == (10, 10_007)
    assert choose(256, 1000.0, block=None, window=16_384) == (16_384 // num_blocks_for(256), 16_384)
    assert choose(256, 1000.0, block=None, window=5) == (1, 5)
    plan = block_plan(BlockShuffle(9, 16, 128), 1000)
    worth = "as given: a batch of 32 is worth 21% of itself"
    assert plan.describe() == f"blocks of 16 samples, mixed in 7 windows of about 128 ({worth}), seed 9"


def test_a_saved_state_brings_block_and_window() -> None:
    chosen = block_plan(BlockShuffle(5), 10**6, 256, 1000.0)
    for order in (BlockShuffle(0), BlockShuffle(0, block=chosen.shape["block"]), BlockShuffle(0, None, chosen.shape["window"])):
        adopted = block_plan(order.adopt(5, chosen.shape), 10**6, 64, 10.0)
        assert adopted.shape == chosen.shape
        assert (adopted.numbers(1, 0, 1000) == chosen.numbers(1, 0, 1000)).all()


@pytest.mark.parametrize(("block", "window"), [(None, None), (16, None), (None, 100), (16, 100), (16, 16), (7, 10_000)])
def test_every_order_adopts_its_own_state(block: int | None, window: int | None) -> None:
    order = BlockShuffle(5, block, window)
    plan = block_plan(order, 5000)
    again = block_plan(order.adopt(5, plan.shape), 5000)
    assert again.shape == plan.shape
    assert (whole(again) == whole(plan)).all()


@pytest.mark.parametrize(("name", "order"), [("block", BlockShuffle(0, 8)), ("window", BlockShuffle(0, None, 640))])
def test_a_state_of_another_block_or_window_is_refused(name: str, order: BlockShuffle) -> None:
    shape = {"block": 16, "window": 1024}
    with pytest.raises(OptionError) as caught:
        order.adopt(0, shape)
    given = getattr(order, name)
    assert str(caught.value) == (
        f"the state was saved with BlockShuffle({name}={shape[name]}), but this feed has {name}={given}: another order. "
        f"Give the same {name}, or none to take that of the state."
    )


@pytest.mark.parametrize("name", ["block", "window"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
def test_bad_options_are_refused(name: str, value: object) -> None:
    with pytest.raises(OptionError) as caught:
        BlockShuffle(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"BlockShuffle: {name} is {value!r}; expected a number of samples from 1."


def test_a_window_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^BlockShuffle: a window of 1,000 samples cannot hold a block of 1,001\.$"):
        BlockShuffle(0, 1001, 1000)


def test_numbers_of_numpy_become_plain() -> None:
    order = BlockShuffle(0, np.int64(16), np.int32(64))  # type: ignore[arg-type]
    assert [type(value) for value in block_plan(order, 100).shape.values()] == [int, int]


def test_the_cost_of_a_position_does_not_grow_with_the_store() -> None:
    plan = block_plan(BlockShuffle(0, 64, 64 * 100), 2**50)
    found = plan.numbers(3, 2**50 - 5, 2**50)
    assert len(found) == 5
    assert 0 <= found.min() <= found.max() < 2**50
    assert math.log2(found.max()) > 40
