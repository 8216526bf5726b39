"""Ahead: steps made by background threads before they are asked for, and handed out in order.

Step k is made by thread k modulo their number; each thread has a queue in and a queue out, so the order needs no lock.
The threads know nothing of the one who waits for them: when that one is closed, forgotten or the interpreter ends, they end.
An error takes the place of its step and is raised there.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from stoker.clock import Spans, now_ns
from stoker.errors import FeedError

T = TypeVar("T")

END_NS = 1_000_000_000


class Ahead(Generic[T]):
    """`make(0)`, `make(1)`, … up to `num_steps`, `depth` of them at a time in `threads` threads; 0 threads make them when asked."""

    def __init__(self, make: Callable[[int], T], num_steps: int, *, threads: int, depth: int, waits: Spans | None = None) -> None:
        self._make = make
        self._waits = waits
        self._num_steps = num_steps
        self._next = 0
        self._process = os.getpid()
        self._stopped = threading.Event()
        self._inboxes: list[SimpleQueue[int | None]] = [SimpleQueue() for _ in range(threads)]
        self._outboxes: list[SimpleQueue[tuple[T | None, BaseException | None]]] = [SimpleQueue() for _ in range(threads)]
        workers = [
            threading.Thread(target=_work, args=(make, inbox, outbox, self._stopped), name=f"stoker-feed-{i}", daemon=True)
            for i, (inbox, outbox) in enumerate(zip(self._inboxes, self._outboxes, strict=True))
        ]
        for worker in workers:
            worker.start()
        # Also runs when the interpreter ends, before daemon threads are frozen in the middle of what they do.
        self._end = weakref.finalize(self, _end, self._inboxes, self._outboxes, workers, self._stopped, self._process)
        self._submitted = 0
        for _ in range(min(depth, num_steps) if threads else 0):
            self._submit()

    def __iter__(self) -> Iterator[T]:
        return self

    def refuse_fork(self) -> None:
        """Tell one who goes on in a fork that the threads stayed behind."""
        if self._inboxes and os.getpid() != self._process:
            raise FeedError(
                f"this feed was started in process {self._process}, and a fork made process {os.getpid()} without its threads. "
                f"Call iter(feed) in the process that uses it."
            )

    def __next__(self) -> T:
        self.refuse_fork()
        if self._next >= self._num_steps or not self._end.alive:
            self.close()
            raise StopIteration
        start = now_ns()
        if self._inboxes:
            result, error = self._outboxes[self._next % len(self._outboxes)].get()
        else:
            result, error = _try(self._make, self._next)
        self._next += 1  # only now: whoever is interrupted while waiting may ask again
        if self._waits is not None:
            self._waits.add(start, now_ns())
        if error is not None:
            self.close()  # a step that failed is the last one: to go on would leave it out
            raise error
        if self._inboxes and not self._end.alive:
            raise StopIteration  # closed by another thread, which may have come before the step
        if self._inboxes:
            self._submit()
        return result  # type: ignore[return-value]

    def _submit(self) -> None:
        if self._submitted < self._num_steps:
            self._inboxes[self._submitted % len(self._inboxes)].put(self._submitted)
            self._submitted += 1

    def close(self) -> None:
        """End the threads; waits for the step they are at, a second at most."""
        self._end()


def _try(make: Callable[[int], T], step: int) -> tuple[T | None, BaseException | None]:
    try:
        return make(step), None
    except StopIteration as error:
        return None, _unmistakable(error)
    except BaseException as error:  # whatever it is, the one who waits must get it
        return None, error


def _unmistakable(error: StopIteration) -> FeedError:
    """An error for what would be taken for the end of the epoch, with the rest of it lost and nobody told."""
    found = FeedError(f"making a batch raised {error!r}, which means the end of an iterator. Catch it where `next` is called.")
    found.__cause__ = error
    for note in getattr(error, "__notes__", []):
        found.add_note(note)
    return found


def _work(make: Callable[[int], Any], inbox: SimpleQueue[int | None], outbox: SimpleQueue[Any], stopped: threading.Event) -> None:
    while True:
        step = inbox.get()
        if step is None or stopped.is_set():
            return
        made = _try(make, step)
        outbox.put(made)
        if made[1] is not None:
            return
        del made  # a thread that waits for its next step would keep a slot busy


def _end(
    inboxes: list[SimpleQueue[int | None]],
    outboxes: list[SimpleQueue[Any]],
    workers: list[threading.Thread],
    stopped: threading.Event,
    process: int,
) -> None:
    if os.getpid() != process:
        return  # after a fork the threads are those of the parent
    stopped.set()
    for inbox in inboxes:
        inbox.put(None)
    for outbox in outboxes:
        outbox.put((None, None))  # for one who waits while another thread closes
    deadline = now_ns() + END_NS
    for worker in workers:
        if worker is not threading.current_thread():  # the last reference may go in one of them
            worker.join(max(0, deadline - now_ns()) / 1e9)
