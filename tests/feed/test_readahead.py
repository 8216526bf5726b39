"""Hints to the operating system: what will be read is asked for, all of it and little else, before it is read."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from tests.feed.stores import write_store

from stoker import BlockShuffle, Feed, Sequences, Shuffle, Store, Windows
from stoker.feed import readahead
from stoker.feed.readahead import PAGE, merge

Array = npt.NDArray[Any]
HEADER = 128


def covered(starts: Array, stops: Array, gap: int) -> list[tuple[int, int]]:
    """The twin: whole numbers that lie in a stretch, or between two that are close; then runs of them."""
    inside: set[int] = set()
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        inside |= set(range(2 * start, 2 * stop + 1 + 2 * gap))  # doubled, so that stretches that touch are one run
    edges = sorted(inside)
    runs: list[tuple[int, int]] = []
    for place in edges:
        if runs and runs[-1][1] == place - 1:
            runs[-1] = runs[-1][0], place
        else:
            runs.append((place, place))
    return [(first // 2, (last - 2 * gap) // 2) for first, last in runs]


STRETCHES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


@given(stretches=STRETCHES, gap=st.integers(0, 5))
def test_stretches_are_merged_like_their_twin(stretches: list[tuple[int, int]], gap: int) -> None:
    starts = np.array([start for start, _ in stretches], dtype=np.int64)
    stops = np.array([start + count for start, count in stretches], dtype=np.int64)
    merged = merge(starts, stops, gap=gap)
    assert list(zip(*(part.tolist() for part in merged), strict=True)) == covered(starts, stops, gap)


class Advice:
    """Stands between a column and its file, and writes down what is asked for."""

    def __init__(self, original: mmap.mmap, log: list[tuple[int, int]]) -> None:
        self._original = original
        self._log = log

    def __len__(self) -> int:
        return len(self._original)

    def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
        if option == mmap.MADV_WILLNEED:
            self._log.append((start, start + length))
        self._original.madvise(option, start, length)


Asked = dict[int, list[tuple[int, int]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What is asked of each column's file, by its length."""
    found: Asked = {}
    original = readahead.MappedColumn.__init__

    def listening(self: Any, column: Any) -> None:
        original(self, column)
        assert self.map is not None, "the file behind a column was not found"
        log = found[len(self.map)] = []
        self.map = Advice(self.map, log)

    monkeypatch.setattr(readahead.MappedColumn, "__init__", listening)
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
    return write_store(made, tmp_path / "s")


def needed_pages(store: Store, name: str, starts: Array, counts: Array) -> set[int]:
    """Pages of a column's file that these samples lie in."""
    size = store.column(name)[:1].nbytes
    pages: set[int] = set()
    for start, count in zip((starts * size + HEADER).tolist(), (counts * size).tolist(), strict=True):
        pages |= set(range(start // PAGE, -(-(start + count) // PAGE))) if count else set()
    return pages


def pages_of(stretches: list[tuple[int, int]]) -> set[int]:
    return {page for start, stop in stretches for page in range(start // PAGE, -(-stop // PAGE))}


@pytest.mark.parametrize(
    "view", [Windows(50, stride=20), Windows(700, stride=300), Sequences(100, keep="last"), Sequences(10**6)], ids=str
)
@pytest.mark.parametrize("order", [Shuffle(), BlockShuffle(block=7, window=28)], ids=["shuffle", "blocks"])
def test_what_a_batch_needs_was_asked_for_before(view: Any, order: Any, store: Store, asked: Asked) -> None:
    feed = Feed(store, view, batch_size=16, order=order, residency="stream", threads=0, numbers=True, last="short")
    names = {HEADER + store.column(name).nbytes: name for name in ("x", "w")}
    assert asked.keys() == names.keys(), "columns with a value a series are small, and are not asked for"
    pages: dict[int, set[int]] = {length: set() for length in names}
    for batch in feed:
        found = feed.samples.locate(batch["sample"].numpy())
        for length, name in names.items():
            pages[length] |= pages_of(asked[length])
            asked[length].clear()
            assert needed_pages(store, name, found.starts, found.counts) <= pages[length]


@pytest.mark.parametrize("view", [Windows(50, stride=20), Sequences(200)], ids=str)
def test_a_shuffle_asks_for_the_pages_of_its_batch_and_no_others(view: Any, store: Store, asked: Asked) -> None:
    options: dict[str, Any] = {"batch_size": 16, "residency": "stream", "threads": 0, "numbers": True, "last": "short"}
    feed = Feed(store, view, order=Shuffle(), columns=["x"], **options)
    (log,) = asked.values()
    for batch in feed:
        found = feed.samples.locate(batch["sample"].numpy())
        assert pages_of(log) == needed_pages(store, "x", found.starts, found.counts)
        assert len(log) == len({start for start, _ in log}), "stretches that touch are asked for once"
        log.clear()


def test_blocks_are_asked_for_a_window_ahead_and_once_each(store: Store, asked: Asked) -> None:
    order = BlockShuffle(block=10, window=100)
    feed = Feed(store, Windows(50, stride=20), batch_size=16, order=order, residency="stream", threads=0, columns=["x"])
    (log,) = asked.values()
    batches = iter(feed)
    next(batches)
    found = feed.samples.locate(feed.plan.numbers(0, 0, 200))  # two windows
    assert needed_pages(store, "x", found.starts, found.counts) <= pages_of(log)
    assert len(pages_of(log)) < len(store.column("x")) * 8 // PAGE
    assert len(list(batches)) == len(feed) - 1
    # The windows of two neighbouring blocks overlap, and a page on their border may be asked for by both.
    num_blocks = feed.num_samples // 10 + 1
    assert sum(stop - start for start, stop in log) <= store.column("x").nbytes + num_blocks * 3 * PAGE


def test_each_pass_asks_anew(store: Store, asked: Asked) -> None:
    feed = Feed(
        store, Windows(50, stride=20), batch_size=16, order=BlockShuffle(block=50, window=500), residency="stream", columns=["x"]
    )
    (log,) = asked.values()
    sizes = []
    for _ in range(3):
        for _ in feed:
            pass
        sizes.append(sum(stop - start for start, stop in log))
        log.clear()
    assert min(sizes) > 0.9 * store.column("x").nbytes


def test_an_empty_series_at_the_end_of_a_file_that_ends_with_a_page(tmp_path: Path) -> None:
    """Nothing can be asked for there, so nothing may be."""
    steps = (PAGE - HEADER) // 8
    store = write_store(Store.from_arrays(lengths=[steps, 0, 0], x=np.arange(float(steps))), tmp_path / "s")
    feed = Feed(store, Sequences(10**6), batch_size=1, residency="stream", threads=0)
    assert [batch["lengths"].tolist() for batch in feed] == [[steps], [0], [0]]


def test_a_store_in_memory_needs_no_hints() -> None:
    column = type("Column", (), {"values": np.zeros(10), "width": None})
    mapped = readahead.MappedColumn(column)  # type: ignore[arg-type]
    assert mapped.will_need(np.array([0]), np.array([5])) == 0
