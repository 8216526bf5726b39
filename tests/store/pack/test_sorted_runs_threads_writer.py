"""The background writer: in order, bounded, and its errors reach whoever gives it work."""

from __future__ import annotations

import threading

import pytest

from stoker.store.pack.sorted_runs import BackgroundWriter


def test_an_error_reaches_the_next_call_and_ends_the_work() -> None:
    done: list[str] = []

    def fail() -> None:
        raise OSError("no space")

    def work() -> None:
        with BackgroundWriter(1000) as writer:
            writer.submit(fail)
            writer.submit(lambda: done.append("behind the error"))
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
