"""Batches gathered on the device, from columns that were uploaded once.

    SampleTable      where the samples of a batch lie; selects rows by one Triton kernel, which pads with zeros in the same pass
    DeviceGather     columns on the device, and batches gathered from them
    DeviceProducer   the batches of a pass; the host sends only where samples lie
    Captured         the gather as (part of) a CUDA graph

With torch alone the selection and the padding are separate passes over the batch (benchmarks/feed/gpu_feed.py). Triton comes with the
CUDA builds of torch; `is_available` says whether it is there.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from stoker._clock import Spans
from stoker._types import Array
from stoker.errors import OptionError
from stoker.feed.columns import FedColumn
from stoker.feed.padding import COUNTS, NO_SAMPLE, NUMBERS, SERIES, STARTS, Assembler, Tensors
from stoker.feed.prefetch import Cursor, Prefetcher, Steps
from stoker.sampling.views import Draw, Lengths, Samples, Sequences

BLOCK = 2048
_WARPS = 4


@cache
def is_available() -> bool:
    """Whether Triton can be used here."""
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


@cache
def _compiled() -> Any:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def select(  # type: ignore[no-untyped-def]
        source, starts, counts, place, target, size, width, BLOCK: tl.constexpr, MASKED: tl.constexpr, PLACED: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        entry = row
        if PLACED:
            entry = row + tl.load(place)
        number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = number < size
        wanted = inside
        if MASKED:
            wanted = inside & (number < tl.load(counts + entry) * width)
        values = tl.load(source + tl.load(starts + entry) * width + number, mask=wanted, other=0)
        tl.store(target + row * size + number, values, mask=inside)

    return select


# Device gather: columns that were uploaded once, and batches gathered where they lie.
#
# The host sends where samples lie, for many batches at a time; the values never pass it again. A row is one window of the flat
# column seen as overlapping rows, so that a gather is a single selection of rows, whatever the stride.

_CHECKED_VALUES, _LOCATED_SAMPLES = 2**23, 2**20
_SERIES, _FIRST, _COUNT, _NUMBER = range(4)
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def sample_table(samples: Samples, numbers: Array, rows: int | None, draw: Draw | None = None) -> Array:
    """Where samples lie: an int64 table [4, rows] of series, first step, steps and index; empty rows at the end up to `rows`."""
    located = samples.locate(numbers, draw)
    table = np.zeros((4, len(numbers) if rows is None else rows), dtype=np.int64)
    for row, part in zip((_SERIES, _FIRST, _COUNT), located, strict=True):
        table[row, : len(numbers)] = part
    table[_NUMBER, : len(numbers)], table[_NUMBER, len(numbers) :] = numbers, NO_SAMPLE
    return table


class SampleTable:
    """Where the samples of a batch lie, on the device: the whole of a `sample_table`, or `rows` from where a counter says.

    The counter is a tensor, so that a graph which reads it moves through the table from replay to replay.
    """

    def __init__(self, whole: torch.Tensor, *, rows: int = 0, place: torch.Tensor | None = None) -> None:
        self._whole = whole
        self._place = place
        mine = whole if place is None else whole.index_select(1, torch.arange(rows, device=whole.device) + place)
        self.num_rows = mine.shape[1]
        self.series, self.starts, self.counts, self.numbers = mine.unbind()

    def select(self, source: torch.Tensor, steps: int, width: int, *, masked: bool) -> torch.Tensor:
        """Rows of `steps` steps of `width` numbers from a flat column: [rows, steps, width], zero behind each sample if `masked`.

        The kernel reads the table by itself, from entry `place` on.
        """
        flat = source.view(torch.uint8) if source.dtype == torch.bool else source
        target = torch.empty(self.num_rows, steps, width, dtype=flat.dtype, device=source.device)
        size, place = steps * width, self._place
        _compiled()[(self.num_rows, -(-size // BLOCK))](
            flat, self._whole[_FIRST], self._whole[_COUNT], place, target, size, width,
            BLOCK=BLOCK, MASKED=masked, PLACED=place is not None, num_warps=_WARPS,
        )  # fmt: skip
        return target.view(source.dtype)


class DeviceColumn:
    """A column on the device, padded so that a row may begin at its last step."""

    def __init__(self, column: FedColumn, row: int, device: torch.device) -> None:
        self.name = column.name
        self.level = column.level
        self.width = column.width or 1
        self.has_width = column.width is not None
        self.dtype = column.torch_dtype
        self.observed, self.shift = column.observed, column.shift
        with warnings.catch_warnings():  # torch has no read-only tensors, and warns of arrays that are; this one is only read
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            pieces = [torch.from_numpy(piece.values.reshape(-1)) for piece in column.pieces]
        if column.torch_name == "bfloat16":
            pieces = [piece.view(torch.bfloat16) for piece in pieces]
        size, end = sum(map(len, pieces)), 0
        padding = row * self.width if column.level == "step" else 0
        self.flat = torch.empty(size + padding, dtype=pieces[0].dtype, device=device)
        for piece in pieces:  # those of several stores end to end
            self.flat[end : end + len(piece)].copy_(piece)
            end += len(piece)
        self.flat[size:] = 0
        self.num_steps = size // self.width
        self.scales: tuple[torch.Tensor, torch.Tensor] | None = None
        if column.scales is not None:
            centers, divisors = column.scales
            self.scales = torch.from_numpy(centers).to(device), torch.from_numpy(divisors).to(device)

    def overflows(self, lengths: Lengths) -> Array:
        """The rows with a finite value that is delivered as an infinite one. Reads all rows, and waits for the device."""
        rows = self.flat[: self.num_steps * self.width].view(self.num_steps, self.width)
        ends = torch.from_numpy(lengths.bounds()[1:]).to(rows.device) if self.scales is not None else None
        overflowed = [np.zeros(0, dtype=np.int64)]
        num_rows = max(1, _CHECKED_VALUES // self.width)
        for first in range(0, self.num_steps, num_rows):
            values = made = rows[first : first + num_rows]
            if ends is not None:
                places = torch.arange(first, first + len(values), device=rows.device)
                made = self.scaled(values, torch.searchsorted(ends, places, right=True))
            bad = made.to(self.dtype).isinf()
            if values.dtype.is_floating_point:
                bad &= ~values.isinf()
            overflowed.append(first + bad.any(1).nonzero()[:, 0].cpu().numpy())
        return np.concatenate(overflowed)

    def windows(self, table: SampleTable, steps: int, *, masked: bool) -> torch.Tensor:
        """Rows of `steps` steps: [rows, steps, width]; zero behind the steps of a sample if `masked`."""
        if self.flat.is_cuda and is_available():
            return table.select(self.flat, steps, self.width, masked=masked)
        rows = self.flat.as_strided((self.num_steps + 1, steps * self.width), (self.width, 1))
        values = rows.index_select(0, table.starts).view(table.num_rows, steps, self.width)
        if masked:
            _clear(values, _absent(table.counts, steps))
        return values

    def rows(self, places: torch.Tensor) -> torch.Tensor:
        """Single steps, or values of series: [places, width]."""
        return self.flat[: self.num_steps * self.width].view(self.num_steps, self.width).index_select(0, places)

    def scaled(self, values: torch.Tensor, series: torch.Tensor) -> torch.Tensor:
        """The values normalised; `series` says which each row (or step) is of."""
        if self.scales is None:
            return values
        centers, divisors = (scale.index_select(0, series) for scale in self.scales)
        if values.dim() == 3:
            centers, divisors = centers[:, None], divisors[:, None]
        if not values.dtype.is_floating_point:
            values = values.to(centers.dtype)
        return (values - centers) / divisors


def _absent(counts: torch.Tensor, steps: int) -> torch.Tensor:
    """Where rows have no step: [rows, steps, 1]."""
    return (torch.arange(steps, device=counts.device) >= counts[:, None])[:, :, None]


def _clear(values: torch.Tensor, absent: torch.Tensor) -> None:
    """Zero some values in place. Torch cannot fill unsigned numbers; their zero is that of signed ones."""
    values.view(_SIGNED.get(values.dtype, values.dtype)).masked_fill_(absent, 0)


class DeviceGather:
    """Columns on a device, and batches gathered from them."""

    def __init__(self, assemble: Assembler, samples: Samples, device: torch.device) -> None:
        self.assemble, self.samples = assemble, samples
        view, columns = assemble.view, assemble.columns
        longest = samples.row
        if isinstance(view, Sequences):  # rows are as wide as their batch needs, and `max_length` may be any number
            longest = view.width(min(longest, max((column.num_rows for column in columns if column.level == "step"), default=0)))
        self.columns = [DeviceColumn(column, longest, device) for column in columns]
        for column, uploaded in zip(columns, self.columns, strict=True):
            rows = uploaded.overflows(column.lengths) if column.may_overflow else ()
            # Rows that are in no sample are not delivered.
            for first in range(0, samples.num_samples if len(rows) else 0, _LOCATED_SAMPLES):
                located = samples.locate(np.arange(first, min(first + _LOCATED_SAMPLES, samples.num_samples)))
                starts, counts = (located.starts, located.counts) if column.level == "step" else (located.series, 1)
                place = np.searchsorted(rows, starts)
                held = place < np.searchsorted(rows, starts + counts)
                if held.any():
                    i = int(held.argmax())
                    raise column.overflow(int(located.series[i]), int(rows[place[i]]))

    def gather(self, table: SampleTable, counts: Array, *, masked: bool) -> Tensors:
        """The parts of a batch; `counts` are those of the table on the host, from which shapes follow.

        `masked` says that some rows may be shorter than the others and are to be filled with zeros.
        """
        parts: Tensors = {}
        view, lengths, returns = self.assemble.view, table.counts, self.assemble.returns
        is_packed = isinstance(view, Sequences) and view.layout == "packed"
        if is_packed:
            total, ends = int(counts.sum()), lengths.cumsum(0)
            behind = (table.starts - (ends - lengths)).repeat_interleave(lengths, output_size=total)
            places = torch.arange(total, device=lengths.device) + behind
            series = table.series.repeat_interleave(lengths, output_size=total)
            parts[STARTS] = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
            parts[STARTS][1:] = ends
        elif self.assemble.has_lengths or masked:
            parts[COUNTS] = lengths.to(torch.int32)
        steps = view.width(int(counts.max(initial=0))) if isinstance(view, Sequences) else self.samples.row
        for column in self.columns:
            absent = None
            if column.level == "series":
                values = column.rows(table.series)
                if masked:
                    absent = table.numbers[:, None] == NO_SAMPLE
                    _clear(values, absent)
            elif is_packed:
                values = column.scaled(column.rows(places), series)
            else:
                values = column.windows(table, steps, masked=masked)
                if masked and (column.scales is not None or column.observed or column.shift):
                    absent = _absent(lengths, steps)
                if column.scales is not None:
                    values = column.scaled(values, table.series)
                    if absent is not None:
                        _clear(values, absent)
            if column.observed:
                missing = values.isnan()
                values.masked_fill_(missing, 0)
                is_observed = ~missing if absent is None else ~(missing | absent)
                parts["observed " + column.name] = is_observed if column.has_width else is_observed[..., 0]
            values = values.to(column.dtype)
            if column.shift:
                values = values + column.shift
                if absent is not None:
                    _clear(values, absent)
            parts["column " + column.name] = values if column.has_width else values[..., 0]
        if returns.numbers:
            parts[NUMBERS] = table.numbers
        if returns.series:
            parts[SERIES] = table.series.masked_fill(table.numbers == NO_SAMPLE, NO_SAMPLE)
        return parts


# The producer: the host sends where the samples of many batches lie; each batch is gathered when it is asked for.

CHUNK_SAMPLES = 2**17
"""Samples whose places are sent to a device at once: some milliseconds of work for many steps."""


@dataclass(kw_only=True, eq=False)
class DeviceProducer:
    """Batches gathered on the device; the host only sends where samples lie, for many batches at a time."""

    gather: DeviceGather
    device: torch.device
    rows: int | None
    """Rows of every batch; None where the last one is short."""
    threads: int

    def start(self, steps: Steps, waits: Spans) -> Prefetcher[tuple[torch.Tensor, list[int]]]:
        """Begin a pass. An item is where the samples of many batches lie, and the rows of each batch."""
        per_chunk = max(1, CHUNK_SAMPLES // steps.batch_size)

        def make(chunk: int) -> tuple[torch.Tensor, list[int]]:
            tables = self.tables(steps, chunk * per_chunk, per_chunk)
            return self.join(tables), [table.shape[1] for table in tables]

        return Prefetcher(make, -(-len(steps) // per_chunk), threads=self.threads, prefetch=2, waits=waits)

    def unpack(self, made: tuple[torch.Tensor, list[int]]) -> Iterator[tuple[torch.Tensor, Array]]:
        """Where the samples of each batch lie, on the device and on the host."""
        host, sizes = made
        table, numbers = host.to(self.device, non_blocking=True), host.numpy()
        end = 0
        for size in sizes:
            start, end = end, end + size
            yield table[:, start:end], numbers[:, start:end]

    def receive(self, entry: tuple[torch.Tensor, Array], in_flight: deque[torch.cuda.Event]) -> Tensors:
        """Gather the batch."""
        table, host = entry
        counts, valid = host[_COUNT], int(np.count_nonzero(host[_NUMBER] >= 0))
        masked = self.gather.samples.padded or valid < host.shape[1]
        return self.gather.assemble(self.gather.gather(SampleTable(table), counts, masked=masked), valid)

    def tables(self, steps: Steps, first: int, count: int) -> list[Array]:
        """Where the samples of `count` steps lie, as `sample_table` has it."""
        chosen = range(first, min(first + count, len(steps)))
        return [sample_table(self.gather.samples, steps.numbers(step), self.rows, steps.draw) for step in chosen]

    def join(self, tables: list[Array]) -> torch.Tensor:
        """Tables side by side in one tensor, pinned for a GPU."""
        whole = torch.from_numpy(np.concatenate(tables, axis=1))
        return whole.pin_memory() if self.device.type == "cuda" else whole


# Captured batches: the gather of a batch as a CUDA graph, or as part of a graph of your own.
#
# The graph reads where samples lie from a table on the device, at a place that a counter on the device says, and moves the
# counter on. So a step needs nothing of the host but the replay; once in many steps the host fills the table again.
# The tensors of a batch are the same at every step: copy what you keep.
#
#     captured = feed.captured()
#     for batch in captured: ...                       # replays a graph of the gather
#
#     with torch.cuda.graph(graph):                    # or one graph of the whole step
#         loss = train(captured.enqueue())
#     for _ in captured.passes(): graph.replay()

CAPTURED_STEPS = 256
"""Steps between two updates of the table."""
_WARM_UP = 3


class Captured:
    """Batches of a feed with device residency, in tensors at fixed addresses."""

    def __init__(
        self,
        producer: DeviceProducer,
        *,
        batch_size: int,
        last_batch: str,
        begin_pass: Callable[[], tuple[Steps, Cursor]],
        waits: Spans,
    ) -> None:
        view = producer.gather.assemble.view
        if isinstance(view, Sequences) and view.buckets != (view.max_length,):
            raise OptionError(
                f"{view} has batches of different shapes, which a graph cannot have. Give buckets=({view.max_length},).",
                parameter="buckets",
            )
        if last_batch == "short":
            raise OptionError(
                "last_batch='short' makes a batch of another shape, which a graph cannot have. Use last_batch='pad' or 'drop'.",
                parameter="last_batch",
            )
        self._begin_pass = begin_pass
        self._waits = waits
        self._device = producer.device
        self._producer = producer
        self._gather = producer.gather
        self._assemble = replace(producer.gather.assemble, marks_valid=False)
        self._rows = batch_size
        self._marks_valid = last_batch == "pad"
        self._masked = producer.gather.samples.padded or last_batch == "pad"
        self._table = torch.zeros(4, CAPTURED_STEPS * self._rows, dtype=torch.int64, device=self._device)
        self._place = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._longest = np.array([producer.gather.samples.row], dtype=np.int64)
        self.graph: torch.cuda.CUDAGraph | None = None
        """The graph of the gather, after the first iteration."""
        self.batch: Tensors = {}

    def enqueue(self) -> Tensors:
        """Gather the next batch: device work only, so that a graph can capture it."""
        table = SampleTable(self._table, rows=self._rows, place=self._place)
        batch = self._assemble(self._gather.gather(table, self._longest, masked=self._masked), self._rows)
        if self._marks_valid:
            batch["valid"] = table.numbers >= 0
        self._place.add_(self._rows)
        return batch

    def rewind(self) -> None:
        """Go back to the first step of the table that is on the device."""
        self._place.zero_()

    def passes(self) -> Iterator[int]:
        """The steps of a pass; each must be followed by one gather. The host fills the table between some of them."""
        steps, cursor = self._begin_pass()
        producer = self._producer

        def make(chunk: int) -> torch.Tensor:
            return producer.join(producer.tables(steps, chunk * CAPTURED_STEPS, CAPTURED_STEPS))

        num_chunks = -(-len(steps) // CAPTURED_STEPS)
        chunks = Prefetcher(make, num_chunks, threads=producer.threads, prefetch=2, waits=self._waits)
        if not len(steps):
            cursor.epoch, cursor.position = steps.after(-1)  # less than a batch was left of the epoch
        try:
            for step in range(len(steps)):
                if step % CAPTURED_STEPS == 0:
                    chunk = next(chunks)
                    self._table[:, : chunk.shape[1]].copy_(chunk, non_blocking=True)
                    self.rewind()
                cursor.epoch, cursor.position = steps.after(step)  # before: what was handed out counts as seen
                yield step
        finally:
            chunks.close()

    def __iter__(self) -> Iterator[Tensors]:
        replay = self._capture()
        for _ in self.passes():
            replay()
            yield self.batch

    def _capture(self) -> Callable[[], None]:
        """A function that gathers the next batch into `batch`: the replay of a graph, or (without a GPU) the gather itself."""
        if self._device.type != "cuda":
            return self._gather_in_place
        if self.graph is None:
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    self.enqueue()
                    self.rewind()
            torch.cuda.current_stream(self._device).wait_stream(stream)
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
