"""Producers: how the batches of a pass come to be, for each residency.

A pass is what `over` returns: it gives batches in order and ends its threads when closed. It does not refer to the feed, so
that a forgotten pass ends its threads by itself.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.clock import Spans
from stoker.feed.ahead import Ahead
from stoker.feed.batches import Batch, Steps
from stoker.feed.device import DeviceGather, Placed, Table
from stoker.feed.host import Encode, Gathered, HostGather, as_tensors
from stoker.feed.layout import Finish
from stoker.feed.readahead import Hints, ReadAhead
from stoker.order.samples import Samples

Array = npt.NDArray[Any]
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
        encode: Encode | None,
        rows: int | None,
        hints: ReadAhead | None,
    ) -> None:
        self._gather = gather
        self._finish = finish
        self._device = device
        self._encode = encode
        self._rows = rows
        self._hints = hints
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def over(self, steps: Steps, *, threads: int, depth: int, waits: Spans) -> HostPass:
        """A pass over these steps."""
        hints = self._hints.over(steps) if self._hints is not None else None
        return HostPass(self, steps, hints, threads=threads, depth=depth, waits=waits)

    def make(self, steps: Steps, step: int, hints: Hints | None) -> Any:
        """One batch, or (for a GPU) the copy that is under way and what it will be."""
        numbers = steps.numbers(step)
        try:
            if hints is not None:
                hints.before(step)
            gathered = self._gather.gather(numbers, len(numbers) if self._rows is None else self._rows)
            try:
                if self._encode is not None:
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
        if self._stream is not None or self._encode is not None or self._hints is not None or self._gather.has_own_widths:
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
        if self._encode is None:
            raise TypeError("there is no encoder")
        batch = self._finish(gathered.tensors(), num_valid)
        encoded = self._encode({name: tensor.numpy() for name, tensor in batch.items()})
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
        self, producer: HostProducer, steps: Steps, hints: Hints | None, *, threads: int, depth: int, waits: Spans
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
        self._ahead = Ahead(make, whole // together + len(steps) - whole, threads=threads, depth=depth, waits=waits)
        self._ready: deque[Any] = deque()
        self._depth = depth
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
        while len(self._under_way) > self._depth:
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

    def over(self, steps: Steps, *, threads: int, depth: int, waits: Spans) -> DevicePass:
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
        self._chunks = Ahead(make, -(-len(steps) // per_chunk), threads=threads, depth=2, waits=waits)
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
