"""Reading ahead: chunks are decoded on threads while earlier ones are shaped and written, and arrive in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NoReturn, TypeVar

T = TypeVar("T")


def read_ahead(tasks: Iterable[Callable[[], T]], pool: ThreadPoolExecutor, *, depth: int) -> Iterator[T]:
    """Run tasks on the pool, at most `depth` ahead of the consumer, and yield their results in the order of the tasks.

    Getting the next task may itself be slow (Parquet decodes there), so that happens on the pool as well, one at a
    time. An error comes in the place of the result it belongs to.
    """
    iterator = iter(tasks)
    lock = threading.Lock()
    taken = 0

    def work() -> tuple[int, Callable[[], T]]:
        """The number of a task, and a function that gives its result, raises its error, or says that there is none."""
        nonlocal taken
        with lock:
            number, taken = taken, taken + 1
            try:
                task = next(iterator)
            except BaseException as error:  # StopIteration too: it ends the loop below in its place
                return number, _raising(error)
        try:
            result = task()
        except BaseException as error:
            return number, _raising(error)
        return number, lambda: result

    running: set[Future[tuple[int, Callable[[], T]]]] = set()
    arrived: dict[int, Callable[[], T]] = {}
    wanted = 0
    try:
        while True:
            while len(running) + len(arrived) < depth:
                running.add(pool.submit(work))
            while wanted not in arrived:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                arrived.update(future.result() for future in done)
            try:
                result = arrived.pop(wanted)()
            except StopIteration:
                return
            wanted += 1
            yield result
    finally:
        for future in running:
            future.cancel()


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def raise_it() -> NoReturn:
        raise error

    return raise_it
