"""Threads of a pack: `read_ahead` decodes chunks on a pool, `BackgroundWriter` hashes and writes in the background."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import NoReturn, Self, TypeVar

T = TypeVar("T")


def read_ahead(
    tasks: Iterable[Callable[[], T]], pool: ThreadPoolExecutor, *, depth: int, max_bytes: int | None = None
) -> Generator[T, None, None]:
    """Run tasks on the pool, at most `depth` ahead of the consumer, and yield their results in the order of the tasks.

    Getting the next task may itself be slow (Parquet decodes there), so that happens on the pool as well, one at a time. An error is
    raised in the position of the result it belongs to. Close the generator when it is left early, or tasks that wait for room block.

    Args:
        tasks: functions without arguments. One with an attribute `num_bytes` starts only while the tasks ahead of the consumer hold at
            most `max_bytes` together, or alone: not every thread may hold a long line.
        pool: the threads to run them on.
        depth: how many tasks run or wait ahead of the consumer.
        max_bytes: how much they may hold together.

    Example:
        >>> with ThreadPoolExecutor(2) as pool:
        ...     list(read_ahead([lambda: 1, lambda: 2], pool, depth=2))
        [1, 2]
    """
    iterator = iter(tasks)
    lock = threading.Lock()
    taken = 0
    held: dict[int, int] = {}  # bytes of the tasks that have started and are not yet consumed, by their number
    change = threading.Condition()
    ended = False

    def work() -> tuple[int, Callable[[], T]]:
        """The number of a task, and a function that returns its result, or raises its error or StopIteration."""
        nonlocal taken
        with lock:
            number, taken = taken, taken + 1
            try:
                task = next(iterator)
            except BaseException as error:  # StopIteration too: it ends the loop below in its turn
                return number, _raising(error)
            if max_bytes is not None:
                # Later tasks wait for earlier ones, which the consumer always reaches.
                num_bytes = getattr(task, "num_bytes", 0)
                with change:
                    change.wait_for(lambda: ended or not any(held.values()) or sum(held.values()) + num_bytes <= max_bytes)
                    held[number] = num_bytes
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


class BackgroundWriter:
    """Runs tasks in order on a thread of its own; at most `max_bytes` of their data wait at a time.

    Tasks run in the order given, so the sequence of disk operations is the same on every run. An error ends the thread and is raised
    to the caller at its next call.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tasks: deque[tuple[Callable[[], None], int]] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._closed = False
        self._error: BaseException | None = None
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="stoker-writer", daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], None], num_bytes: int = 0) -> None:
        """Queue a task that holds `num_bytes` of data; waits while too much is queued."""
        with self._change:
            self._change.wait_for(
                lambda: self._error is not None or not self._tasks or self._waiting_bytes + num_bytes <= self._max_bytes
            )
            self._raise()
            self._tasks.append((task, num_bytes))
            self._waiting_bytes += num_bytes
            self._change.notify_all()

    def drain(self) -> None:
        """Wait until all tasks are done."""
        with self._change:
            self._change.wait_for(lambda: self._error is not None or not (self._tasks or self._busy))
            self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._tasks or self._closed)
                if not self._tasks or self._error is not None:
                    return
                task, num_bytes = self._tasks.popleft()
                self._busy = True
            try:
                task()
            except BaseException as error:
                self._error = error
            del task  # its data must not outlive its turn in the queue
            with self._change:
                self._busy = False
                self._waiting_bytes -= num_bytes
                self._change.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the thread; after an error, what is still queued is dropped."""
        with self._change:
            if kind is not None:
                self._tasks.clear()
            self._closed = True
            self._change.notify_all()
        self._thread.join()
        self._error = None  # it keeps alive everything where it was raised, open files too
