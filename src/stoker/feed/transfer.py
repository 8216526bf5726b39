"""Gathered batches, transformed and copied to the device, in the background threads of a prefetcher."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from stoker._clock import Spans
from stoker._types import Array
from stoker.feed.host import Gathered, HostGather, Transform, as_tensors
from stoker.feed.padding import Assembler, Tensors
from stoker.feed.prefetch import Prefetcher, Steps
from stoker.feed.residency import Hints, ReadAhead

TOGETHER_BYTES = 8 * 2**20
MOST_TOGETHER = 16
"""Batches that are gathered as one: at most this many, and this many bytes."""


class HostProducer:
    """Batches gathered by the CPU; for a GPU also copied there, on a stream of their own."""

    def __init__(
        self,
        gather: HostGather,
        assemble: Assembler,
        device: torch.device,
        *,
        transform: Transform | None,
        rows: int | None,
        hints: ReadAhead | None,
        threads: int,
        prefetch: int,
    ) -> None:
        self._gather = gather
        self._assemble = assemble
        self._device = device
        self._transform = transform
        self._rows = rows
        self._hints = hints
        self._threads = threads
        self._prefetch = prefetch
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def start(self, steps: Steps, waits: Spans) -> Prefetcher[list[Any]]:
        """Begin a pass. Small batches of equal shape are gathered several at a time."""
        hints = self._hints.over(steps) if self._hints is not None else None
        together = self._num_together(steps)
        grouped = steps.num_whole // together * together if together > 1 else 0  # steps that are gathered with others

        def make(item: int) -> list[Any]:
            first = item * together
            if first >= grouped:
                return [self.make(steps, grouped + item - grouped // together, hints)]
            try:
                return self._make_several(steps, first, together)
            except Exception:  # one by one instead: the batches before the one that fails are good
                return self._make_until_error(steps, first, together, hints)

        num_items = grouped // together + len(steps) - grouped
        on_close = hints.close if hints is not None else None
        return Prefetcher(make, num_items, threads=self._threads, prefetch=self._prefetch, waits=waits, on_close=on_close)

    def unpack(self, made: list[Any]) -> Iterator[Any]:
        """The batches that were made together. Each is removed from the list, which would keep its memory busy."""
        made.reverse()
        while made:
            yield made.pop()

    def make(self, steps: Steps, step: int, hints: Hints | None) -> Any:
        """One batch, or (for a GPU) the copy that is in flight and what it will be."""
        numbers = steps.numbers(step)
        try:
            if hints is not None:
                hints.before(step)
            gathered = self._gather.gather(numbers, len(numbers) if self._rows is None else self._rows)
            try:
                if self._transform is not None:
                    return self._transformed(gathered, len(numbers))
                if self._stream is not None:
                    return self._copy(gathered, len(numbers))
                return self._assemble(gathered.tensors(), len(numbers))
            finally:
                self._gather.release(gathered)
        except Exception as error:
            error.add_note(self._describe(steps, step, numbers))
            raise

    def _make_several(self, steps: Steps, first: int, count: int) -> list[Tensors]:
        """Batches of equal shape, gathered as one and then split, which saves most of the Python overhead of a gather."""
        size = steps.batch_size
        numbers = steps.numbers(first, count)
        gathered = self._gather.gather(numbers, len(numbers))
        try:
            whole = self._assemble(gathered.tensors(), len(numbers))
        finally:
            self._gather.release(gathered)
        parts = [tensor.split(size) for tensor in whole.values()]  # type: ignore[no-untyped-call]
        return [dict(zip(whole, rows, strict=True)) for rows in zip(*parts, strict=True)]

    def _make_until_error(self, steps: Steps, first: int, count: int, hints: Hints | None) -> list[Any]:
        """The batches of some steps up to the first that fails, and its error."""
        made: list[Any] = []
        try:
            made.extend(self.make(steps, step, hints) for step in range(first, first + count))
        except Exception as error:
            made.append(error)
        return made

    def _num_together(self, steps: Steps) -> int:
        """How many batches are gathered as one: small ones of equal shape that need nothing further."""
        if self._stream is not None or self._transform is not None or self._hints is not None or self._gather.has_own_widths:
            return 1
        return max(1, min(MOST_TOGETHER, TOGETHER_BYTES // max(1, self._gather.row_bytes * steps.batch_size)))

    def receive(self, entry: Any, in_flight: deque[torch.cuda.Event]) -> Tensors:
        """The batch; for a GPU, on the stream of the caller once the copy has ended."""
        if self._stream is None:
            batch: Tensors = entry
            return batch
        tensors, event, num_valid = entry
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors.values():
            tensor.record_stream(stream)
        in_flight.append(stream.record_event())
        received: Tensors = tensors if num_valid is None else self._assemble(tensors, num_valid)
        # A host that is far ahead of its GPU would have a batch there for each step it is ahead.
        while len(in_flight) > self._prefetch:
            in_flight.popleft().synchronize()
        return received

    def _copy(self, gathered: Gathered, num_valid: int) -> tuple[Tensors, torch.cuda.Event, int]:
        slot = gathered.slot
        host = torch.from_numpy(slot.buffer)[slot.lead : slot.lead + gathered.layout.num_bytes]
        with torch.cuda.stream(self._stream):
            there = host.to(self._device, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        slot.copied = event
        return {name: part.tensor(there, 0) for name, part in gathered.layout.parts.items()}, event, num_valid

    def _transformed(self, gathered: Gathered, num_valid: int) -> Any:
        if self._transform is None:
            raise TypeError("there is no transform")
        batch = self._assemble(gathered.tensors(), num_valid)
        made = self._transform({name: tensor.numpy() for name, tensor in batch.items()})
        tensors = as_tensors(made)
        if "valid" in batch:
            tensors.setdefault("valid", batch["valid"])  # rows without a sample must stay marked
        if self._stream is None:
            return tensors
        with torch.cuda.stream(self._stream):
            there = {name: tensor.pin_memory().to(self._device, non_blocking=True) for name, tensor in tensors.items()}
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return there, event, None

    def _describe(self, steps: Steps, step: int, numbers: Array) -> str:
        """Where a batch was made from, as a note for its error."""
        shown = ", ".join(f"{number:,}" for number in numbers[:4].tolist()) + (", …" if len(numbers) > 4 else "")
        origin = self._gather.origin(numbers)
        return f"while making batch {step:,} of this pass over epoch {steps.epoch:,}: samples {shown} of {origin}"
