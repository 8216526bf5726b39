"""Prefetch: batches made by background threads before they are asked for, and the iterator that hands them out.

    FeedIterator     what iter(feed) returns: takes batches from a Prefetcher and moves the position of the feed
    Prefetcher       runs make(0), make(1), … in threads, and gives the results in order
    Producer         how batches are made: HostProducer (host.py) or DeviceProducer (device.py)

The threads refer to the producer and the steps of a pass, never to the iterator: when the iterator is closed, forgotten, or the
interpreter ends, they end.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import torch

from stoker._clock import Spans, now_ns
from stoker.errors import FeedError
from stoker.feed.cursor import Cursor, Steps
from stoker.feed.layout import Tensors

T = TypeVar("T")

END_NS = 1_000_000_000


class Prefetcher(Generic[T]):
    """`make(0)`, `make(1)`, … up to `num_steps`, in order.

    `threads` threads make up to `prefetch` of them ahead; with 0 threads they are made when asked for. Step k is made by thread
    k modulo `threads`. Each thread has a queue in and a queue out, so the order needs no lock. An error takes the place of its
    step and is raised there. `on_close` is called before the threads are ended.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        num_steps: int,
        *,
        threads: int,
        prefetch: int,
        waits: Spans | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
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
        self._end = weakref.finalize(self, _end, self._inboxes, self._outboxes, workers, self._stopped, self._process, on_close)
        self._submitted = 0
        for _ in range(min(prefetch, num_steps) if threads else 0):
            self._submit()

    def __iter__(self) -> Iterator[T]:
        return self

    def refuse_fork(self) -> None:
        """Raise in a forked process, which has none of the threads."""
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
        self._next += 1  # only now: a caller that is interrupted while waiting may ask again
        if self._waits is not None:
            self._waits.add(start, now_ns())
        if error is not None:
            self.close()  # a failed step is the last one: continuing would leave it out
            raise error
        if self._inboxes and not self._end.alive:
            raise StopIteration  # closed by another thread, perhaps before the step was made
        if self._inboxes:
            self._submit()
        return result  # type: ignore[return-value]

    def _submit(self) -> None:
        if self._submitted < self._num_steps:
            self._inboxes[self._submitted % len(self._inboxes)].put(self._submitted)
            self._submitted += 1

    def close(self) -> None:
        """End the threads; waits for the step that each is making, one second at most."""
        self._end()


def _try(make: Callable[[int], T], step: int) -> tuple[T | None, BaseException | None]:
    try:
        return make(step), None
    except StopIteration as error:  # would be taken for the end of the epoch, and the rest of it lost without a word
        found = FeedError(f"making a batch raised {error!r}, which means the end of an iterator. Catch it where `next` is called.")
        found.__cause__ = error
        for note in getattr(error, "__notes__", []):
            found.add_note(note)
        return None, found
    except BaseException as error:  # whatever it is, the consumer must get it
        return None, error


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
    on_close: Callable[[], None] | None,
) -> None:
    if on_close is not None:
        on_close()
    if os.getpid() != process:
        return  # after a fork the threads are those of the parent
    stopped.set()
    for inbox in inboxes:
        inbox.put(None)
    for outbox in outboxes:
        outbox.put((None, None))  # for a consumer that waits while another thread closes
    deadline = now_ns() + END_NS
    for worker in workers:
        if worker is not threading.current_thread():  # the last reference may go in one of them
            worker.join(max(0, deadline - now_ns()) / 1e9)


class Producer(Protocol):
    """How the batches of a feed are made. Shared by all passes, so it holds nothing of a single one."""

    def start(self, steps: Steps, waits: Spans) -> Prefetcher[Any]:
        """Begin to make the batches of a pass; an item of the prefetcher stands for one batch or several."""

    def unpack(self, made: Any) -> Iterator[Any]:
        """The batches of an item, not yet received; an exception in place of the first one that failed."""

    def receive(self, entry: Any, in_flight: deque[torch.cuda.Event]) -> Tensors:
        """The batch, on the thread and the CUDA stream of the caller. `in_flight` has the events of the batches before."""


_NOTHING = object()


class FeedIterator(Iterator[Tensors]):
    """One pass over the rest of an epoch. Threads may share it: each batch goes to one of them.

    The batches that were handed out are the ones that count as seen: each moves the cursor of the feed.
    """

    def __init__(self, producer: Producer, steps: Steps, cursor: Cursor, waits: Spans) -> None:
        self._producer = producer
        self._waits = waits
        self._lock, self._process = threading.RLock(), os.getpid()
        self._is_closed = False
        self._begin(steps, cursor)

    def _begin(self, steps: Steps, cursor: Cursor) -> None:
        self._steps = steps
        self.cursor = cursor
        self._step = 0
        self._prefetcher = self._producer.start(steps, self._waits)
        self._entries: Iterator[Any] = iter(())
        self._in_flight: deque[torch.cuda.Event] = deque()
        if not len(steps):
            self._turn_over()

    def begin_elsewhere(self, steps: Steps, cursor: Cursor) -> None:
        """Be a pass over these steps instead; only before the first batch was handed out."""
        self._prefetcher.close()
        self._begin(steps, cursor)
        if self._is_closed:
            self._prefetcher.close()

    def __next__(self) -> Tensors:
        if os.getpid() != self._process:
            self._lock, self._process = threading.RLock(), os.getpid()  # a fork may have come while a thread held it
        with self._lock:
            batch = self._take()
            self.cursor.position = self._steps.end(self._step)
            self._step += 1
            if self._step == len(self._steps):
                self._turn_over()
        return batch

    def _take(self) -> Tensors:
        self._prefetcher.refuse_fork()
        entry = next(self._entries, _NOTHING)
        while entry is _NOTHING:
            self._entries = self._producer.unpack(next(self._prefetcher))
            entry = next(self._entries, _NOTHING)
        if isinstance(entry, Exception):
            self.close()
            raise entry
        return self._producer.receive(entry, self._in_flight)

    def __len__(self) -> int:
        return len(self._steps) - self._step

    def _turn_over(self) -> None:
        """With the last batch an epoch is done: a state saved now begins the next one."""
        self.cursor.epoch, self.cursor.position = self._steps.epoch + 1, 0

    def close(self) -> None:
        """End the threads and the pass. Takes no lock, so that it ends the wait of a thread that holds it."""
        self._is_closed = True
        self._entries = iter(())
        self._prefetcher.close()

    def __reduce__(self) -> NoReturn:
        raise FeedError(
            "a pass over a feed cannot be pickled or copied: its threads are those of this process. Make the feed in the "
            "other process and load feed.state_dict() there."
        )
