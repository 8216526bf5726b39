"""The ring of slots: a batch that somebody looks at never changes, and memory is used again as soon as nobody does."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from tests.harness.flat_feed import flat_feed

from stoker import Feed, Sequences, Shuffle, Store, Windows
from stoker.feed.gather import Ring, Slot
from stoker.testing import content_of, difference

SIZE = 1000


def lend(ring: Ring, num_bytes: int = SIZE) -> torch.Tensor:
    """A batch over a slot, as a feed makes it: the slot is given back, and the tensor alone keeps it."""
    slot = ring.take(num_bytes)
    tensor = torch.from_numpy(slot.buffer)[slot.lead : slot.lead + num_bytes]
    ring.give_back(slot)
    return tensor


KEEPERS: dict[str, Any] = {
    "the tensor": lambda tensor: tensor,
    "a slice": lambda tensor: tensor[3:7],
    "a single number": lambda tensor: tensor[5],
    "another shape": lambda tensor: tensor.view(10, 100).t(),
    "another type": lambda tensor: tensor[:960].view(torch.float32),
    "a detached one": lambda tensor: tensor[:960].view(torch.float32).requires_grad_().detach(),
    "one of a graph": lambda tensor: tensor[:960].view(torch.float32).requires_grad_()[3:].expand(2, -1),
    "a NumPy array": lambda tensor: tensor.numpy(),
    "a view of a NumPy array": lambda tensor: tensor.numpy()[::7][2:].view(np.int8),
    "a buffer": lambda tensor: memoryview(tensor.numpy()),
    "the storage": lambda tensor: tensor.untyped_storage(),
    "a DLPack capsule": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "a tensor of an array of it": lambda tensor: torch.from_numpy(tensor.numpy()),
}


@pytest.mark.promise("P10")
@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS.keys())
def test_whatever_inspects_a_batch_keeps_its_slot(keep: Any) -> None:
    ring = Ring(pinned=False, keep=4)
    batch = lend(ring)
    place = batch.data_ptr()
    kept = keep(batch)
    del batch
    assert lend(ring).data_ptr() != place
    del kept
    gc.collect()
    assert place in [one.data_ptr() for one in (lend(ring), lend(ring))] or ring.num_slots == 1


class Copy:
    """Stands for a copy to a GPU that is under way."""

    done = False

    def query(self) -> bool:
        return self.done


def test_a_slot_that_is_being_copied_to_a_gpu_is_not_used_again() -> None:
    ring = Ring(pinned=False, keep=4)
    slot = ring.take(SIZE)
    slot.copied = copy = Copy()
    ring.give_back(slot)
    assert ring.take(SIZE) is not slot
    copy.done = True
    assert ring.take(SIZE) is slot


def test_memory_of_many_kept_batches_is_given_back() -> None:
    ring = Ring(pinned=False, keep=3)
    kept = [lend(ring) for _ in range(50)]
    assert ring.num_slots == 50
    del kept
    lend(ring)
    assert ring.num_slots <= 3 + 1


def test_threads_never_share_a_slot() -> None:
    ring = Ring(pinned=False, keep=8)
    wrong = []

    def work(mark: int) -> None:
        for _ in range(300):
            slot = ring.take(SIZE)
            slot.buffer[:] = mark
            if not (slot.buffer == mark).all():
                wrong.append(mark)
            ring.give_back(slot)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert ring.num_slots <= 4


def some_store() -> Store:
    rng = np.random.default_rng(0)
    return Store.from_arrays(x=[rng.normal(size=size).astype(np.float32) for size in (50, 3, 20, 7, 33)], y=np.arange(5))


def changed_batches(feed: Feed) -> int:
    """How many batches of three epochs are no longer what they were when they came."""
    kept, contents = [], []
    for _ in range(3):
        for batch in feed:
            kept.append(batch)
            contents.append(content_of(batch))
    return sum(difference(content_of(batch), content) is not None for batch, content in zip(kept, contents, strict=True))


@pytest.mark.promise("P10")
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("view", [Windows(8, shift=1), Sequences(20), Sequences(20, layout="packed")], ids=str)
def test_batches_that_are_kept_never_change(view: Any, threads: int) -> None:
    assert changed_batches(flat_feed(some_store(), view, batch_size=3, order=Shuffle(), threads=threads)) == 0


@pytest.mark.promise("P10", control=True)
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("threads", [0, 2])
def test_a_ring_that_ignores_who_looks_would_be_seen(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr("stoker.feed.gather._is_free", lambda slot: True)
    assert changed_batches(flat_feed(some_store(), Windows(8), batch_size=3, order=Shuffle(), threads=threads)) > 0


@pytest.mark.promise("P10")
@pytest.mark.usefixtures("poisoned")
def test_an_encoder_may_hand_on_what_it_got() -> None:
    """Also a part of it, which then keeps the whole slot."""
    store = some_store()
    feed = flat_feed(
        store, Windows(8), batch_size=3, threads=2, transform=lambda batch: {"first": batch["x"][:, 0], "all": batch["x"]}
    )
    plain = [batch["x"].clone() for batch in Feed(store, Windows(8), batch_size=3)]
    kept = list(feed)
    for batch, expected in zip(kept, plain, strict=True):
        assert batch["all"].equal(expected)
        assert batch["first"].equal(expected[:, 0])


def count_slots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of slots there are, each time one has been taken, from now on."""
    counts: list[int] = []
    original = Ring.take

    def counting(self: Ring, num_bytes: int) -> Slot:
        slot = original(self, num_bytes)
        counts.append(self.num_slots)
        return slot

    monkeypatch.setattr(Ring, "take", counting)
    return counts


@pytest.mark.promise("P10")
@pytest.mark.parametrize(("threads", "depth", "most"), [(0, 1, 3), (1, 4, 9), (3, 4, 11)])
def test_a_plain_loop_needs_a_few_slots_however_long_it_is(
    threads: int, depth: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each batch made ahead, in the making, or in the hands of the caller (who holds two while he takes the next)."""
    counts = count_slots(monkeypatch)
    feed = flat_feed(some_store(), Windows(8), batch_size=2, threads=threads, prefetch=depth)
    for _ in range(20):
        for _ in feed:
            pass
    assert max(counts) <= most


def test_a_loop_over_batches_of_many_sizes_needs_a_few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    store = Store.from_arrays(x=[np.zeros(size, dtype=np.float32) for size in rng.integers(0, 400, 300)])
    counts = count_slots(monkeypatch)
    feed = Feed(store, Sequences(400, layout="packed"), batch_size=4, order=Shuffle())
    for _ in range(10):
        for _ in feed:
            pass
    assert max(counts) < 30


@pytest.mark.parametrize("threads", [0, 1])
def test_an_iterator_does_not_hold_the_batch_that_it_handed_out(threads: int) -> None:
    """Otherwise a batch more than the caller holds would stay in memory, for a GPU on the GPU."""
    feed = flat_feed(some_store(), Sequences(8), batch_size=2, threads=threads)
    batches = iter(feed)
    batch = next(batches)
    held = weakref.ref(batch["x"])
    del batch
    assert held() is None
    assert next(batches)["x"].shape[0] == 2
