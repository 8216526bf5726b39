"""Sorted runs, the sorter that makes them, and the threads that write and read ahead."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.store.pack.runs import Segment, block, layout, read

from stoker.store import read_ahead
from stoker.store.pack.sorted_runs import BackgroundWriter, RunLayout, RunMark, SortedRun, Sorter


@pytest.fixture
def writer() -> Iterator[BackgroundWriter]:
    with BackgroundWriter(1 << 20) as writer:
        yield writer


def run_of(
    folder: Path, writer: BackgroundWriter, parts: list[list[Segment]], shape: RunLayout | None = None, kind: str = "int64"
) -> SortedRun:
    run = SortedRun.create(folder, 0, shape or layout(kind, time_index=0), writer)
    for part in parts:
        run.add(block(part, kind))
    run.finish()
    return run


def test_a_series_that_began_without_rows_has_no_time_before_it(tmp_path: Path, writer: BackgroundWriter) -> None:
    """The last row there is belongs to another series."""
    filled = layout(time_index=0, fill=frozenset({1}))
    run = run_of(tmp_path, writer, [[(0, [(9, 5.0)])], [(1, [])], [(1, [(2, math.nan), (3, 1.0)])]], filled)
    (_, first), (_, second) = read(run)
    assert first == [(9, 5.0)]
    assert math.isnan(second[0][1])
    assert second[1] == (3, 1.0)


# Taking up a run of an earlier process


def marked(folder: Path, writer: BackgroundWriter, parts: list[list[Segment]], shape: RunLayout, kind: str) -> RunMark:
    run = SortedRun.create(folder, 3, shape, writer)
    for part in parts:
        run.add(block(part, kind, series=True))
    mark = run.mark()
    writer.drain()
    made = mark()
    run.add(block([("zz" if kind == "text" else 99, [(1, 1.0)])], kind, series=True))  # what the journal does not know of
    writer.drain()
    run.close()
    return made


@pytest.mark.parametrize("name", ["run3.k", "run3.ko", "run3.n", "run3.c0", "run3.c1", "run3.s0", "run3.s1", "run3.s1o"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "link"])
def test_a_run_that_is_not_as_it_was_is_not_taken_up(tmp_path: Path, writer: BackgroundWriter, name: str, damage: str) -> None:
    shape = layout("text", series=True, time_index=0)
    mark = marked(tmp_path, writer, [[("a", [(1, 0.5)]), ("b", [(1, 0.5)])]], shape, "text")
    path = tmp_path / name
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[128] ^= 1  # the first byte behind the header
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:129])
    else:
        path.unlink()
        if damage == "link":
            (tmp_path / "elsewhere").write_bytes(data)
            path.symlink_to(tmp_path / "elsewhere")
    assert SortedRun.reopen(tmp_path, mark, shape, writer) is None


@pytest.mark.parametrize(
    ("blocks", "runs"),
    [
        ([[(1, [(0, 0.0)])], [(1, [(0, 0.0)])], [(2, [(0, 0.0)]), (3, [(0, 0.0)])], [(5, [(0, 0.0)])]], 1),
        ([[(1, [(5, 0.0)])], [(1, [(6, 1.0)])]], 1),
        ([[(1, [(6, 0.0)])], [(1, [(5, 1.0)])]], 2),
        ([[(0, [(1, 0.0)])], [(0, []), (0, [(0, 0.0)])]], 2),
        ([[(0, [(1, 0.0)])], [], [(1, [(1, 0.0)])]], 1),
    ],
    ids=["keys in order", "a time that continues", "a time that goes back", "a series that begins with no rows", "nothing"],
)
def test_blocks_in_order_make_one_run(tmp_path: Path, writer: BackgroundWriter, blocks: list[list[Segment]], runs: int) -> None:
    sorter = Sorter(tmp_path, layout(time_index=0, strict_time=False), writer, sort_time=True, run_bytes=1)
    for part in blocks:
        sorter.add(block(part))
    assert len(sorter.finish()) == runs


# The background writer: in order, bounded, and its errors reach whoever gives it work


def test_an_error_reaches_the_next_call_and_ends_the_work() -> None:
    done: list[str] = []
    is_queued = threading.Event()

    def fail() -> None:
        is_queued.wait(10)
        raise OSError("no space")

    def work() -> None:
        with BackgroundWriter(1000) as writer:
            writer.submit(fail)
            writer.submit(lambda: done.append("behind the error"))
            is_queued.set()
            writer.drain()

    with pytest.raises(OSError, match="no space"):
        work()
    assert done == []


def test_after_an_error_outside_what_is_queued_is_dropped() -> None:
    hold = threading.Event()
    done: list[str] = []

    def wait() -> None:
        hold.wait(10)

    def work() -> None:
        with BackgroundWriter(1000) as writer:
            writer.submit(wait)
            writer.submit(lambda: done.append("dropped"))
            threading.Timer(0.05, hold.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == []


def test_waiting_data_is_bounded() -> None:
    """One more may be on its way than the limit holds, however many come."""
    alive = most = 0
    lock = threading.Lock()

    def task() -> None:
        nonlocal alive
        with lock:
            alive -= 10

    with BackgroundWriter(50) as writer:
        for _ in range(300):
            with lock:
                alive += 10
            writer.submit(task, 10)
            with lock:
                most = max(most, alive)
    assert most <= 70


# Reading ahead: in order, bounded, errors in their place


@pytest.fixture(params=[1, 2, 4])
def pool(request: pytest.FixtureRequest) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(request.param) as pool:
        yield pool


def number(i: int) -> int:
    time.sleep(random.random() / 500)
    return i


def numbers(count: int, fail_at: int = -1) -> Iterator[Callable[[], int]]:
    for i in range(count):
        if i == fail_at:
            raise ValueError(f"while getting task {i}")
        yield lambda i=i: number(i)  # type: ignore[misc]


@pytest.mark.parametrize("depth", [1, 2, 5, 100])
@pytest.mark.parametrize("count", [0, 1, 60])
def test_results_come_in_order(pool: ThreadPoolExecutor, depth: int, count: int) -> None:
    assert list(read_ahead(numbers(count), pool, depth=depth)) == list(range(count))


@pytest.mark.parametrize("at", [0, 1, 13])
def test_an_error_comes_in_its_place(pool: ThreadPoolExecutor, at: int) -> None:
    def tasks() -> Iterator[Callable[[], int]]:
        for i in range(20):
            yield (lambda: 1 // 0) if i == at else (lambda i=i: number(i))  # type: ignore[misc]

    got: list[int] = []
    with pytest.raises(ZeroDivisionError):
        got.extend(read_ahead(tasks(), pool, depth=4))
    assert got == list(range(at))


def test_no_more_is_read_than_asked_for(pool: ThreadPoolExecutor) -> None:
    begun = 0
    lock = threading.Lock()

    def task() -> None:
        nonlocal begun
        with lock:
            begun += 1

    results = read_ahead((task for _ in range(100)), pool, depth=3)
    for i in range(50):
        next(results)
        assert begun <= i + 3
    results.close()  # type: ignore[attr-defined]
    assert begun < 60
