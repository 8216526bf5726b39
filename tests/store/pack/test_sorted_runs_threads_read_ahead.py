"""Reading ahead: in order, bounded, errors in their place."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.store.pack.sorted_runs import read_ahead


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
