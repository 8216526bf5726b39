"""Reading ahead: chunks are decoded on threads while earlier ones are shaped and written, and arrive in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NoReturn, TypeVar

T = TypeVar("T")


def read_ahead(
    tasks: Iterable[Callable[[], T]], pool: ThreadPoolExecutor, *, depth: int, max_bytes: int | None = None
) -> Generator[T, None, None]:
    """Run tasks on the pool, at most `depth` ahead of the consumer, and yield their results in the order of the tasks.

    Tasks that say what they hold (`num_bytes`) are begun only while those ahead of the consumer hold at most `max_bytes` together,
    or alone: a file of long lines must not have one in memory for each thread. Close the generator when it is left early, or
    such tasks wait on.

    Getting the next task may itself be slow (Parquet decodes there), so that happens on the pool as well, one at a
    time. An error comes in the place of the result it belongs to.
    """
    iterator = iter(tasks)
    lock = threading.Lock()
    taken = 0
    held: dict[int, int] = {}  # bytes of the tasks that are begun and not yet consumed, by their number
    change = threading.Condition()
    ended = False

    def wait_for_room(number: int, num_bytes: int) -> None:
        """Later tasks wait for earlier ones, which the consumer always reaches."""
        with change:
            change.wait_for(lambda: ended or not any(held.values()) or sum(held.values()) + num_bytes <= (max_bytes or 0))
            held[number] = num_bytes

    def work() -> tuple[int, Callable[[], T]]:
        """The number of a task, and a function that gives its result, raises its error, or says that there is none."""
        nonlocal taken
        with lock:
            number, taken = taken, taken + 1
            try:
                task = next(iterator)
            except BaseException as error:  # StopIteration too: it ends the loop below in its place
                return number, _raising(error)
            if max_bytes is not None:
                wait_for_room(number, getattr(task, "num_bytes", 0))
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
            yield result
            del result
            with change:
                held.pop(wanted, None)
                change.notify_all()
            wanted += 1
    finally:
        with change:
            ended = True
            change.notify_all()
        for future in running:
            future.cancel()


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def raise_it() -> NoReturn:
        raise error

    return raise_it
