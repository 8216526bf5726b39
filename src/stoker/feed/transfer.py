"""Batches that the CPU gathers from columns in memory or on disk.

    Ring            slots of memory that batches are made in, used again once their batch is gone
    HostGather      copies samples from the columns into a slot, by compiled kernels

A batch on the CPU is a tensor over its slot, and holds a reference to it; a slot is free when only the ring refers to it. For a
GPU the slot is pinned, and free when the copy out of it has ended. When no slot is free, a new one is made: a batch that is
kept never changes.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from stoker._clock import Spans
from stoker._kernels import ALIGNMENT
from stoker._types import Array
from stoker.errors import FeedError, StoreDamagedError
from stoker.feed.columns import FedColumn
from stoker.feed.padding import (
    COUNTS,
    NUMBERS,
    STARTS,
    STREAMING_BYTES,
    AnyView,
    Assembler,
    Layout,
    Tensors,
    cast_spans,
    clear_tails,
    copy_spans,
    lay_out,
    scale_rows,
    scale_spans,
)
from stoker.feed.prefetch import Prefetcher, Steps
from stoker.feed.residency import Hints, ReadAhead
from stoker.sampling.views import Located, Samples, Sequences

POISON = 0xCB


class Slot:
    """Bytes for one batch. `buffer` is the object that tensors refer to; `lead` is where the aligned bytes begin."""

    __slots__ = ("__weakref__", "buffer", "copied", "lead")

    def __init__(self, num_bytes: int, *, pinned: bool) -> None:
        self.buffer: Array = _pinned(num_bytes) if pinned else np.empty(num_bytes + ALIGNMENT, dtype=np.uint8)
        self.lead = -self.buffer.ctypes.data % ALIGNMENT
        self.copied: torch.cuda.Event | None = None

    @property
    def capacity(self) -> int:
        """Bytes behind `lead`."""
        return len(self.buffer) - self.lead


@cache
def _guard_forks() -> None:
    """Let a forked process (a worker of a DataLoader) never collect what the parent had left as garbage.

    Freeing pinned memory or an event asks CUDA, which a fork does not have, and that kills the process.
    """
    os.register_at_fork(after_in_child=gc.freeze)


def _pinned(num_bytes: int) -> Array:
    _guard_forks()
    return torch.empty(num_bytes + ALIGNMENT, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()


def _references(slot: Slot) -> int:
    return sys.getrefcount(slot.buffer)


_EMPTY = Slot(1, pinned=False)
_ALONE = _references(_EMPTY)  # the references of a buffer that only its slot refers to


def _is_free(slot: Slot) -> bool:
    return _references(slot) == _ALONE and (slot.copied is None or slot.copied.query())  # type: ignore[no-untyped-call]


class Ring:
    """Slots that are lent and free themselves."""

    def __init__(self, *, pinned: bool, keep: int, poison: bool = False) -> None:
        self._pinned = pinned
        self._keep = keep
        self._poison = poison
        self._slots: list[Slot] = []
        self._lent: set[int] = set()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def take(self, num_bytes: int) -> Slot:
        """A free slot of at least this size. Give it back when the batch has been made from it."""
        if os.getpid() != self._process:
            self._lock, self._process = threading.Lock(), os.getpid()  # a fork may have come while a thread held it
        with self._lock:
            free = [slot for slot in self._slots if id(slot) not in self._lent and _is_free(slot)]
            fitting = next((slot for slot in free if slot.capacity >= num_bytes), None)
            if fitting is None:
                fitting = Slot(num_bytes, pinned=self._pinned)
                self._slots.append(fitting)
                surplus = free  # all too small
            else:
                surplus = [slot for slot in free if slot is not fitting][self._keep :]
            for slot in surplus:
                self._slots.remove(slot)
            self._lent.add(id(fitting))
        if self._poison:
            fitting.buffer.fill(POISON)
        return fitting

    def give_back(self, slot: Slot) -> None:
        """Let the slot be taken again, as soon as nothing else refers to its buffer."""
        with self._lock:
            self._lent.discard(id(slot))

    @property
    def num_slots(self) -> int:
        """How many slots there are."""
        return len(self._slots)


# Host gather: batches made by compiled kernels from mapped columns into slots, by any number of threads at once.

Transform = Callable[[dict[str, Array]], Mapping[str, Any]]

NO_SAMPLE = -1


def as_tensors(made: object) -> dict[str, torch.Tensor]:
    """What a transform returned, as tensors on the CPU, whatever the default device of torch is."""
    if not isinstance(made, Mapping):
        raise FeedError(f"transform returned {type(made).__name__}; expected a dict of arrays.")
    return {
        name: value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu") for name, value in made.items()
    }


@dataclass(frozen=True)
class Gathered:
    """A batch in a slot, and its parts as arrays over it: the slot stays taken while one of them lives."""

    slot: Slot
    layout: Layout
    arrays: dict[str, Array]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parts as tensors, which share the memory of the slot."""
        parts = self.layout.parts
        tensors = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        return {
            name: one if one.dtype == parts[name].torch_dtype else one.view(parts[name].torch_dtype)
            for name, one in tensors.items()
        }


class HostGather:
    """Copies samples into slots. Holds no state besides the ring, so threads may share it."""

    def __init__(
        self, view: AnyView, samples: Samples, columns: list[FedColumn], ring: Ring, *, return_index: bool, files: Sequence[str]
    ) -> None:
        self._view = view
        self._samples = samples
        self._columns = columns
        self._ring = ring
        self._return_index = return_index
        self._files = files
        self._known: tuple[tuple[int, int | None, int], Layout] | None = None  # replaced whole, so that threads may share it

    def gather(self, numbers: Array, rows: int) -> Gathered:
        """A batch of `rows` rows: these samples, and masked rows behind them."""
        found = self._samples.locate(numbers)
        if len(numbers) < rows:
            found = Located(*(_extend(part, rows) for part in found))
        steps, places, total = self._arrange(found.counts)
        layout = self._layout(rows, steps, total)
        slot = self._ring.take(layout.num_bytes)
        try:
            arrays = {name: part.array(slot.buffer, slot.lead) for name, part in layout.parts.items()}
            for column in self._columns:
                self._fill(column, arrays["column " + column.name], found, places, steps, len(numbers))
            if self._is_packed:
                arrays[STARTS][:-1], arrays[STARTS][-1] = places, total
            else:
                arrays[COUNTS][:] = found.counts
            if self._return_index:
                arrays[NUMBERS][: len(numbers)], arrays[NUMBERS][len(numbers) :] = numbers, NO_SAMPLE
        except BaseException:
            self._ring.give_back(slot)
            raise
        return Gathered(slot, layout, arrays)

    def release(self, gathered: Gathered) -> None:
        """Give the slot back; it is free once no tensor refers to it."""
        self._ring.give_back(gathered.slot)

    def origin(self, numbers: Array) -> str:
        """The series and files of some samples, in words; also where the samples cannot be found."""
        try:
            series = self._samples.locate(numbers).series[:4]
        except StoreDamagedError:
            series = numbers[:0]
        shown = ", ".join(f"{one:,}" for one in series.tolist()) + (", …" if len(numbers) > 4 else "")
        return f"series {shown or '?'} in {', '.join(self._files)}"

    @property
    def has_own_widths(self) -> bool:
        """Whether the shape of a batch depends on its samples."""
        return isinstance(self._view, Sequences)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all columns, at most."""
        return sum(column.unit * (self._samples.row if column.level == "step" else 1) for column in self._columns)

    @property
    def _is_packed(self) -> bool:
        return isinstance(self._view, Sequences) and self._view.layout == "packed"

    def _layout(self, rows: int, steps: int | None, total: int) -> Layout:
        """The layout of this shape; the one before is kept, as most batches of a feed are alike."""
        known = self._known
        if known is None or known[0] != (rows, steps, total):
            layout = lay_out(self._columns, rows, steps, total, starts=self._is_packed, return_index=self._return_index)
            known = self._known = (rows, steps, total), layout
        return known[1]

    def _arrange(self, counts: Array) -> tuple[int | None, Array, int]:
        """Steps of a row (None if packed), where each sample begins, and all steps."""
        rows = len(counts)
        if not isinstance(self._view, Sequences):
            steps = self._samples.row
        elif self._view.layout == "padded":
            steps = self._view.width(int(counts.max(initial=0)))
        else:
            places = np.zeros(rows, dtype=np.int64)
            np.cumsum(counts[:-1], out=places[1:])
            return None, places, int(counts.sum())
        return steps, np.arange(0, rows * steps, steps, dtype=np.int64), rows * steps

    def _fill(self, column: FedColumn, target: Array, found: Located, places: Array, steps: int | None, valid: int) -> None:
        flat = target.reshape(-1).view(np.uint8)
        if column.level == "series":
            with np.errstate(over="ignore"):  # checked below
                target[:valid] = column.values[found.series[:valid]]
            target[valid:] = 0
            if column.may_overflow and np.isinf(target[:valid]).any():
                column.refuse_overflow(found.series[:valid], found.series[:valid], np.ones(valid, dtype=np.int64))
            return
        overflowed = False
        if column.is_copied:
            copy_spans(column.bytes_view, found.starts, found.counts, flat, places, column.unit, len(flat) >= STREAMING_BYTES)
        elif column.values.dtype == np.float16 or column.dtype == np.float16:
            overflowed = self._fill_by_numpy(column, target, found, places)
        elif column.scales is not None:
            centers, divisors, truncate = column.scales
            values, rows = column.values.reshape(-1), target.reshape(-1)
            if values.dtype == rows.dtype and column.width is None and values.dtype.kind == "f":
                streaming, by_series = len(flat) >= STREAMING_BYTES, (centers[:, 0], divisors[:, 0])
                overflowed = scale_rows(values, found.starts, found.counts, found.series, *by_series, rows, places, streaming)
            else:
                overflowed = scale_spans(
                    values, found.starts, found.counts, found.series, centers, divisors, truncate, rows, places
                )
        else:
            values = column.values.reshape(-1)
            overflowed = cast_spans(values, found.starts, found.counts, column.width or 1, target.reshape(-1), places)
        if overflowed:
            column.refuse_overflow(found.series, found.starts, found.counts)
        if steps is not None and self._samples.padded | (valid < len(found.counts)):
            clear_tails(flat, found.counts, steps, column.unit)

    @staticmethod
    def _fill_by_numpy(column: FedColumn, target: Array, found: Located, places: Array) -> bool:
        """For float16, with which compiled kernels cannot calculate. Returns whether some value is infinite, like the kernels."""
        rows = target.reshape(-1, column.width or 1)
        has_infinite = False
        for series, start, count, place in zip(found.series, found.starts, found.counts, places, strict=True):
            part = rows[place : place + count] = column.delivered(start, start + count, series)
            has_infinite |= bool(np.isinf(part).any())
        return has_infinite


def _extend(numbers: Array, rows: int) -> Array:
    longer = np.zeros(rows, dtype=np.int64)
    longer[: len(numbers)] = numbers
    return longer


# Gathered batches, transformed and copied to the device, in the background threads of a prefetcher.

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
