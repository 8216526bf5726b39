"""The audit against bugs that real training runs had, each beside its corrected twin, which must not be accused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from stoker import audit
from stoker.audit.auditor import AuditReport

NUM_BARS, STEPS, BATCH = 1000, 12, 50
BARS = torch.randn(NUM_BARS + STEPS, 3, generator=torch.Generator().manual_seed(0))
RETURNS = torch.randn(NUM_BARS, generator=torch.Generator().manual_seed(1))
UP = (RETURNS > 0).float()

Batch = tuple[torch.Tensor, torch.Tensor]


class Windows(Dataset[Batch]):
    """Windows of bars and what came after them: the samples that there are."""

    def __init__(self, targets: torch.Tensor = RETURNS) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return NUM_BARS

    def __getitem__(self, i: int) -> Batch:
        return BARS[i : i + STEPS], self.targets[i]


def take(numbers: Any, targets: torch.Tensor = RETURNS) -> Batch:
    rows = torch.as_tensor(np.asarray(numbers), dtype=torch.int64)
    return torch.stack([BARS[i : i + STEPS] for i in rows.tolist()]), targets[rows]


def in_batches(order: Any, size: int = BATCH) -> Iterator[Batch]:
    return (take(order[i : i + size]) for i in range(0, len(order), size))


def faults(found: AuditReport) -> dict[str, int]:
    return {fault.kind: fault.count for fault in found.faults}


def text(found: AuditReport, kind: str) -> str:
    return next(audit.text for audit in found.checks if audit.kind == kind)


class SeqWindows(IterableDataset[Batch]):
    """As the trainer of price bars has it: whole batches, in order, in one buffer; every worker process runs all of it."""

    def __init__(self, *, shared_out: bool = False, own_memory: bool = True) -> None:
        self.shared_out = shared_out
        self.own_memory = own_memory

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker and self.shared_out else (0, 1)
        buffer = take(range(BATCH))
        for start in range(first * BATCH, NUM_BARS, step * BATCH):
            batch = take(range(start, start + BATCH))
            if self.own_memory:
                yield batch
            else:
                for target, values in zip(buffer, batch, strict=True):
                    target.copy_(values)
                yield buffer


@pytest.mark.parametrize("reference", [None, Windows()], ids=["alone", "reference"])
def test_every_worker_serves_everything(reference: Any) -> None:
    found = audit(DataLoader(SeqWindows(), batch_size=None, num_workers=2), reference=reference)
    assert faults(found) == {"seen twice": NUM_BARS}
    assert "1,000 of 2,000 rows of epoch 0 came again: every sample came 2 times" in text(found, "seen twice")
    assert "Each of 2 worker processes yields everything" in text(found, "seen twice")


def test_a_worker_that_writes_into_what_it_has_sent() -> None:
    found = audit(DataLoader(SeqWindows(own_memory=False), batch_size=None, num_workers=1), reference=Windows())
    assert "reused memory" in faults(found)


def raced(batches: Iterator[Batch], rng: np.random.Generator, share: float) -> Iterator[Batch]:
    """The buffer of x is written anew before a slow thread has copied it, that of y is not yet."""
    for (x, y), (late, _) in itertools.pairwise([*batches, take(range(BATCH))]):
        rows = torch.as_tensor(rng.random(len(x)) < share)
        yield torch.where(rows[:, None, None], late[: len(x)], x), y


@pytest.mark.parametrize("targets", [RETURNS, UP], ids=["values", "classes"])
def test_x_and_y_of_different_rows(targets: torch.Tensor, rng: np.random.Generator) -> None:
    order = rng.permutation(NUM_BARS)
    batches = [take(order[i : i + BATCH], targets) for i in range(0, NUM_BARS, BATCH)]
    found = audit(raced(iter(batches), rng, 0.15), reference=Windows(targets))
    assert set(faults(found)) == {"mixed rows", "seen twice", "never seen"}
    assert 0.03 * NUM_BARS < faults(found)["mixed rows"] < 0.25 * NUM_BARS
    assert " has '[0]' of sample " in text(found, "mixed rows")
    assert not faults(audit(raced(iter(batches), rng, 0.0), reference=Windows(targets)))


@pytest.mark.parametrize("shift", [1, -3])
def test_labels_that_are_shifted_against_their_windows(shift: int) -> None:
    shifted = torch.roll(RETURNS, -shift)
    found = audit(DataLoader(TensorDataset(take(range(NUM_BARS))[0], shifted), batch_size=BATCH, shuffle=True), reference=Windows())
    assert faults(found) == {"mixed rows": NUM_BARS}
    where = f"{abs(shift)} {'after' if shift > 0 else 'before'}"
    assert f"of them '[1]' is that of the sample {where}." in text(found, "mixed rows")


def test_sequential_order_sold_as_shuffled() -> None:
    loader = DataLoader(Windows(), batch_size=BATCH)
    found = audit(loader, shuffled=True, epochs=2)
    assert set(faults(found)) == {"order"}
    assert "100% of the samples are followed by the next one" in text(found, "order")
    assert not faults(audit(loader))
    assert not faults(audit(DataLoader(Windows(), batch_size=BATCH, shuffle=True), shuffled=True))


def spread(orders: list[Any]) -> float:
    """The obvious definition: the deviation inside batches over that of a uniform draw."""
    inside = np.sqrt(np.mean([np.var(order[i : i + BATCH], ddof=1) for order in orders for i in range(0, NUM_BARS, BATCH)]))
    return float(inside / np.std(np.arange(NUM_BARS), ddof=1))


def in_windows(rng: np.random.Generator, width: int) -> Any:
    """Permuted inside aligned blocks only, as some streaming loaders do it."""
    blocks = np.array_split(np.arange(NUM_BARS), NUM_BARS // width)
    return np.concatenate([rng.permutation(blocks[i]) for i in rng.permutation(len(blocks))])


def through_a_buffer(rng: np.random.Generator, size: int) -> Any:
    """A stream in order through a buffer from which samples are drawn."""
    held, order = list(range(size)), []
    for later in range(size, NUM_BARS):
        i = int(rng.integers(size))
        order.append(held[i])
        held[i] = later
    return np.array([*order, *rng.permutation(held)])


def whole_batches(rng: np.random.Generator, size: int) -> Any:
    """Batches are permuted, their samples are not."""
    return rng.permutation(NUM_BARS // size)[:, None].repeat(size, axis=1).ravel() * size + np.tile(
        np.arange(size), NUM_BARS // size
    )


def backwards(rng: np.random.Generator, size: int) -> Any:
    return np.arange(NUM_BARS)[::-1].copy()


def interleaved(rng: np.random.Generator, size: int) -> Any:
    """Two readers in turn, each in order."""
    return np.arange(NUM_BARS).reshape(2, -1).T.ravel()


@pytest.mark.parametrize(
    ("make", "size"),
    [(in_windows, 190), (in_windows, BATCH), (through_a_buffer, 200), (whole_batches, BATCH), (backwards, 0), (interleaved, 0)],
)
def test_a_shuffle_that_is_none(make: Callable[[np.random.Generator, int], Any], size: int, rng: np.random.Generator) -> None:
    orders = [make(rng, size), make(rng, size)]
    assert sorted(orders[0]) == list(range(NUM_BARS))
    epochs = iter(orders)
    found = audit(lambda: in_batches(next(epochs)), reference=Windows(), shuffled=True, epochs=2)
    assert "order" in faults(found)
    assert f"spread {spread(orders[:1]):.2f} times as far" in text(found, "order")


def test_true_shuffles_are_not_accused(rng: np.random.Generator) -> None:
    for size in (1, 7, BATCH, NUM_BARS):
        found = audit(lambda size=size: in_batches(rng.permutation(NUM_BARS), size), reference=Windows(), shuffled=True, epochs=2)
        assert not faults(found), (size, found)


def test_the_same_permutation_every_epoch(rng: np.random.Generator) -> None:
    order = rng.permutation(NUM_BARS)
    for reference in (Windows(), None):
        found = audit(lambda: in_batches(order), reference=reference, shuffled=True, epochs=2)
        assert set(faults(found)) == {"same order"}
        assert "Two epochs have the very same order" in text(found, "same order")
        fresh = audit(lambda: in_batches(rng.permutation(NUM_BARS)), reference=reference, shuffled=True, epochs=2)
        assert not faults(fresh)


def ring(depth: int, *, copied: bool = False) -> Iterator[Batch]:
    """Buffers that are used again after `depth` batches."""
    buffers = [take(range(BATCH)) for _ in range(depth)]
    for i, batch in enumerate(in_batches(range(NUM_BARS))):
        x, y = buffers[i % depth]
        x.copy_(batch[0])
        y.copy_(batch[1])
        yield (x.clone(), y.clone()) if copied else (x, y)


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8, 13])
def test_a_ring_that_is_used_again_too_early(depth: int) -> None:
    found = audit(ring(depth))
    assert set(faults(found)) == {"reused memory"}
    assert "batch 0 had its '[0]' changed" in text(found, "reused memory")
    if depth in (1, 2, 8):  # where it is looked at just then
        assert f"by the time {depth} further batch" in text(found, "reused memory")
        assert f"now holds that of batch {depth}." in text(found, "reused memory")
    assert not faults(audit(ring(depth, copied=True)))


@pytest.mark.parametrize("reference", [None, Windows()], ids=["alone", "reference"])
def test_a_last_batch_filled_up_with_repeats(reference: Any, rng: np.random.Generator) -> None:
    order = rng.permutation(NUM_BARS)
    filled = [*order, *order[: 64 - NUM_BARS % 64]]
    found = audit(in_batches(filled, 64), reference=reference)
    assert faults(found) == {"seen twice": 64 - NUM_BARS % 64}
    assert "All in the last batch (15)" in text(found, "seen twice")
    assert not faults(audit(in_batches(order, 64), reference=reference))


def test_a_tail_that_is_never_seen() -> None:
    """The last windows are lost where their number does not fill a batch, and nobody said so."""
    found = audit((take(range(i, i + 64)) for i in range(0, NUM_BARS - 63, 64)), reference=Windows())
    assert faults(found) == {"never seen": NUM_BARS % 64}
    assert text(found, "never seen").endswith("samples 960 to 999.")
