"""Threads that share a pass get each batch once; what would give batches twice, or cannot travel, is refused in words."""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.harness.flat_feed import flat_feed
from torch.utils.data import DataLoader, IterableDataset

from stoker import Feed, Shuffle, Store, Windows
from stoker._clock import Spans
from stoker.errors import FeedError
from stoker.feed.prefetch import Cursor, FeedIterator, FeedRanks, Steps

NUM_THREADS = 8


def make_feed(**options: Any) -> Feed:
    store = Store.from_arrays(x=[np.arange(400.0) + 1000 * i for i in range(4)])
    return flat_feed(store, Windows(8), batch_size=5, order=Shuffle(1), return_index=True, last_batch="short", **options)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def take_together(act: Callable[[], None]) -> None:
    threads = [threading.Thread(target=act, daemon=True) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


@pytest.mark.promise("P9")
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("threads", "residency"), [(0, "host"), (2, "host"), (1, "device")])
def test_threads_that_share_a_pass_see_each_sample_once(threads: int, residency: str) -> None:
    feed = make_feed(threads=threads, residency=residency)
    batches = iter(feed)
    seen: list[int] = []

    def take() -> None:
        for batch in batches:
            seen.extend(batch["sample"].tolist())

    take_together(take)
    assert sorted(seen) == list(range(feed.num_samples))
    assert feed.epoch == 1
    assert len(batches) == 0


class Slow:
    """A producer that counts how many threads are in it at once; with `meets` they wait for each other there."""

    def __init__(self, *, meets: bool) -> None:
        self.inside = self.most = self.given = 0
        self._meeting = threading.Barrier(NUM_THREADS) if meets else None

    def start(self, steps: Steps, waits: Spans) -> Slow:
        return self

    def refuse_fork(self) -> None:
        pass

    def __next__(self) -> int:
        return 0

    def unpack(self, made: int) -> Iterator[int]:
        return iter([made])

    def receive(self, entry: int, in_flight: Any) -> dict[str, int]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self._meeting is not None:
            self._meeting.wait(120)
        given, self.given = self.given, self.given + 1
        self.inside -= 1
        return {"step": given}

    def close(self) -> None:
        pass


def batches_of(source: Slow) -> FeedIterator:
    plan: Any = type("Plan", (), {"num_positions": NUM_THREADS})()
    steps = Steps(plan=plan, epoch=0, start=0, batch_size=1, ranks=FeedRanks(rank=0, world_size=1), drops_last=False)
    return FeedIterator(source, steps, Cursor(), Spans())  # type: ignore[arg-type]


@pytest.mark.promise("P9", control=True)
@pytest.mark.usefixtures("hasty")
def test_one_thread_at_a_time_is_in_a_pass_and_without_the_lock_all_are() -> None:
    seen: list[Any] = []
    guarded = Slow(meets=False)
    batches = batches_of(guarded)
    take_together(lambda: seen.append(next(batches)))
    assert guarded.most == 1
    open_to_all = Slow(meets=True)
    unguarded = batches_of(open_to_all)
    unguarded._lock = contextlib.nullcontext()  # type: ignore[assignment]
    take_together(lambda: seen.append(next(unguarded)))
    assert open_to_all.most == NUM_THREADS, "negative control"


def test_a_pass_that_is_closed_ends_for_all_threads() -> None:
    begun = threading.Semaphore(0)
    wait = threading.Event()

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        begun.release()
        wait.wait(120)
        return batch

    feed = make_feed(threads=1, transform=encode)
    batches = iter(feed)
    taken: list[Any] = []
    waiting = [threading.Thread(target=lambda: taken.extend(batches), daemon=True) for _ in range(3)]
    for thread in waiting:
        thread.start()
    assert begun.acquire(timeout=280)
    closing = threading.Thread(target=feed.close, daemon=True)
    closing.start()
    for thread in waiting:
        thread.join(120)
    wait.set()
    closing.join(120)
    assert not any(thread.is_alive() for thread in (*waiting, closing))


# ---- workers of a DataLoader ----


class Stream(IterableDataset[Any]):
    """A feed behind the interface that people know."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def __iter__(self) -> Iterator[Any]:
        return iter(self.feed)


def samples_of(dataset: IterableDataset[Any], workers: int) -> list[int]:
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None)
    return sorted(number for batch in loader for number in batch["sample"].tolist())


@pytest.mark.promise("P9")
def test_workers_that_would_each_yield_every_batch_are_refused() -> None:
    words = r"by worker \d of 2 of a DataLoader, and each of them would yield every batch\. Give the loader feed\.as_dataset\(\)"
    with pytest.raises(FeedError, match=words):
        samples_of(Stream(make_feed(threads=0)), 2)


@pytest.mark.promise("P9", control=True)
def test_negative_control_without_the_guard_two_workers_yield_everything_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = make_feed(threads=0)
    monkeypatch.setattr("stoker.feed.feed.get_worker_info", lambda: None)
    assert samples_of(Stream(feed), 2) == sorted([*range(feed.num_samples)] * 2)


# ---- pickle ----


def test_a_dataset_and_a_state_travel_to_another_process() -> None:
    feed = make_feed(threads=0)
    assert len(pickle.loads(pickle.dumps(feed.as_dataset()))) == feed.num_samples
    batches = iter(feed)
    for _ in range(3):
        next(batches)
    again = make_feed(threads=0)
    again.load_state_dict(pickle.loads(pickle.dumps(feed.state_dict())))
    assert [batch["sample"].tolist() for batch in again] == [batch["sample"].tolist() for batch in batches]
