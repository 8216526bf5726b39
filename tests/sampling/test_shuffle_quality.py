"""Quality of a shuffle: the counted variance ratio is the one that labels show, and the known table comes out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

import numpy as np
import pytest
from tests.sampling.plans import Array, plan_of, whole

from stoker.sampling import shuffle_quality
from stoker.sampling.orders import WORTH, BlockShuffle, Order, Plan, Sequential, Shuffle
from stoker.sampling.shuffle_quality import choose_runs, measure

FILES, EVENTS, BATCH = 66, 1500, 256
SIZE = FILES * EVENTS


class FixedPlan:
    """Orders that are written down, one an epoch."""

    shape: Mapping[str, int] = {}

    def __init__(self, epochs: list[Array]) -> None:
        self.num_positions = len(epochs[0])
        self._epochs = epochs

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        return self._epochs[epoch % len(self._epochs)][start:stop]

    def describe(self) -> str:
        return "written down"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at fewer batches."""
    monkeypatch.setattr(shuffle_quality, "NUM_COUNTED", 2**17)


def effective(plan: Plan, *, group: int | None = None) -> float:
    return measure(plan, batch_size=BATCH, groups=[group] if group else None).effective_batch_size


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


def test_a_small_last_window_costs_what_the_table_says() -> None:
    # The table was made with windows of exactly 16,384 samples and what is left over: 11 blocks, mixed among themselves.
    rng = np.random.default_rng(0)
    epochs = []
    for _ in range(20):
        blocks = np.array_split(np.arange(SIZE), np.arange(64, SIZE, 64))
        stored = np.concatenate([blocks[i] for i in rng.permutation(len(blocks))])
        epochs.append(np.concatenate([rng.permutation(part) for part in np.split(stored, range(16_384, SIZE, 16_384))]))
    assert effective(FixedPlan(epochs), group=EVENTS) == pytest.approx(125, rel=0.08)


def test_buffers_and_files_are_as_bad_as_the_table_says() -> None:
    rng = np.random.default_rng(1)
    by_file, buffered = [], []
    for _ in range(4):
        files = rng.permutation(FILES)
        by_file.append(np.concatenate([file * EVENTS + rng.permutation(EVENTS) for file in files]))
        stream = by_file[-1].tolist()
        buffer, out = stream[:1000], []
        for number, place in zip(stream[1000:], rng.integers(0, 1000, SIZE - 1000).tolist(), strict=True):
            out.append(buffer[place])
            buffer[place] = number
        buffered.append(np.array(out + rng.permutation(buffer).tolist()))
    assert effective(FixedPlan(by_file), group=EVENTS) == pytest.approx(1.05, abs=0.15)
    assert effective(FixedPlan(buffered), group=EVENTS) == pytest.approx(1.9, abs=0.2)


@pytest.mark.usefixtures("brief")
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
    counted = measure(plan, batch_size=batch_size, groups=[size]).variance_ratios[1]
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
    assert measure(plan, batch_size=batch_size).worth >= WORTH - 0.01


@pytest.mark.usefixtures("brief")
def test_worth_grows_with_the_window_and_falls_with_the_block() -> None:
    by_window = [effective(plan_of(BlockShuffle(0, 64, 64 * blocks), 10**6)) for blocks in (1, 16, 128, 1024)]
    by_block = [effective(plan_of(BlockShuffle(0, block, 8192), 10**6)) for block in (1, 8, 64, 512)]
    assert by_window == sorted(by_window)
    assert by_block == sorted(by_block, reverse=True)


def test_the_worst_group_is_the_block() -> None:
    assert measure(plan_of(BlockShuffle(0, 48, 4800), 10**6), batch_size=64).worst_group == 48
    assert measure(plan_of(Shuffle(), 10**6), batch_size=64).worst_group == 1


def test_noise_that_lasts_is_seen() -> None:
    found = measure(plan_of(BlockShuffle(0, 64, 16_384), SIZE), batch_size=BATCH)
    assert list(found.variance_ratios) == [1, 10, 50]
    assert found.variance_ratios[1] == pytest.approx(1.8, rel=0.1)
    assert found.variance_ratios[10] == pytest.approx(9, rel=0.2)
    assert found.variance_ratios[50] == pytest.approx(35, rel=0.2)
    full = measure(plan_of(Shuffle(), SIZE), batch_size=BATCH)
    assert all(ratio < 1.05 for ratio in full.variance_ratios.values())


def test_spread_inside_a_batch() -> None:
    assert measure(plan_of(Shuffle(), 10**6), batch_size=64).spread == pytest.approx(1, abs=0.02)
    assert measure(plan_of(Sequential(), 10**6), batch_size=64).spread < 0.001
    halves = FixedPlan([np.concatenate([np.random.default_rng(i).permutation(500) + part for part in (0, 500)]) for i in range(9)])
    assert measure(halves, batch_size=10).spread == pytest.approx(0.5, abs=0.02)


def test_what_is_inspected_is_bounded() -> None:
    asked = []

    class Watched(FixedPlan):
        num_positions = 2**45

        def __init__(self) -> None:
            self._inner = plan_of(Shuffle(), self.num_positions)

        def numbers(self, epoch: int, start: int, stop: int) -> Array:
            asked.append(stop - start)
            return self._inner.numbers(epoch, start, stop)

    assert measure(Watched(), batch_size=BATCH).worth == pytest.approx(1, abs=0.01)
    assert sum(asked) <= 3 * shuffle_quality.NUM_COUNTED + shuffle_quality.MIN_RUNS * 50 * BATCH


def test_runs_are_whole_and_begin_with_a_batch() -> None:
    rows = choose_runs(plan_of(Sequential(), 1000), 16, 160)
    assert rows.shape[1] == 160
    assert (rows[:, 0] % 16 == 0).all()
    assert (np.diff(rows, axis=1) == 1).all()
    assert set(rows[:, 0].tolist()) > {0, 160, 16}


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("num_samples", [0, 1, 2, 5, 31, 32, 33, 64, 100])
def test_few_samples_are_not_trouble(num_samples: int) -> None:
    found = measure(plan_of(Shuffle(), num_samples), batch_size=32)
    assert 0.9 <= found.worth <= 1
    assert found.num_samples == num_samples
    assert np.isfinite(found.spread)


@pytest.mark.usefixtures("brief")
def test_batches_of_one_and_of_half() -> None:
    assert measure(plan_of(Sequential(), 1000), batch_size=1).worth == 1
    assert measure(plan_of(Sequential(), 1000), batch_size=500).worth < 0.01


@pytest.mark.usefixtures("brief")
def test_it_is_the_same_each_time_and_can_be_printed() -> None:
    plan = plan_of(BlockShuffle(0, 16, 512), 5000)
    one, other = measure(plan, batch_size=32), measure(plan, batch_size=32)
    assert one == other
    found = json.loads(json.dumps(one.to_dict()))
    assert found["worth"] == one.worth
    assert found["variance_ratios"]["1"] == one.variance_ratios[1]
    assert set(found) == {
        "num_samples",
        "batch_size",
        "effective_batch_size",
        "worst_group",
        "variance_ratios",
        "spread",
        "num_counted",
        "worth",
    }
