"""Batches that the CPU gathers from columns in memory or on disk, transforms, and copies to the GPU.

    Ring            slots of memory that batches are made in, used again once their batch is gone
    HostGather      copies samples from the columns into a slot, by compiled kernels
    HostProducer    gathers, transforms and copies batches, in the background threads of a prefetcher

A batch on the CPU is a tensor over its slot, and holds a reference to it; a slot is free when only the ring refers to it. For a
GPU the slot is pinned, and free when the copy out of it has ended. When no slot is free, a new one is made: a batch that is
kept never changes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from stoker._clock import Spans, now_ns
from stoker._kernels import ALIGNMENT
from stoker._types import Array
from stoker.errors import StoreDamagedError
from stoker.feed import padding
from stoker.feed.columns import FedColumn
from stoker.feed.padding import COUNTS, NO_SAMPLE, NUMBERS, SERIES, STARTS, Assembler, Field, Tensors
from stoker.feed.prefetch import Prefetcher, Steps
from stoker.feed.read_ahead import Hints, ReadAhead
from stoker.feed.remote_blocks import LeasedColumns
from stoker.feed.transform import Transform, as_tensors, with_rng
from stoker.sampling.views import Draw, Located, Samples, Sequences

POISON = 0xCB


class Slot:
    """Bytes for one batch. `buffer` is the object that tensors refer to; `lead` is where the aligned bytes begin."""

    __slots__ = ("__weakref__", "buffer", "capacity", "copied", "lead")

    def __init__(self, num_bytes: int, *, pinned: bool) -> None:
        if pinned:
            _guard_forks()
            self.buffer: Array = torch.empty(num_bytes + ALIGNMENT, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()
        else:
            self.buffer = np.empty(num_bytes + ALIGNMENT, dtype=np.uint8)
        self.lead = -self.buffer.ctypes.data % ALIGNMENT
        self.capacity = len(self.buffer) - self.lead
        self.copied: torch.cuda.Event | None = None


@cache
def _guard_forks() -> None:
    """Let a forked process (a worker of a DataLoader) never collect what the parent had left as garbage.

    Freeing pinned memory or an event asks CUDA, which a fork does not have, and that kills the process.
    """
    os.register_at_fork(after_in_child=gc.freeze)


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


@dataclass(frozen=True)
class Gathered:
    """A batch in a slot, and its fields as arrays over it: the slot stays taken while one of them lives."""

    slot: Slot
    fields: dict[str, Field]
    num_bytes: int
    arrays: dict[str, Array]

    def tensors(self) -> Tensors:
        """The fields as tensors, which share the memory of the slot."""
        tensors = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        dtypes = {name: field.torch_dtype for name, field in self.fields.items()}
        return {name: tensor if tensor.dtype == dtypes[name] else tensor.view(dtypes[name]) for name, tensor in tensors.items()}


@dataclass(eq=False)
class HostGather:
    """Copies samples into slots. Holds no state besides the ring, so threads may share it."""

    assemble: Assembler
    samples: Samples
    ring: Ring
    _: KW_ONLY
    files: Sequence[str]
    is_remote: bool

    def __post_init__(self) -> None:
        self._view, self._columns = self.assemble.view, self.assemble.columns
        self._observed = [column for column in self._columns if column.observed]
        self._is_packed = isinstance(self._view, Sequences) and self._view.layout == "packed"
        self._leased = LeasedColumns(self._columns, self.samples) if self.is_remote else None
        # The fields of the batch before, as most batches of a feed are alike. Replaced whole, so that threads may share it.
        self._known: tuple[tuple[int, int | None, int], dict[str, Field], int] | None = None

    def locate(self, numbers: Array, draw: Draw | None = None) -> Located:
        """Where samples lie; `draw` says where random ones do."""
        return self.samples.locate(numbers, draw)

    def gather(self, numbers: Array, rows: int, located: Located, *, is_leased: bool = False) -> Gathered:
        """A batch of `rows` rows: these samples, which lie where `locate` found them, and masked rows behind them.

        Blocks of remote columns are leased for it, unless they are already (`is_leased`).
        """
        if len(numbers) < rows:
            located = Located(*(np.concatenate([part, np.zeros(rows - len(numbers), dtype=np.int64)]) for part in located))
        steps, places, total = self._arrange(located.counts)
        known = self._known
        if known is None or known[0] != (rows, steps, total):
            laid_out = padding.lay_out(self._columns, rows, steps, total, starts=self._is_packed, returns=self.assemble.returns)
            known = self._known = (rows, steps, total), *laid_out
        _, fields, num_bytes = known
        slot = self.ring.take(num_bytes)
        try:
            arrays = {name: field.array(slot.buffer, slot.lead) for name, field in fields.items()}
            with contextlib.nullcontext() if is_leased or self._leased is None else self._leased.lease(located):
                for column in self._columns:
                    self._fill(column, arrays["column " + column.name], located, places, steps, len(numbers))
            for column in self._observed:
                values, marks = arrays["column " + column.name], arrays["observed " + column.name]
                padding.mark_observed(values, column.torch_name, marks)
                if column.level == "series":
                    marks[len(numbers) :] = False
                elif steps is not None and self.samples.padded | (len(numbers) < rows):
                    padding.clear_tails(marks.reshape(-1).view(np.uint8), located.counts, steps, column.width or 1)
            if self._is_packed:
                arrays[STARTS][:-1], arrays[STARTS][-1] = places, total
            else:
                arrays[COUNTS][:] = located.counts
            for name, values in ((NUMBERS, numbers), (SERIES, located.series[: len(numbers)])):
                if name in arrays:
                    arrays[name][: len(numbers)], arrays[name][len(numbers) :] = values, NO_SAMPLE
        except BaseException:
            self.ring.give_back(slot)
            raise
        return Gathered(slot, fields, num_bytes, arrays)

    def release(self, gathered: Gathered) -> None:
        """Give the slot back; it is free once no tensor refers to it."""
        self.ring.give_back(gathered.slot)

    def origin(self, numbers: Array) -> str:
        """The series and files of some samples, in words; also where the samples cannot be found."""
        try:
            series = self.samples.locate(numbers).series[:4]
        except StoreDamagedError:
            series = numbers[:0]
        shown = ", ".join(f"{number:,}" for number in series.tolist()) + (", …" if len(numbers) > 4 else "")
        return f"series {shown or '?'} in {', '.join(self.files)}"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all columns, at most."""
        return sum(column.unit * (self.samples.row if column.level == "step" else 1) for column in self._columns)

    def _arrange(self, counts: Array) -> tuple[int | None, Array, int]:
        """Steps of a row (None if packed), where each sample begins, and all steps."""
        rows = len(counts)
        if self._is_packed:
            places = np.zeros(rows, dtype=np.int64)
            np.cumsum(counts[:-1], out=places[1:])
            return None, places, int(counts.sum())
        steps = self._view.width(int(counts.max(initial=0))) if isinstance(self._view, Sequences) else self.samples.row
        return steps, np.arange(0, rows * steps, steps, dtype=np.int64), rows * steps

    def _starts(self, column: FedColumn, found: Located) -> Array:
        """The place of the first value of each sample in a column."""
        rows = found.starts if column.level == "step" else found.series
        return rows if column.width is None else rows * column.width

    def _fill(self, column: FedColumn, target: Array, found: Located, places: Array, steps: int | None, valid: int) -> None:
        source, starts, counts, width = column.values.reshape(-1), self._starts(column, found), found.counts, column.width or 1
        if column.level == "series":
            starts = starts[:valid]
            with np.errstate(over="ignore"):  # checked below
                target[:valid] = source[starts if column.width is None else starts[:, None] + np.arange(width)]
            if column.shift:
                target[:valid] += column.shift
            target[valid:] = 0
            if column.may_overflow and np.isinf(target[:valid]).any():
                column.refuse_overflow(found.series[:valid], starts, np.ones(valid, dtype=np.int64))
            return
        if width > 1:
            counts, places = counts * width, places * width
        rows = target.reshape(-1)
        flat = rows.view(np.uint8)
        streaming = len(flat) >= padding.STREAMING_BYTES and not column.observed  # which reads what was written
        overflowed = False
        if column.is_copied:
            padding.copy_spans(source.view(np.uint8), starts, counts, flat, places, source.itemsize, streaming)
        elif np.float16 in (source.dtype, rows.dtype):  # compiled kernels cannot calculate with it
            for series, start, count, place in zip(found.series, starts, counts, places, strict=True):
                part = rows[place : place + count] = column.delivered(start, start + count, series).reshape(-1)
                overflowed |= bool(np.isinf(part).any())
        elif column.scales is None:
            overflowed = padding.cast_spans(source, starts, counts, rows, places)
        else:
            centers, divisors = column.scales
            spans = (source, starts, counts, found.series)
            if source.dtype == rows.dtype and column.width is None and source.dtype.kind == "f":
                overflowed = padding.scale_rows(*spans, centers[:, 0], divisors[:, 0], rows, places, streaming)
            else:
                overflowed = padding.scale_spans(*spans, centers, divisors, rows, places)
        if overflowed:
            column.refuse_overflow(found.series, starts, found.counts)
        if column.shift:
            rows += column.shift  # also what no sample has written, which is cleared below
        if steps is not None and self.samples.padded | (valid < len(found.counts)):
            padding.clear_tails(flat, found.counts, steps, column.unit)


# The producer: gathered batches, transformed and copied to the device.

TOGETHER_BYTES = 8 * 2**20
MOST_TOGETHER = 16
"""Batches that are gathered as one: at most this many, and this many bytes."""
LOCATED_SAMPLES = 2**15
"""Samples that are located at a time. A gather pushes the index of runs out of the caches, which then costs more than the search."""


@dataclass(kw_only=True, eq=False)
class HostProducer:
    """Batches gathered by the CPU; for a GPU also copied there, on a stream of their own."""

    gather: HostGather
    device: torch.device
    transform: Transform | None
    rows: int | None
    """Rows of every batch; None where the last one is short."""
    hints: ReadAhead | None
    threads: int
    prefetch: int
    pacing: Spans
    """Gets the time for which the caller waited for a GPU that had batches enough."""

    def __post_init__(self) -> None:
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._transform = with_rng(self.transform) if self.transform is not None else None

    def start(self, steps: Steps, waits: Spans) -> Prefetcher[list[Any]]:
        """Begin a pass. Small batches of equal shape that need nothing further are gathered several at a time."""
        hints = self.hints.over(steps) if self.hints is not None else []
        together = 1
        if (
            self._stream is None
            and self.transform is None
            and self.hints is None
            and not isinstance(self.gather.assemble.view, Sequences)
        ):
            together = max(1, min(MOST_TOGETHER, TOGETHER_BYTES // max(1, self.gather.row_bytes * steps.batch_size)))
        grouped = steps.num_whole // together * together if together > 1 else 0  # steps that are gathered with others
        size = together * steps.batch_size
        at_once = max(1, LOCATED_SAMPLES // size)

        @lru_cache(maxsize=self.threads + 1)
        def locate(number: int) -> tuple[Array, Located]:
            first = number * at_once * together
            numbers = steps.numbers(first, min(at_once * together, grouped - first))
            return numbers, self.gather.locate(numbers, steps.draw)

        def make(item: int) -> list[Any]:
            first = item * together
            if first >= grouped:
                return [self.make(steps, grouped + item - grouped // together, hints)]
            try:
                numbers, found = locate(item // at_once)
                rows = slice(item % at_once * size, (item % at_once + 1) * size)
                return self._make_several(numbers[rows], Located(*(part[rows] for part in found)), steps.batch_size)
            except Exception:  # one by one instead: the batches before the one that fails are good
                made: list[Any] = []
                try:
                    made.extend(self.make(steps, step, hints) for step in range(first, first + together))
                except Exception as error:
                    made.append(error)
                return made

        num_items = grouped // together + len(steps) - grouped

        def on_close() -> None:
            for hint in hints:
                hint.close()

        return Prefetcher(make, num_items, threads=self.threads, prefetch=self.prefetch, waits=waits, on_close=on_close)

    def unpack(self, made: list[Any]) -> Iterator[Any]:
        """The batches that were made together. Each is removed from the list, which would keep its memory busy."""
        made.reverse()
        while made:
            yield made.pop()

    def make(self, steps: Steps, step: int, hints: Sequence[Hints]) -> Any:
        """One batch, or (for a GPU) the copy that is in flight and what it will be."""
        numbers = steps.numbers(step)
        try:
            rows = len(numbers) if self.rows is None else self.rows
            try:
                for hint in hints:
                    hint.before(step)
                located = self.gather.locate(numbers, steps.draw)
                is_leased = bool(hints) and all(hint.keeps_all for hint in hints)
                gathered = self.gather.gather(numbers, rows, located, is_leased=is_leased)
            finally:
                for hint in hints:
                    hint.after(step)
            try:
                if self._transform is not None:
                    return self._transformed(self._transform, gathered, len(numbers), steps.seed_of(step))
                if self._stream is not None:
                    return self._copy(gathered, len(numbers))
                return self.gather.assemble(gathered.tensors(), len(numbers))
            finally:
                self.gather.release(gathered)
        except Exception as error:
            shown = ", ".join(f"{number:,}" for number in numbers[:4].tolist()) + (", …" if len(numbers) > 4 else "")
            place = f"batch {step:,} of this pass over epoch {steps.epoch:,}"
            error.add_note(f"while making {place}: samples {shown} of {self.gather.origin(numbers)}")
            raise

    def _make_several(self, numbers: Array, found: Located, batch_size: int) -> list[Tensors]:
        """Batches of equal shape, gathered as one and then split, which saves most of the Python overhead of a gather."""
        gathered = self.gather.gather(numbers, len(numbers), found)
        try:
            whole = self.gather.assemble(gathered.tensors(), len(numbers))
        finally:
            self.gather.release(gathered)
        parts = [tensor.split(batch_size) for tensor in whole.values()]  # type: ignore[no-untyped-call]
        return [dict(zip(whole, rows, strict=True)) for rows in zip(*parts, strict=True)]

    def receive(self, entry: Any, in_flight: deque[torch.cuda.Event]) -> Tensors:
        """The batch; for a GPU, on the stream of the caller once the copy has ended."""
        if self._stream is None:
            batch: Tensors = entry
            return batch
        tensors, event, num_valid = entry
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(event)
        for tensor in tensors.values():
            tensor.record_stream(stream)
        in_flight.append(stream.record_event())
        received: Tensors = tensors if num_valid is None else self.gather.assemble(tensors, num_valid)
        # A host that is far ahead of its GPU would have a batch there for each step it is ahead.
        while len(in_flight) > self.prefetch:
            oldest = in_flight.popleft()
            if not oldest.query():  # type: ignore[no-untyped-call]
                start = now_ns()
                oldest.synchronize()
                self.pacing.add(start, now_ns())
        return received

    def _copy(self, gathered: Gathered, num_valid: int) -> tuple[Tensors, torch.cuda.Event, int]:
        """The fields on the device, by one copy of the whole slot."""
        slot = gathered.slot
        host = torch.from_numpy(slot.buffer)[slot.lead : slot.lead + gathered.num_bytes]
        with torch.cuda.stream(self._stream):
            copied = host.to(self.device, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        slot.copied = event
        return {name: field.tensor(copied) for name, field in gathered.fields.items()}, event, num_valid

    def _transformed(self, transform: Callable[..., Any], gathered: Gathered, num_valid: int, seed: int) -> Any:
        batch = self.gather.assemble(gathered.tensors(), num_valid)
        arrays = {name: tensor.numpy() for name, tensor in batch.items()}
        tensors = as_tensors(transform(arrays, lambda: np.random.default_rng(seed)))
        if "valid" in batch:
            tensors.setdefault("valid", batch["valid"])  # rows without a sample must stay marked
        if self._stream is None:
            return tensors
        with torch.cuda.stream(self._stream):
            copied = {name: tensor.pin_memory().to(self.device, non_blocking=True) for name, tensor in tensors.items()}
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return copied, event, None
