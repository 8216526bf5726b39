"""Hints to the operating system: what will be read is asked for, all of it and little else, before it is read."""

from __future__ import annotations

import gc
import mmap
import os
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from tests.harness.flat_feed import flat_feed

from stoker import BlockShuffle, Feed, Sequences, Shuffle, Store, Windows
from stoker.errors import StoreDamagedError
from stoker.feed import read_ahead
from stoker.feed.read_ahead import PAGE
from stoker.sampling.subset import merge_ranges

Array = npt.NDArray[Any]
HEADER = 128


def covered(starts: Array, stops: Array) -> list[tuple[int, int]]:
    """The twin: integers that lie in a range; then runs of them."""
    inside: set[int] = set()
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        inside |= set(range(2 * start, 2 * stop + 1))  # doubled, so that ranges that touch are one run
    edges = sorted(inside)
    runs: list[tuple[int, int]] = []
    for place in edges:
        if runs and runs[-1][1] == place - 1:
            runs[-1] = runs[-1][0], place
        else:
            runs.append((place, place))
    return [(first // 2, last // 2) for first, last in runs]


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


@given(ranges=RANGES)
def test_ranges_are_merged_like_their_twin(ranges: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in ranges], dtype=np.int64)
    stops = np.array([start + count for start, count in ranges], dtype=np.int64)
    merged = merge_ranges(starts, stops)
    assert list(zip(*(part.tolist() for part in merged), strict=True)) == covered(starts, stops)


@dataclass
class Asked:
    """What was asked for: the ranges of memory of each call, and where the files lie."""

    calls: list[list[tuple[int, int]]]

    def pages(self, store: Store, name: str, calls: slice = slice(None)) -> set[int]:
        """Pages of a column's file that these calls asked for."""
        begin = store.column(name).ctypes.data - HEADER
        size = HEADER + store.column(name).nbytes
        inside = [(a - begin, b - begin) for call in self.calls[calls] for a, b in call if begin <= a < begin + size]
        assert all(start % PAGE == 0 and stop <= size for start, stop in inside)
        return {page for start, stop in inside for page in range(start // PAGE, -(-stop // PAGE))}

    def wait_for(self, number: int) -> None:
        """Until so many calls were made, by whatever thread."""
        while len(self.calls) < number:
            time.sleep(0.001)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked([])
    original = read_ahead.advise

    def listening(addresses: Array, sizes: Array, advice: int, stop: Array) -> None:
        assert advice == mmap.MADV_WILLNEED
        original(addresses, sizes, advice, stop)
        found.calls.append(list(zip(addresses.tolist(), (addresses + sizes).tolist(), strict=True)))

    monkeypatch.setattr(read_ahead, "advise", listening)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """About 60 pages of float64 and 90 of float32[3]."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 1200, 60)
    steps = int(lengths.sum())
    made = Store.from_arrays(
        lengths=lengths, x=np.arange(steps, dtype=float), w=np.ones((steps, 3), dtype=np.float32), s=np.arange(60)
    )
    return made.save(tmp_path / "s")


def needed_pages(store: Store, name: str, starts: Array, counts: Array) -> set[int]:
    """Pages of a column's file that these samples lie in."""
    size = store.column(name)[:1].nbytes
    pages: set[int] = set()
    for start, count in zip((starts * size + HEADER).tolist(), (counts * size).tolist(), strict=True):
        pages |= set(range(start // PAGE, -(-(start + count) // PAGE))) if count else set()
    return pages


@pytest.mark.parametrize(
    "view", [Windows(50, stride=20), Windows(700, stride=300), Sequences(100, keep="last"), Sequences(10**6)], ids=str
)
@pytest.mark.parametrize("order", [Shuffle(), BlockShuffle(block=7, window=28)], ids=["shuffle", "blocks"])
@pytest.mark.parametrize("threads", [0, 3])
def test_what_a_batch_needs_was_asked_for_before(view: Any, order: Any, threads: int, store: Store, asked: Asked) -> None:
    feed = flat_feed(
        store, view, batch_size=16, order=order, residency="stream", threads=threads, return_index=True, last_batch="short"
    )
    for batch in feed:
        found = feed.samples.locate(batch["sample"].numpy())
        for name in ("x", "w"):
            assert needed_pages(store, name, found.starts, found.counts) <= asked.pages(store, name)


@pytest.mark.parametrize("view", [Windows(50, stride=20), Sequences(200)], ids=str)
def test_a_shuffle_asks_for_the_pages_of_its_batches_and_no_others(
    view: Any, store: Store, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "UNIT_BYTES", 1)  # a batch at a time
    feed = flat_feed(
        store, view, order=Shuffle(), columns=["x"], batch_size=16, residency="stream", return_index=True, last_batch="short"
    )
    for number, batch in enumerate(feed):
        found = feed.samples.locate(batch["sample"].numpy())
        (call,) = asked.calls[number : number + 1]
        assert asked.pages(store, "x", slice(number, number + 1)) == needed_pages(store, "x", found.starts, found.counts)
        assert all(stop < start for (_, stop), (start, _) in pairwise(call)), "sorted, and ranges that touch are one"
    assert len(asked.calls) == len(feed)


def test_blocks_are_asked_for_a_window_ahead_and_once_each(store: Store, asked: Asked) -> None:
    order = BlockShuffle(block=10, window=100)
    feed = flat_feed(store, Windows(50, stride=20), batch_size=16, order=order, residency="stream", threads=0, columns=["x"])
    batches = iter(feed)
    next(batches)
    asked.wait_for(2)
    found = feed.samples.locate(feed.plan.numbers(0, 0, 200))  # two windows
    assert needed_pages(store, "x", found.starts, found.counts) <= asked.pages(store, "x")
    assert len(asked.pages(store, "x")) < len(store.column("x")) * 8 // PAGE
    assert len(list(batches)) == len(feed) - 1
    assert len(asked.calls) == feed.num_samples // 100
    # The windows of two neighbouring blocks overlap, and a page on their border may be asked for by both.
    num_blocks = feed.num_samples // 10 + 1
    total = sum(stop - start for call in asked.calls for start, stop in call)
    assert total <= store.column("x").nbytes + num_blocks * 3 * PAGE


def test_an_empty_series_at_the_end_of_a_file_that_ends_with_a_page(tmp_path: Path) -> None:
    """Nothing can be asked for there, so nothing may be."""
    steps = (PAGE - HEADER) // 8
    store = Store.from_arrays(lengths=[steps, 0, 0], x=np.arange(float(steps))).save(tmp_path / "s")
    feed = flat_feed(store, Sequences(10**6), batch_size=1, residency="stream", threads=0)
    assert [batch["lengths"].tolist() for batch in feed] == [[steps], [0], [0]]


def hint_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stoker-hints"]


def stream(store: Store, **options: Any) -> Feed:
    order = BlockShuffle(block=10, window=100)
    return flat_feed(store, Windows(50, stride=20), batch_size=16, order=order, residency="stream", columns=["x"], **options)


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "forgotten"])
def test_a_pass_that_ends_stops_asking(store: Store, monkeypatch: pytest.MonkeyPatch, closes: bool) -> None:
    """Threads that wait for hints are released, and the thread that asks for them ends."""
    begun = threading.Event()

    def endless(addresses: Array, sizes: Array, advice: int, stop: Array) -> None:
        begun.set()
        while not stop[0]:
            time.sleep(0.001)

    monkeypatch.setattr(read_ahead, "advise", endless)
    batches = iter(stream(store, threads=2))
    begun.wait()
    if closes:
        batches.close()
    del batches
    gc.collect()
    for thread in hint_threads():
        thread.join()


def test_a_damaged_series_is_reported_by_its_own_batch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hints of a window come long before, and are no place to stop."""

    def damaged(self: Any, unit: int) -> Any:
        raise StoreDamagedError("of the test")

    monkeypatch.setattr(read_ahead.WindowUnits, "ranges", damaged)
    feed = stream(store)
    assert len(list(feed)) == len(feed)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_asks_with_a_thread_of_its_own(store: Store) -> None:
    """A pass without threads goes on in a fork, where the one that asked is gone."""
    feed = stream(store, threads=0)
    batches = iter(feed)
    next(batches)
    child = os.fork()
    if not child:
        os._exit(0 if len(list(batches)) == len(feed) - 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(batches)) == len(feed) - 1
