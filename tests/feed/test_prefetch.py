"""Steps made ahead: in order, no further ahead than allowed, and with an end in every case."""

from __future__ import annotations

import threading
import time

import pytest
from tests.harness.threads import feed_threads, wait_until

from stoker.feed.prefetch import Prefetcher

pytestmark = pytest.mark.usefixtures("no_thread_left")
THREADS_AND_DEPTHS = [(0, 1), (1, 1), (1, 4), (3, 1), (3, 4), (4, 2)]


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


def test_forgotten_is_closed() -> None:
    prefetcher = Prefetcher(lambda step: step, 100, threads=3, prefetch=4)
    next(prefetcher)
    assert len(feed_threads()) == 3
    del prefetcher
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
