"""Quality of a shuffle: block orders are worth what they promise; the oracle that says so gives what labels show, and a known table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.sampling.plans import plan_of, whole
from tests.sampling.shuffle_quality import effective_batch_size

from stoker.sampling.orders import WORTH, BlockShuffle, Order, Plan, Sequential, Shuffle

FILES, EVENTS, BATCH = 66, 1500, 256
SIZE = FILES * EVENTS


def effective(plan: Plan, *, group: int | None = None) -> float:
    return effective_batch_size(plan, BATCH, groups=[group] if group else None)


@pytest.mark.parametrize(
    ("order", "least", "most"),
    [
        (Sequential(), 0.9, 1.2),
        (BlockShuffle(0, 256, 16_384), 45, 66),
        (BlockShuffle(0, 64, 4096), 46, 58),
        (BlockShuffle(0, 64, 16_384), 118, 148),
        (BlockShuffle(0, 16, 16_384), 205, 228),
        (Shuffle(), 250, 256),
    ],
    ids=["sequential: 1", "256 of 16K: 48", "64 of 4K: 49", "64 of 16K: 125", "16 of 16K: 221", "full: 254"],
)
def test_the_table_of_66_files_comes_out(order: Order, least: float, most: float) -> None:
    plan = plan_of(order, SIZE, BATCH)
    by_file, worst = effective(plan, group=EVENTS), effective(plan)
    assert least <= by_file <= most  # labels of files, as in the table
    assert least <= worst <= min(most, by_file + 3)


@pytest.mark.parametrize("order", [Sequential(), Shuffle(), BlockShuffle(0, 16, 512), BlockShuffle(0, 10, 300)])
@pytest.mark.parametrize("size", [16, 48])
def test_counting_pairs_gives_the_variance_of_labels(order: Order, size: int) -> None:
    num_samples, batch_size = 3011, 32
    plan = plan_of(order, num_samples, batch_size)
    epochs = [whole(plan, epoch)[: num_samples // batch_size * batch_size] for epoch in range(40)]
    batches = np.stack(epochs).reshape(-1, batch_size)
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(100):
        labels = np.repeat(rng.normal(size=num_samples // size + 1), size)[:num_samples]
        labels -= labels.mean()
        uniform = labels.var() / batch_size * (num_samples - batch_size) / (num_samples - 1)
        ratios.append((labels[batches].mean(axis=1) ** 2).mean() / uniform)
    counted = batch_size / effective_batch_size(plan, batch_size, groups=[size], num_counted=2**17)
    assert counted == pytest.approx(float(np.mean(ratios)), rel=0.05)


QUICK = {(100.0, 1024), (2600.0, 256), (2600.0, 4096), (1e6, 32)}


@pytest.mark.parametrize(
    ("sample_bytes", "batch_size"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in itertools.product([100.0, 2600.0, 1e6], [32, 256, 1024, 4096])
    ],
)
def test_block_orders_reach_what_they_promise(batch_size: int, sample_bytes: float) -> None:
    plan = plan_of(BlockShuffle(), 132_000_000, batch_size, sample_bytes)
    assert effective_batch_size(plan, batch_size) / batch_size >= WORTH - 0.01


def test_worth_grows_with_the_window_and_falls_with_the_block() -> None:
    by_window = [effective(plan_of(BlockShuffle(0, 64, 64 * blocks), 10**6)) for blocks in (1, 16, 128, 1024)]
    by_block = [effective(plan_of(BlockShuffle(0, block, 8192), 10**6)) for block in (1, 8, 64, 512)]
    assert by_window == sorted(by_window)
    assert by_block == sorted(by_block, reverse=True)
