"""The background writer: one thread that hashes and writes while the next rows are being decoded.

Work is done in the order it was given, so the sequence of disk operations is the same on every run. An error ends
the thread's work and is raised to the caller at its next call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Writer:
    """Runs tasks in order on a thread of its own; at most `max_bytes` of their data wait at a time."""

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
            del task  # its data must not outlive its place in the queue
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
        self._error = None  # it holds all that was alive where it was raised, open files too
