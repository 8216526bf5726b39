"""Steps made ahead: in order, no further ahead than allowed, and with an end in every case."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.threads import feed_threads, wait_until

from stoker._clock import Spans
from stoker.errors import FeedError
from stoker.feed.prefetch import Prefetcher

THREADS_AND_DEPTHS = [(0, 1), (1, 1), (1, 4), (3, 1), (3, 4), (4, 2)]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    gc.collect()
    assert wait_until(lambda: not feed_threads())


@pytest.mark.parametrize(("threads", "depth"), THREADS_AND_DEPTHS)
@pytest.mark.parametrize("num_steps", [0, 1, 2, 7, 50])
def test_steps_come_in_order(threads: int, depth: int, num_steps: int) -> None:
    prefetcher = Prefetcher(lambda step: step * 10, num_steps, threads=threads, prefetch=depth)
    assert list(prefetcher) == [step * 10 for step in range(num_steps)]
    assert next(prefetcher, "the end") == "the end"


def test_a_slow_step_limits_the_others() -> None:
    """Threads that are quicker do not overtake."""

    def make(step: int) -> int:
        time.sleep(0.02 if step % 3 == 0 else 0)
        return step

    assert list(Prefetcher(make, 12, threads=3, prefetch=4)) == list(range(12))


@pytest.mark.parametrize(("threads", "depth"), [(1, 1), (1, 4), (3, 4), (4, 2)])
def test_no_more_than_depth_steps_are_ahead(threads: int, depth: int) -> None:
    begun: list[int] = []
    prefetcher = Prefetcher(lambda step: begun.append(step), 20, threads=threads, prefetch=depth)
    assert wait_until(lambda: len(begun) == depth)
    next(prefetcher)
    assert wait_until(lambda: len(begun) == depth + 1)
    time.sleep(0.01)
    assert len(begun) == depth + 1


def test_without_threads_a_step_is_made_when_asked_for() -> None:
    begun: list[int] = []
    prefetcher = Prefetcher(lambda step: begun.append(step), 20, threads=0, prefetch=4)
    assert not begun
    next(prefetcher)
    assert begun == [0]
    assert not feed_threads()


@pytest.mark.parametrize(("threads", "depth"), THREADS_AND_DEPTHS)
@pytest.mark.parametrize("bad", range(6))
def test_an_error_takes_the_place_of_its_step(threads: int, depth: int, bad: int) -> None:
    error = OSError("no such thing")

    def make(step: int) -> int:
        if step == bad:
            raise error
        return step

    prefetcher = Prefetcher(make, 6, threads=threads, prefetch=depth)
    assert [next(prefetcher) for _ in range(bad)] == list(range(bad))
    with pytest.raises(OSError, match="no such thing") as caught:
        next(prefetcher)
    assert caught.value is error
    assert wait_until(lambda: not feed_threads())
    assert next(prefetcher, None) is None, "to go on would leave the step out"


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_errors_that_are_not_exceptions_pass_too(kind: type[BaseException], threads: int) -> None:
    def make(step: int) -> int:
        raise kind

    with pytest.raises(kind):
        next(Prefetcher(make, 6, threads=threads, prefetch=2))


@pytest.mark.parametrize("threads", [0, 2])
def test_stop_iteration_is_not_taken_for_the_end(threads: int) -> None:
    """It would end the loop of the caller, and the rest of the epoch would be lost in silence."""

    def make(step: int) -> int:
        if step < 3:
            return step
        error = StopIteration("exhausted")
        error.add_note("while making step 3")
        raise error

    prefetcher = Prefetcher(make, 6, threads=threads, prefetch=2)
    with pytest.raises(FeedError, match="making a batch raised StopIteration") as caught:
        list(prefetcher)
    assert caught.value.__notes__ == ["while making step 3"]
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize(("threads", "depth"), THREADS_AND_DEPTHS)
def test_closed_is_the_end(threads: int, depth: int) -> None:
    prefetcher = Prefetcher(lambda step: step, 100, threads=threads, prefetch=depth)
    next(prefetcher)
    prefetcher.close()
    assert not feed_threads()
    assert list(prefetcher) == []
    prefetcher.close()


def test_forgotten_is_closed() -> None:
    prefetcher = Prefetcher(lambda step: step, 100, threads=3, prefetch=4)
    next(prefetcher)
    assert len(feed_threads()) == 3
    del prefetcher
    assert wait_until(lambda: not feed_threads())


def test_forgotten_by_one_of_its_own_threads_is_closed() -> None:
    """The last reference may go in a thread, which cannot wait for itself."""
    box: list[Any] = []
    ready, gone = threading.Event(), threading.Event()

    def make(step: int) -> int:
        ready.wait(30)
        box.clear()
        gone.set()
        return step

    box.append(Prefetcher(make, 100, threads=1, prefetch=1))
    ready.set()
    assert gone.wait(30)
    assert wait_until(lambda: not feed_threads())


def test_close_does_not_wait_for_a_stuck_step() -> None:
    begun, release = threading.Semaphore(0), threading.Event()

    def make(step: int) -> int:
        begun.release()
        release.wait()
        return step

    prefetcher = Prefetcher(make, 10, threads=2, prefetch=2)
    try:
        assert all(begun.acquire(timeout=30) for _ in range(2))
        prefetcher.close()
        assert len(feed_threads()) == 2, "it gave them a second, and left them"
    finally:
        release.set()


def test_one_who_waits_is_reported_when_another_closes() -> None:
    release = threading.Event()
    results: list[Any] = []

    def make(step: int) -> int:
        release.wait()
        return step

    prefetcher = Prefetcher(make, 10, threads=1, prefetch=1)
    waiting = threading.Thread(target=lambda: results.append(next(prefetcher, "the end")))
    waiting.start()
    time.sleep(0.05)
    prefetcher.close()
    waiting.join(30)
    release.set()
    assert results == ["the end"]


def test_a_thread_between_steps_keeps_no_result() -> None:
    """A batch that a waiting thread still refers to would keep its slot busy."""

    class Result:
        alive = 0

        def __init__(self) -> None:
            Result.alive += 1

        def __del__(self) -> None:
            Result.alive -= 1

    prefetcher = Prefetcher(lambda step: Result(), 4, threads=2, prefetch=1)
    for _ in range(4):
        assert next(prefetcher) is not None
        assert wait_until(lambda: Result.alive <= 1)
    prefetcher.close()


@pytest.mark.parametrize("threads", [0, 2])
def test_waits_are_counted(threads: int) -> None:
    waits = Spans()
    assert len(list(Prefetcher(lambda step: step, 5, threads=threads, prefetch=2, waits=waits))) == 5
    assert waits.count == 5
    assert waits.seconds == pytest.approx(waits.recent_seconds().sum())
