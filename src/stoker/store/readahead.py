"""Reading ahead: chunks are decoded on threads while earlier ones are shaped and written, and arrive in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_END = object()


def read_ahead(tasks: Iterable[Callable[[], T]], pool: ThreadPoolExecutor, *, depth: int) -> Iterator[T]:
    """Run tasks on the pool, at most `depth` ahead of the consumer, and yield their results in the order of the tasks.

    Getting the next task may itself be slow (Parquet decodes there), so that happens on the pool as well.
    """
    iterator = iter(tasks)
    queue: deque[Future[T]] = deque()

    def next_task() -> Callable[[], T] | object:
        return next(iterator, _END)

    coming = pool.submit(next_task)
    try:
        more = True
        while more or queue:
            while more and len(queue) < depth and (coming.done() or not queue):
                task = coming.result()
                if task is _END:
                    more = False
                else:
                    queue.append(pool.submit(task))  # type: ignore[arg-type]
                    coming = pool.submit(next_task)
            if queue:
                yield queue.popleft().result()
    finally:
        coming.cancel()
        for future in queue:
            future.cancel()
