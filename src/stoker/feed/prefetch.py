"""Ahead: steps made by background threads before they are asked for, and handed out in order.

Step k is made by thread k modulo their number; each thread has a queue in and a queue out, so the order needs no lock.
The threads know nothing of the one who waits for them: when that one is closed, forgotten or the interpreter ends, they end.
An error takes the place of its step and is raised there.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch

from stoker._clock import Spans, now_ns
from stoker._types import Array
from stoker.errors import FeedError, OptionError
from stoker.feed.cursor import Batch, Cursor, Steps
from stoker.feed.device import DeviceGather, Placed, Table
from stoker.feed.host import Gathered, HostGather, Transform, as_tensors
from stoker.feed.layout import Finish
from stoker.feed.residency import Hints, ReadAhead
from stoker.sampling.views import Samples, Sequences

if TYPE_CHECKING:
    from stoker.feed.feed import Feed

T = TypeVar("T")

END_NS = 1_000_000_000


class Ahead(Generic[T]):
    """`make(0)`, `make(1)`, … up to `num_steps`, `prefetch` of them at a time in `threads` threads; 0 threads make them when asked."""

    def __init__(
        self, make: Callable[[int], T], num_steps: int, *, threads: int, prefetch: int, waits: Spans | None = None
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
        self._end = weakref.finalize(self, _end, self._inboxes, self._outboxes, workers, self._stopped, self._process)
        self._submitted = 0
        for _ in range(min(prefetch, num_steps) if threads else 0):
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


# Producers: how the batches of a pass come to be, for each residency.
#
# A pass is what `over` returns: it gives batches in order and ends its threads when closed. It does not refer to the feed, so
# that a forgotten pass ends its threads by itself.

Tensors = dict[str, torch.Tensor]

TOGETHER_BYTES = 8 * 2**20
MOST_TOGETHER = 16
"""Batches gathered as one: at most so many, and so many bytes."""
CHUNK_SAMPLES = 2**17
"""Samples whose places are sent to a device at once: some milliseconds of work for many steps."""


class HostProducer:
    """Batches gathered by the CPU; for a GPU also copied there, on a stream of their own."""

    def __init__(
        self,
        gather: HostGather,
        finish: Finish,
        device: torch.device,
        *,
        transform: Transform | None,
        rows: int | None,
        hints: ReadAhead | None,
    ) -> None:
        self._gather = gather
        self._finish = finish
        self._device = device
        self._transform = transform
        self._rows = rows
        self._hints = hints
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def over(self, steps: Steps, *, threads: int, prefetch: int, waits: Spans) -> HostPass:
        """A pass over these steps."""
        hints = self._hints.over(steps) if self._hints is not None else None
        return HostPass(self, steps, hints, threads=threads, prefetch=prefetch, waits=waits)

    def make(self, steps: Steps, step: int, hints: Hints | None) -> Any:
        """One batch, or (for a GPU) the copy that is under way and what it will be."""
        numbers = steps.numbers(step)
        try:
            if hints is not None:
                hints.before(step)
            gathered = self._gather.gather(numbers, len(numbers) if self._rows is None else self._rows)
            try:
                if self._transform is not None:
                    return self._encoded(gathered, len(numbers))
                if self._stream is not None:
                    return self._copy(gathered, len(numbers))
                return self._finish(gathered.tensors(), len(numbers))
            finally:
                self._gather.release(gathered)
        except Exception as error:
            error.add_note(self._place(steps, step, numbers))
            raise

    def make_several(self, steps: Steps, first: int, count: int) -> list[Batch]:
        """Batches of equal shape, gathered as one and then taken apart: what a gather costs in Python is paid once for all."""
        size = steps.batch_size
        numbers = steps.numbers(first, count)
        gathered = self._gather.gather(numbers, len(numbers))
        try:
            whole = self._finish(gathered.tensors(), len(numbers))
        finally:
            self._gather.release(gathered)
        parts = [tensor.split(size) for tensor in whole.values()]  # type: ignore[no-untyped-call]
        return [dict(zip(whole, rows, strict=True)) for rows in zip(*parts, strict=True)]

    def num_together(self, steps: Steps) -> int:
        """How many batches are gathered as one: small ones, that all have the same shape and need nothing further."""
        if self._stream is not None or self._transform is not None or self._hints is not None or self._gather.has_own_widths:
            return 1
        return max(1, min(MOST_TOGETHER, TOGETHER_BYTES // max(1, self._gather.row_bytes * steps.batch_size)))

    def receive(self, made: Any, under_way: deque[torch.cuda.Event]) -> Batch:
        """Take over a batch on the thread (and the stream) of the one who uses it, and note how far that stream is."""
        if self._stream is None:
            batch: Batch = made
            return batch
        tensors, event, num_valid = made
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors.values():
            tensor.record_stream(stream)
        under_way.append(stream.record_event())
        return tensors if num_valid is None else self._finish(tensors, num_valid)

    def _copy(self, gathered: Gathered, num_valid: int) -> tuple[Tensors, torch.cuda.Event, int]:
        slot = gathered.slot
        host = torch.from_numpy(slot.buffer)[slot.lead : slot.lead + gathered.layout.num_bytes]
        with torch.cuda.stream(self._stream):
            there = host.to(self._device, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        slot.copied = event
        return {name: part.tensor(there, 0) for name, part in gathered.layout.parts.items()}, event, num_valid

    def _encoded(self, gathered: Gathered, num_valid: int) -> Any:
        if self._transform is None:
            raise TypeError("there is no encoder")
        batch = self._finish(gathered.tensors(), num_valid)
        encoded = self._transform({name: tensor.numpy() for name, tensor in batch.items()})
        tensors = as_tensors(encoded)
        if "valid" in batch:
            tensors.setdefault("valid", batch["valid"])  # rows that hold no sample must stay known as such
        if self._stream is None:
            return tensors
        with torch.cuda.stream(self._stream):
            there = {name: tensor.pin_memory().to(self._device, non_blocking=True) for name, tensor in tensors.items()}
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return there, event, None

    def _place(self, steps: Steps, step: int, numbers: Array) -> str:
        """Where a batch was made from, for the one who must look into its error."""
        shown = ", ".join(f"{number:,}" for number in numbers[:4].tolist()) + (", …" if len(numbers) > 4 else "")
        origin = self._gather.origin(numbers)
        return f"while making batch {step:,} of this pass over epoch {steps.epoch:,}: samples {shown} of {origin}"


class HostPass:
    """The batches of a pass, made ahead by threads."""

    def __init__(
        self, producer: HostProducer, steps: Steps, hints: Hints | None, *, threads: int, prefetch: int, waits: Spans
    ) -> None:
        together = producer.num_together(steps)
        whole = steps.num_whole // together * together if together > 1 else 0  # steps that are gathered with others

        def make(number: int) -> list[Any]:
            first = number * together
            if first >= whole:
                return [producer.make(steps, whole + number - whole // together, hints)]
            try:
                return producer.make_several(steps, first, together)
            except Exception:  # again one by one: those before the one that fails are good
                return _until_error(lambda step: producer.make(steps, first + step, hints), together)

        self._receive = producer.receive
        self._ahead = Ahead(make, whole // together + len(steps) - whole, threads=threads, prefetch=prefetch, waits=waits)
        self._ready: deque[Any] = deque()
        self._prefetch = prefetch
        self._under_way: deque[torch.cuda.Event] = deque()
        # Made after the threads, as they may wait for hints: when the interpreter ends, the last that was made is called first.
        self._end_hints = weakref.finalize(self, hints.close) if hints is not None else lambda: None

    def __next__(self) -> Batch:
        self._ahead.refuse_fork()
        if not self._ready:
            self._ready.extend(next(self._ahead))
        try:
            made = self._ready.popleft()
        except IndexError:
            raise StopIteration from None  # closed by another thread, just now
        if isinstance(made, Exception):
            self.close()
            raise made
        batch = self._receive(made, self._under_way)
        # A host that is far ahead of its GPU would have a batch there for each step it is ahead.
        while len(self._under_way) > self._prefetch:
            self._under_way.popleft().synchronize()
        return batch

    def close(self) -> None:
        """End the threads, and the pass: what was made already is not handed out any more."""
        self._ready.clear()
        self._end_hints()
        self._ahead.close()


def _until_error(make: Callable[[int], Any], count: int) -> list[Any]:
    """What could be made of so many steps, and then the error."""
    made: list[Any] = []
    try:
        made.extend(make(step) for step in range(count))
    except Exception as error:
        made.append(error)
    return made


class DeviceProducer:
    """Batches gathered on the device; the host only says where samples lie, for many batches at a time."""

    def __init__(
        self, gather: DeviceGather, finish: Finish, samples: Samples, device: torch.device, *, pad_rows: bool, batch_size: int
    ) -> None:
        self.gather = gather
        self.finish = finish
        self.device = device
        self._samples = samples
        self._pad_rows = pad_rows
        self._batch_size = batch_size

    def over(self, steps: Steps, *, threads: int, prefetch: int, waits: Spans) -> DevicePass:
        """A pass over these steps."""
        return DevicePass(self, steps, threads=threads, waits=waits)

    def place(self, steps: Steps, step: int) -> Array:
        """Where the samples of a step lie."""
        numbers = steps.numbers(step)
        return Placed.of(self._samples, numbers, self._batch_size if self._pad_rows else len(numbers)).table

    def batch(self, table: torch.Tensor, host: Array) -> Batch:
        """The batch of a part of a table."""
        counts, valid = host[2], int(np.count_nonzero(host[3] >= 0))
        masked = self._samples.padded or valid < host.shape[1]
        return self.finish(self.gather.gather(Table(table), counts, masked=masked), valid)


class DevicePass:
    """The batches of a pass, from tables that hold the places of many."""

    def __init__(self, producer: DeviceProducer, steps: Steps, *, threads: int, waits: Spans) -> None:
        per_chunk = max(1, CHUNK_SAMPLES // steps.batch_size)
        pinned = producer.device.type == "cuda"

        def make(chunk: int) -> tuple[torch.Tensor, list[int]]:
            tables = [producer.place(steps, step) for step in range(chunk * per_chunk, min((chunk + 1) * per_chunk, len(steps)))]
            whole = torch.from_numpy(np.concatenate(tables, axis=1))
            return whole.pin_memory() if pinned else whole, [table.shape[1] for table in tables]

        self._producer = producer
        self._chunks = Ahead(make, -(-len(steps) // per_chunk), threads=threads, prefetch=2, waits=waits)
        self._parts: Iterator[tuple[torch.Tensor, Array]] = iter(())

    def __next__(self) -> Batch:
        self._chunks.refuse_fork()
        part = next(self._parts, None)
        while part is None:
            host, sizes = next(self._chunks)
            self._parts = self._split(host, sizes)
            part = next(self._parts, None)
        return self._producer.batch(*part)

    def _split(self, host: torch.Tensor, sizes: list[int]) -> Iterator[tuple[torch.Tensor, Array]]:
        table = host.to(self._producer.device, non_blocking=True)
        numbers = host.numpy()
        end = 0
        for size in sizes:
            start, end = end, end + size
            yield table[:, start:end], numbers[:, start:end]

    def close(self) -> None:
        """End the thread, and the pass: what was placed already is not gathered any more."""
        self._chunks.close()
        self._parts = iter(())


# Captured batches: the gather of a batch as a CUDA graph, or as a part of the user's own.
#
# The graph reads where samples lie from a table on the device, at a place that a counter on the device says, and moves the
# counter on. So a step needs nothing of the host but the replay; once in many steps the host fills the table anew.
# The tensors of a batch are the same ones at every step: what is to be kept must be copied.
#
#     captured = feed.captured()
#     for batch in captured: ...                       # replays a graph of the gather
#
#     with torch.cuda.graph(graph):                    # or one graph of the whole step
#         loss = train(captured.enqueue())
#     for _ in captured.passes(): graph.replay()

CAPTURED_STEPS = 256
"""Steps between two visits of the host."""
_WARM_UP = 3


class Captured:
    """Batches of a feed with device residency, in tensors that stay where they are."""

    def __init__(self, feed: Feed, producer: DeviceProducer) -> None:
        view = feed.view
        if isinstance(view, Sequences) and view.buckets != (view.max_length,):
            raise OptionError(
                f"{view} has batches of different shapes, which a graph cannot have. Give buckets=({view.max_length},)."
            )
        if feed.last_batch == "short":
            raise OptionError(
                "last_batch='short' makes a batch of another shape, which a graph cannot have. Use last_batch='pad' or 'drop'."
            )
        self._feed = feed
        self._producer = producer
        self._gather: DeviceGather = producer.gather
        self._finish: Finish = producer.finish.without_valid()
        self._rows = feed.batch_size
        self._masked = feed.samples.padded or feed.last_batch == "pad"
        device = feed.device
        self._table = torch.zeros(4, CAPTURED_STEPS * self._rows, dtype=torch.int64, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._longest = np.array([feed.samples.row], dtype=np.int64)
        self.graph: torch.cuda.CUDAGraph | None = None
        """Of the gather, once somebody has iterated."""
        self.batch: Batch = {}

    def enqueue(self) -> Batch:
        """Gather the next batch: device work only, so that a graph can capture it."""
        table = Table(self._table, rows=self._rows, place=self._place)
        batch = self._finish(self._gather.gather(table, self._longest, masked=self._masked), self._rows)
        if self._feed.last_batch == "pad" and not getattr(self._feed.view, "compat", None):
            batch["valid"] = table.numbers >= 0
        self._place.add_(self._rows)
        return batch

    def rewind(self) -> None:
        """Go back to the first step of the table that is on the device."""
        self._place.zero_()

    def passes(self) -> Iterator[int]:
        """The steps of a pass; each must be followed by one gather. The host's work lies between some of them."""
        steps, cursor = self._feed.begin_pass()
        chunks = Ahead(
            self._make_chunk(steps),
            -(-len(steps) // CAPTURED_STEPS),
            threads=self._feed.threads,
            prefetch=2,
            waits=self._feed.waits,
        )
        if not len(steps):
            self._advance(steps, cursor, -1)  # less than a batch was left of the epoch
        try:
            for step in range(len(steps)):
                if step % CAPTURED_STEPS == 0:
                    chunk = next(chunks)
                    self._table[:, : chunk.shape[1]].copy_(chunk, non_blocking=True)
                    self.rewind()
                self._advance(steps, cursor, step)  # before: what was handed out counts as seen
                yield step
        finally:
            chunks.close()

    def _make_chunk(self, steps: Steps) -> Any:
        producer, pinned = self._producer, self._feed.device.type == "cuda"

        def make(chunk: int) -> torch.Tensor:
            first = chunk * CAPTURED_STEPS
            tables = [producer.place(steps, step) for step in range(first, min(first + CAPTURED_STEPS, len(steps)))]
            whole = torch.from_numpy(np.concatenate(tables, axis=1))
            return whole.pin_memory() if pinned else whole

        return make

    @staticmethod
    def _advance(steps: Steps, cursor: Cursor, step: int) -> None:
        cursor.epoch, cursor.position = (steps.epoch + 1, 0) if step + 1 == len(steps) else (steps.epoch, steps.end(step))

    def __iter__(self) -> Iterator[Batch]:
        replay = self._capture()
        for _ in self.passes():
            replay()
            yield self.batch

    def _capture(self) -> Any:
        """A function that gathers the next batch into `batch`: the replay of a graph, or (without a GPU) the gather itself."""
        if self._feed.device.type != "cuda":
            return self._gather_in_place
        if self.graph is None:
            stream = torch.cuda.Stream(self._feed.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self._feed.device))
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    self.enqueue()
                    self.rewind()
            torch.cuda.current_stream(self._feed.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.batch = self.enqueue()
            self.graph = graph
        return self.graph.replay

    def _gather_in_place(self) -> None:
        fresh = self.enqueue()
        if not self.batch:
            self.batch = {name: tensor.clone() for name, tensor in fresh.items()}
        for name, tensor in fresh.items():
            self.batch[name].copy_(tensor)
