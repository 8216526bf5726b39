"""What an order costs a disk: pages counted one by one, and the known amplifications."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from tests.sampling import twins
from tests.sampling.plans import whole

from stoker.sampling import shuffle_quality
from stoker.sampling.orders import BlockPlan, BlockShuffle, Order, Sequential, Shuffle
from stoker.sampling.shuffle_quality import PAGE, DiskReads, count_reads
from stoker.sampling.subset import merge_ranges
from stoker.sampling.views import Lengths, Samples, Segments, Sequences, Windows

BATCH = 16


def reads_of(order: Order, samples: Samples, step_bytes: Sequence[int], batch_size: int = BATCH) -> DiskReads:
    return count_reads(order.over(samples, batch_size=batch_size), samples, batch_size=batch_size, step_bytes=step_bytes)


def pages_of(samples: Samples, numbers: list[int], width: int) -> set[int]:
    """The pages of a column that hold some samples."""
    found = samples.locate(np.array(numbers, dtype=np.int64))
    return {
        page
        for start, count in zip(found.starts.tolist(), found.counts.tolist(), strict=True)
        for page in range(start * width // PAGE, -(-(start + count) * width // PAGE))
        if count
    }


def num_runs(pages: set[int]) -> int:
    return sum(page - 1 not in pages for page in pages)


def slow_reads(order: Order, samples: Samples, step_bytes: Sequence[int]) -> tuple[float, float, float]:
    """Bytes and reads a batch and amplification, page by page over the whole epoch."""
    plan = order.over(samples, batch_size=BATCH)
    numbers = whole(plan).tolist()
    cuts = list(range(0, len(numbers), BATCH))
    if isinstance(plan, BlockPlan):
        owners = [plan.window_of(0, position) for position in range(len(numbers))]
        cuts = [owners.index(window) for window in range(plan.num_windows)]
    units = [numbers[a:b] for a, b in zip(cuts, [*cuts[1:], len(numbers)], strict=True)]
    read = num_reads = 0
    for width in step_bytes:
        kept: set[int] = set()
        for unit in units:
            pages = pages_of(samples, unit, width)
            read += len(pages - kept) * PAGE
            num_reads += num_runs(pages)
            kept = set() if isinstance(plan, BlockPlan) else pages
    found = samples.locate(np.arange(samples.num_samples))
    steps = {s for a, n in zip(found.starts.tolist(), found.counts.tolist(), strict=True) for s in range(a, a + n)}
    per_batch = BATCH / len(numbers)
    return read * per_batch, num_reads * per_batch, read / (len(steps) * sum(step_bytes))


@pytest.fixture
def events(rng: np.random.Generator) -> Lengths:
    """Ragged, some of them empty."""
    return twins.ragged([*np.exp(rng.normal(4, 1, 700)).astype(int).tolist(), 0, 0, 5])


@pytest.mark.parametrize("order", [Sequential(), Shuffle(3), BlockShuffle(3, 8, 128), BlockShuffle(3, 7, 100)], ids=repr)
@pytest.mark.parametrize("step_bytes", [[4], [2, 8, 4, 1]], ids=repr)
@pytest.mark.parametrize("view", [Sequences(10**6), Segments(64), Windows(16, stride=5)], ids=repr)
def test_pages_counted_one_by_one_are_the_same(
    monkeypatch: pytest.MonkeyPatch, events: Lengths, order: Order, step_bytes: list[int], view: Sequences | Segments | Windows
) -> None:
    for name, number in {"MAX_WINDOWS": 10**6, "MAX_BATCHES": 10**6, "NUM_RUNS": 1}.items():
        monkeypatch.setattr(shuffle_quality, name, number)  # all that there are
    samples = view.over(events)
    found = reads_of(order, samples, step_bytes)
    num_bytes, num_reads, amplification = slow_reads(order, samples, step_bytes)
    assert found.batch_bytes == pytest.approx(num_bytes, rel=1e-9)
    assert found.reads_per_batch == pytest.approx(num_reads, rel=1e-9)
    assert found.amplification == pytest.approx(amplification, rel=0.02)
    assert found.bytes_per_read == pytest.approx(num_bytes / num_reads)


def test_some_of_many_batches_say_the_same_as_all() -> None:
    samples = Sequences(10**6).over(twins.uniform(650, 400_000))
    for order, batch_size, amplification, num_reads in [
        (Sequential(), 256, 1.0, 1.0),
        (Shuffle(), 256, 2.575, 256.0),  # 2,600 bytes touch 1.63 pages
        (BlockShuffle(0, 64, 16_384), 256, 1.025, 3.84),  # 4 blocks; one of 24 lies beside another of its window
    ]:
        found = reads_of(order, samples, [4], batch_size)
        assert found.amplification == pytest.approx(amplification, rel=0.01)
        assert found.reads_per_batch == pytest.approx(num_reads, rel=0.02)
        assert found.batch_bytes == pytest.approx(256 * 2600 * amplification, rel=0.02)
    assert found.unit == "window"
    assert found.unit_bytes == pytest.approx(16_384 * 2600 * 1.025, rel=0.05)


def test_default_blocks_read_little_more_than_they_use() -> None:
    for num_steps in (10, 650, 60_000):
        samples = Sequences(10**6).over(twins.uniform(num_steps, 10**8))
        plan = BlockShuffle().over(samples, batch_size=256, sample_bytes=num_steps * 4)
        assert count_reads(plan, samples, batch_size=256, step_bytes=[4]).amplification < 1.05


def test_windows_that_share_steps_are_read_again_by_a_shuffle() -> None:
    samples = Windows(48).over(twins.uniform(10**6, 4))
    assert reads_of(Sequential(), samples, [4]).amplification == pytest.approx(1, abs=0.01)
    assert reads_of(Shuffle(), samples, [4]).amplification > 1000  # a page for each step of four bytes
    assert reads_of(BlockShuffle(0, 65_536, 655_360), samples, [4]).amplification < 1.03


def test_steps_that_are_cut_off_are_not_used() -> None:
    samples = Sequences(2048).over(twins.uniform(8192, 1000))
    assert reads_of(Shuffle(), samples, [4]).amplification == pytest.approx(1)  # whole pages
    assert reads_of(BlockShuffle(0, 10, 100), samples, [4]).amplification == pytest.approx(3.7)  # from first to last step


def test_nothing_to_read() -> None:
    samples = Sequences(8).over(twins.uniform(0, 100))
    for order in (Sequential(), Shuffle(), BlockShuffle()):
        found = reads_of(order, samples, [4])
        assert (found.batch_bytes, found.reads_per_batch, found.amplification, found.bytes_per_read) == (0, 0, 1, 0)
    assert reads_of(Shuffle(), Sequences(8).over(twins.uniform(5, 100)), []).batch_bytes == 0
    assert reads_of(Shuffle(), Sequences(8).over(twins.uniform(5, 0)), [4]).batch_bytes == 0


def test_merge() -> None:
    starts, stops = merge_ranges(np.array([5, 0, 3, 7, 2]), np.array([6, 2, 5, 8, 4]))
    assert (starts.tolist(), stops.tolist()) == ([0, 7], [6, 8])
    assert [part.tolist() for part in merge_ranges(np.array([], dtype=np.int64), np.array([], dtype=np.int64))] == [[], []]
    assert [part.tolist() for part in merge_ranges(np.array([0, 1]), np.array([9, 2]))] == [[0], [9]]


def test_it_can_be_printed() -> None:
    found = json.loads(json.dumps(reads_of(Shuffle(), Sequences(8).over(twins.uniform(5, 100)), [4]).to_dict()))
    assert set(found) == {"unit", "unit_bytes", "batch_bytes", "reads_per_batch", "amplification", "bytes_per_read"}
