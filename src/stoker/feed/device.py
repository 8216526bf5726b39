"""Selection of rows on a GPU as one kernel: reads each sample where it lies, writes the batch, pads with zeros in the same pass.

With torch alone the selection and the padding are separate passes over the batch (benchmarks/gpu_feed.py). This module needs
Triton, which comes with the CUDA builds of torch; `is_available` says whether it is there.
"""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch

from stoker._types import Array
from stoker.feed.host import NO_SAMPLE
from stoker.feed.layout import COUNTS, NUMBERS, STARTS, AnyView, FedColumn
from stoker.feed.normalize import series_bounds
from stoker.sampling.views import Lengths, Samples, Sequences

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


def select_rows(
    source: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    place: torch.Tensor | None,
    num_rows: int,
    steps: int,
    width: int,
    *,
    masked: bool,
) -> torch.Tensor:
    """Rows of `steps` steps of `width` numbers from the flat `source`: [rows, steps, width], zero behind `counts` steps.

    `starts` and `counts` are read from entry `place` on (from the first without one).
    """
    flat = source.view(torch.uint8) if source.dtype == torch.bool else source
    target = torch.empty(num_rows, steps, width, dtype=flat.dtype, device=source.device)
    size = steps * width
    _compiled()[(num_rows, -(-size // BLOCK))](
        flat, starts, counts, place, target, size, width, BLOCK=BLOCK, MASKED=masked, PLACED=place is not None, num_warps=_WARPS
    )
    return target.view(source.dtype)


# Device gather: columns that were uploaded once, and batches gathered where they lie.
#
# The host sends where samples lie, for many batches at a time; the values never pass it again. A row is one window of the flat
# column seen as overlapping rows, so that a gather is a single selection of rows, whatever the stride.

Tensors = dict[str, torch.Tensor]

_CHECKED_VALUES, _LOCATED_SAMPLES = 2**23, 2**20
_SERIES, _FIRST, _COUNT, _NUMBER = range(4)
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True)
class Placed:
    """Where the samples of some batches lie: an int64 table [4, samples] of series, first step, steps and number."""

    table: Array

    @classmethod
    def of(cls, samples: Samples, numbers: Array, rows: int) -> Placed:
        """Of these samples, and of empty rows behind them up to `rows`."""
        found = samples.locate(numbers)
        table = np.zeros((4, rows), dtype=np.int64)
        for row, part in zip((_SERIES, _FIRST, _COUNT), found, strict=True):
            table[row, : len(numbers)] = part
        table[_NUMBER, : len(numbers)], table[_NUMBER, len(numbers) :] = numbers, NO_SAMPLE
        return cls(table)


class Table:
    """Where the samples of a batch lie, on the device: the whole of a table of `Placed`, or `rows` from where a counter says.

    The counter is a tensor, so that a graph which reads it goes on through the table from replay to replay.
    """

    def __init__(self, whole: torch.Tensor, *, rows: int | None = None, place: torch.Tensor | None = None) -> None:
        self.whole = whole
        self.place = place
        self.num_rows = whole.shape[1] if rows is None else rows

    @cached_property
    def _each(self) -> torch.Tensor:
        places = torch.arange(self.num_rows, device=self.whole.device)
        return places if self.place is None else places + self.place

    def _row(self, number: int) -> torch.Tensor:
        return self.whole[number] if self.place is None else self.whole[number].index_select(0, self._each)

    @cached_property
    def series(self) -> torch.Tensor:
        """The series of each sample."""
        return self._row(_SERIES)

    @cached_property
    def starts(self) -> torch.Tensor:
        """The first step of each sample in the flat columns."""
        return self._row(_FIRST)

    @cached_property
    def counts(self) -> torch.Tensor:
        """The steps of each sample."""
        return self._row(_COUNT)

    @cached_property
    def numbers(self) -> torch.Tensor:
        """The number of each sample; negative for rows without one."""
        return self._row(_NUMBER)

    def select(self, flat: torch.Tensor, steps: int, width: int, *, masked: bool) -> torch.Tensor:
        """Rows of a flat column by one kernel, which reads the table by itself."""
        starts, counts = self.whole[_FIRST], self.whole[_COUNT]
        return select_rows(flat, starts, counts, self.place, self.num_rows, steps, width, masked=masked)


class DeviceColumn:
    """A column on the device, padded so that a row may begin at its last step."""

    def __init__(self, column: FedColumn, row: int, device: torch.device) -> None:
        self.name = column.name
        self.level = column.level
        self.width = column.width or 1
        self.has_width = column.width is not None
        self.dtype = column.torch_dtype
        flat = _shared(column.values.reshape(-1))
        if column.torch_name == "bfloat16":
            flat = flat.view(torch.bfloat16)
        padding = row * self.width if column.level == "step" else 0
        self.flat = torch.empty(len(flat) + padding, dtype=flat.dtype, device=device)
        self.flat[: len(flat)].copy_(flat)
        self.flat[len(flat) :] = 0
        self.num_steps = len(flat) // self.width
        self.scales: tuple[torch.Tensor, torch.Tensor] | None = None
        self.truncate = False
        if column.scales is not None:
            centers, divisors, self.truncate = column.scales
            self.scales = torch.from_numpy(centers).to(device), torch.from_numpy(divisors).to(device)

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return self.flat.nbytes

    def overflows(self, lengths: Lengths) -> Array:
        """The rows with a finite value that is delivered as an infinite one. Reads all rows, and waits for the device."""
        rows = self.flat[: self.num_steps * self.width].view(self.num_steps, self.width)
        ends = torch.from_numpy(series_bounds(lengths)[1:]).to(rows.device) if self.scales is not None else None
        found = [np.zeros(0, dtype=np.int64)]
        num_rows = max(1, _CHECKED_VALUES // self.width)
        for first in range(0, self.num_steps, num_rows):
            values = made = rows[first : first + num_rows]
            if ends is not None:
                places = torch.arange(first, first + len(values), device=rows.device)
                made = self.scaled(values, torch.searchsorted(ends, places, right=True))
            bad = made.to(self.dtype).isinf()
            if values.dtype.is_floating_point:
                bad &= ~values.isinf()
            found.append(first + bad.any(1).nonzero()[:, 0].cpu().numpy())
        return np.concatenate(found)

    def windows(self, table: Table, steps: int, *, masked: bool) -> torch.Tensor:
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
        values = (values - centers) / divisors
        return values.trunc() + 0.0 if self.truncate else values  # no -0.0, as whole numbers have none


def _shared(values: Array) -> torch.Tensor:
    """The array as a tensor that nobody writes to. Torch has no read-only tensors, and warns of arrays that are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)


def _absent(counts: torch.Tensor, steps: int) -> torch.Tensor:
    """Where rows have no step: [rows, steps, 1]."""
    return (torch.arange(steps, device=counts.device) >= counts[:, None])[:, :, None]


def _clear(values: torch.Tensor, absent: torch.Tensor) -> None:
    """Zero some values in place. Torch cannot fill unsigned numbers; their zero is that of signed ones."""
    values.view(_SIGNED.get(values.dtype, values.dtype)).masked_fill_(absent, 0)


def _refuse_overflows(column: FedColumn, rows: Array, samples: Samples) -> None:
    """Raise if a sample holds one of these rows; those that are in no sample are not delivered."""
    for first in range(0, samples.num_samples if len(rows) else 0, _LOCATED_SAMPLES):
        found = samples.locate(np.arange(first, min(first + _LOCATED_SAMPLES, samples.num_samples)))
        starts, counts = (found.starts, found.counts) if column.level == "step" else (found.series, 1)
        place = np.searchsorted(rows, starts)
        held = place < np.searchsorted(rows, starts + counts)
        if held.any():
            i = int(held.argmax())
            raise column.overflow(int(found.series[i]), int(rows[place[i]]))


class DeviceGather:
    """Columns on a device, and batches gathered from them."""

    def __init__(
        self, view: AnyView, samples: Samples, columns: list[FedColumn], device: torch.device, *, return_index: bool, lengths: bool
    ) -> None:
        longest = samples.row
        if isinstance(view, Sequences):  # rows are as wide as their batch needs, and `max_length` may be any number
            longest = view.width(min(longest, max((len(column.values) for column in columns if column.level == "step"), default=0)))
        self.columns = [DeviceColumn(column, longest, device) for column in columns]
        for column, there in zip(columns, self.columns, strict=True):
            if column.may_overflow:
                _refuse_overflows(column, there.overflows(column.lengths), samples)
        self._view = view
        self._samples = samples
        self._return_index = return_index
        self._has_lengths = lengths

    @property
    def num_bytes(self) -> int:
        """What all columns take."""
        return sum(column.num_bytes for column in self.columns)

    def gather(self, table: Table, counts: Array, *, masked: bool) -> Tensors:
        """The parts of a batch; `counts` are those of the table on the host, from which shapes follow.

        `masked` says that some rows may be shorter than the others and are to be filled with zeros.
        """
        packed = isinstance(self._view, Sequences) and self._view.layout == "packed"
        parts = self._packed(table, counts) if packed else self._padded(table, counts, masked)
        for column in self.columns:
            if column.level == "series":
                values = column.rows(table.series).to(column.dtype)
                if masked:
                    _clear(values, table.numbers[:, None] == NO_SAMPLE)
                parts["column " + column.name] = values if column.has_width else values[:, 0]
        if self._return_index:
            parts[NUMBERS] = table.numbers
        return parts

    def _padded(self, table: Table, counts: Array, masked: bool) -> Tensors:
        steps = self._samples.row
        if isinstance(self._view, Sequences):
            steps = self._view.width(int(counts.max(initial=0)))
        parts: Tensors = {}
        for column in self.columns:
            if column.level == "step":
                values = column.windows(table, steps, masked=masked)
                if column.scales is not None:
                    values = column.scaled(values, table.series)
                    if masked:
                        _clear(values, _absent(table.counts, steps))
                values = values.to(column.dtype)
                parts["column " + column.name] = values if column.has_width else values[:, :, 0]
        if self._has_lengths or masked or getattr(self._view, "compat", None):
            parts[COUNTS] = table.counts.to(torch.int32)
        return parts

    def _packed(self, table: Table, counts: Array) -> Tensors:
        total = int(counts.sum())
        lengths = table.counts
        ends = lengths.cumsum(0)
        behind = table.starts - (ends - lengths)
        places = torch.arange(total, device=lengths.device) + behind.repeat_interleave(lengths, output_size=total)
        series = table.series.repeat_interleave(lengths, output_size=total)
        parts: Tensors = {}
        for column in self.columns:
            if column.level == "step":
                values = column.rows(places)
                values = column.scaled(values, series).to(column.dtype)
                parts["column " + column.name] = values if column.has_width else values[:, 0]
        starts = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
        starts[1:] = ends
        parts[STARTS] = starts
        return parts
