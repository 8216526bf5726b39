"""Batches from samples: compiled kernels copy and pad them, `lay_out` places them in one buffer, `Assembler` adds masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stoker._kernels import (
    ALIGNMENT,
    LINE_BYTES,
    clear_bytes,
    clear_overflow,
    copy_bytes,
    keep_line,
    keep_scaled,
    kernel,
    move_line,
    move_scaled,
    prefetch,
    publish,
    saw_overflow,
)
from stoker._types import Array
from stoker.errors import OptionError
from stoker.feed.columns import FedColumn
from stoker.sampling.views import AnyView, Segments, Sequences, Windows

# Gather: the kernels that copy samples out of a flat column, at the speed of memory, without the GIL.
#
# A sample is a span: `count` bytes at `start`. A core that copies at random waits for memory unless it has asked for many cache
# lines at once before. Short spans are copied one by one while the 16th after them is asked for; long ones eight side by side,
# 256 bytes of each in turn, while those of the next eight are asked for (benchmarks/feed/bench_gather.py, icecube/bench_icecube.py).
#
# Kernels that calculate return whether the processor saw a finite number become infinite; it may be one that is not delivered.

STREAMING_BYTES = 2**20
"""Batches from this size on are written past the caches: they would not stay there until they are read."""

_SIDE_BY_SIDE = 8
_LONG_BYTES = 2048
"""From this mean size on, spans are copied side by side."""
_SPANS_AHEAD = 16
_ASKED_BYTES = 2048
"""Asked for of a span that comes later; the hardware follows a longer one by itself."""
_MASK = ALIGNMENT - 1
_ROWS_AHEAD = 4
_PIECE = 128


@kernel
def copy_spans(source: Array, starts: Array, counts: Array, target: Array, places: Array, unit: int, streaming: bool) -> None:
    """Copy spans of `counts[i]` rows at `starts[i]` to row `places[i]` of the target; a row has `unit` bytes.

    Source and target are bytes; all spans must lie inside both. `streaming` writes long spans past the caches.
    """
    num_spans = len(starts)
    if counts.sum() * unit >= _LONG_BYTES * num_spans:
        _copy_side_by_side(source, starts, counts, target, places, unit, streaming)
        return
    for i in range(num_spans):
        later = i + _SPANS_AHEAD
        if later < num_spans:
            _ask(source, starts[later] * unit, min(counts[later] * unit, _ASKED_BYTES))
        copy_bytes(target, places[i] * unit, source, starts[i] * unit, counts[i] * unit)


@kernel
def _copy_side_by_side(
    source: Array, starts: Array, counts: Array, target: Array, places: Array, unit: int, streaming: bool
) -> None:
    """Eight at a time, as far as the shortest of them goes; then the rest of each."""
    num_spans = len(starts)
    address = target.ctypes.data
    origin = np.empty(_SIDE_BY_SIDE, dtype=np.int64)
    goal = np.empty(_SIDE_BY_SIDE, dtype=np.int64)
    left = np.empty(_SIDE_BY_SIDE, dtype=np.int64)
    ahead = np.empty(_SIDE_BY_SIDE, dtype=np.int64)
    for first in range(0, num_spans, _SIDE_BY_SIDE):
        side = min(_SIDE_BY_SIDE, num_spans - first)
        for j in range(side):
            start, place, count = starts[first + j] * unit, places[first + j] * unit, counts[first + j] * unit
            head = min(-(address + place) & _MASK, count)  # up to where the target's address is a multiple of 64
            if head:
                copy_bytes(target, place, source, start, head)
            origin[j], goal[j], left[j] = start + head, place + head, count - head
            later = first + j + _SIDE_BY_SIDE
            ahead[j] = starts[later] * unit if later < num_spans else start
        shared = left[:side].min() // LINE_BYTES * LINE_BYTES
        for done in range(0, shared, LINE_BYTES):
            for j in range(side):
                for line in range(0, LINE_BYTES, ALIGNMENT):
                    prefetch(source, ahead[j] + done + line)
                if streaming:
                    move_line(target, goal[j] + done, source, origin[j] + done)
                else:
                    keep_line(target, goal[j] + done, source, origin[j] + done)
        for j in range(side):
            later = first + j + _SIDE_BY_SIDE
            if later < num_spans:
                _ask(source, ahead[j] + shared, min(counts[later] * unit, max(_ASKED_BYTES, shared + LINE_BYTES)) - shared)
            copy_bytes(target, goal[j] + shared, source, origin[j] + shared, left[j] - shared)
    if streaming:
        publish()


@kernel
def _ask(source: Array, start: int, count: int) -> None:
    """Ask for the cache lines of a span. How many steps it takes depends on `count` alone, which a core can foretell."""
    if count > 0:
        for line in range(start, start + count, ALIGNMENT):
            prefetch(source, line)
        prefetch(source, start + count - 1)


@kernel
def clear_tails(target: Array, counts: Array, row: int, unit: int) -> None:
    """Zero what follows the first `counts[i]` rows in each block of `row` rows of the target."""
    for i in range(len(counts)):
        if counts[i] < row:
            clear_bytes(target, (i * row + counts[i]) * unit, (row - counts[i]) * unit)


@kernel
def scale_rows(
    source: Array, starts: Array, counts: Array, series: Array, centers: Array, divisors: Array, target: Array, places: Array,
    streaming: bool,
) -> bool:  # fmt: skip
    """`copy_spans` for a flat column of floats, which become (x - center) / divisor of their series on the way."""
    clear_overflow()
    num_spans, size = len(starts), source.itemsize
    address = target.ctypes.data
    origin = np.empty(_SIDE_BY_SIDE, dtype=np.int64)
    goal = np.empty(_SIDE_BY_SIDE, dtype=np.int64)
    left = np.empty(_SIDE_BY_SIDE, dtype=np.int64)
    ahead = np.empty(_SIDE_BY_SIDE, dtype=np.int64)
    for first in range(0, num_spans, _SIDE_BY_SIDE):
        side = min(_SIDE_BY_SIDE, num_spans - first)
        longest = np.int64(0)
        for j in range(side):
            start, place, count = starts[first + j], places[first + j], counts[first + j]
            head = min((-(address + place * size) & _MASK) // size, count)
            _scale(
                source[start : start + head], target[place : place + head], centers[series[first + j]], divisors[series[first + j]]
            )
            origin[j], goal[j], left[j] = (start + head) * size, (place + head) * size, (count - head) * size
            longest = max(longest, left[j])
            later = first + j + _SIDE_BY_SIDE
            ahead[j] = starts[later] * size if later < num_spans else start * size
        for done in range(0, longest, LINE_BYTES):
            for j in range(side):
                for line in range(0, LINE_BYTES, ALIGNMENT):
                    prefetch(source, ahead[j] + done + line)
                center, divisor = centers[series[first + j]], divisors[series[first + j]]
                if left[j] - done >= LINE_BYTES:
                    if streaming:
                        move_scaled(target, goal[j] + done, source, origin[j] + done, center, divisor)
                    else:
                        keep_scaled(target, goal[j] + done, source, origin[j] + done, center, divisor)
                elif left[j] > done:
                    start, place, count = (origin[j] + done) // size, (goal[j] + done) // size, (left[j] - done) // size
                    _scale(source[start : start + count], target[place : place + count], center, divisor)
    if streaming:
        publish()
    return bool(saw_overflow())


@kernel
def _scale(x: Array, y: Array, center: Any, divisor: Any) -> None:
    for t in range(len(x)):
        y[t] = (x[t] - center) / divisor


@kernel
def scale_spans(
    source: Array, starts: Array, counts: Array, series: Array, centers: Array, divisors: Array, target: Array,
    places: Array,
) -> bool:  # fmt: skip
    """Like `copy_spans` for spans of numbers, which become (x - center) / divisor of their series and the target's type.

    The arithmetic is that of the column's own type, and of float64 for integers; only the result is rounded to the target's.
    """
    clear_overflow()
    width = centers.shape[1]
    size = source.itemsize
    for i in range(len(starts)):
        start, place, count = starts[i], places[i], counts[i]
        ahead = min(i + _ROWS_AHEAD, len(starts) - 1)
        later, most = starts[ahead] * size, counts[ahead] * size
        scale = series[i]
        for done in range(0, count, _PIECE):
            end = min(done + _PIECE, count)
            for line in range(done * size, min(end * size, most), ALIGNMENT):
                prefetch(source, later + line)
            # Slices, as the compiler makes vectors only where it sees that no index can be negative.
            x, y = source[start + done : start + end], target[place + done : place + end]
            if width == 1:
                center, divisor = centers[scale, 0], divisors[scale, 0]
                for t in range(len(x)):
                    y[t] = (x[t] - center) / divisor
            else:
                for t in range(len(x)):
                    k = (done + t) % width
                    y[t] = (x[t] - centers[scale, k]) / divisors[scale, k]
    return bool(saw_overflow())


@kernel
def cast_spans(source: Array, starts: Array, counts: Array, target: Array, places: Array) -> bool:
    """Like `copy_spans` for spans of numbers, which become the target's type."""
    clear_overflow()
    size = source.itemsize
    for i in range(len(starts)):
        start, place, count = starts[i], places[i], counts[i]
        ahead = min(i + _ROWS_AHEAD, len(starts) - 1)
        later, most = starts[ahead] * size, counts[ahead] * size
        for done in range(0, count, _PIECE):
            end = min(done + _PIECE, count)
            for line in range(done * size, min(end * size, most), ALIGNMENT):
                prefetch(source, later + line)
            x, y = source[start + done : start + end], target[place + done : place + end]
            for t in range(len(x)):
                y[t] = x[t]
    return bool(saw_overflow())


@kernel
def mark_rows(counts: Array, start: int, marks: Array) -> None:
    """Set 1 for the steps that a row has, counted from step `start`, and 0 for the others."""
    for i in range(len(counts)):
        inside = min(max(counts[i] - start, 0), marks.shape[1])
        marks[i, :inside] = 1
        marks[i, inside:] = 0


@kernel
def split_missing(bits: Array, sign_free: Any, infinity: Any, marks: Array) -> None:
    """Mark which floats are not NaN, and make 0 of those that are. Floats come as their bits, so that any type of them will do."""
    zero = bits.dtype.type(0)
    for i in range(len(bits)):
        is_observed = (bits[i] & sign_free) <= infinity
        marks[i] = is_observed
        bits[i] = bits[i] if is_observed else zero


_INFINITY_BITS = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}


def mark_observed(values: Array, torch_name: str, marks: Array) -> None:
    """`split_missing` for values of this type, with marks of the same shape."""
    kind = np.dtype(f"u{values.dtype.itemsize}").type
    sign_free = kind(2 ** (8 * values.dtype.itemsize - 1) - 1)
    split_missing(values.reshape(-1).view(kind), sign_free, kind(_INFINITY_BITS[torch_name]), marks.reshape(-1))


# Layout: what a batch consists of, and where each part lies in the memory of a slot.
#
# All parts of a batch lie behind one another in one slot, so that one copy brings them to a device; there they are taken apart
# again. Masks do not travel: each sample's number of steps does, and the mask is made from it where it is used.

Tensors = dict[str, torch.Tensor]

COUNTS, NUMBERS, STARTS, SERIES = "counts", "numbers", "cu_seqlens", "series"
NO_SAMPLE = -1
"""The number in rows without a sample."""
RESERVED = ("mask", "target_mask", "lengths", "valid", "sample", "cu_seqlens", "max_seqlen")


@dataclass(frozen=True, kw_only=True)
class Returns:
    """Entries that a batch has in addition to its columns. Rows without a sample have -1 in them.

    Args:
        index: Add the entry `sample`: the index of each sample. Samples of several stores are numbered on from store to store.
        series: Add the entry `series`: the index of the series of each sample; likewise numbered on.
        store: Add the entry `store`: the place of each sample's store in the list of stores.
        masks: True adds masks and lengths even where nothing is padded; False leaves masks out, `lengths` stay.

    Example:
        >>> Returns(series=True).index
        False
    """

    index: bool = False
    series: bool = False
    store: bool = False
    masks: bool | None = None

    @property
    def numbers(self) -> bool:
        """Whether the index of each sample is needed: the store of a sample follows from it."""
        return self.index or self.store


@dataclass(frozen=True)
class Field:
    """A range of a slot."""

    start: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    torch_dtype: torch.dtype

    def array(self, buffer: Array, lead: int) -> Array:
        """The field as an array over the slot."""
        return np.ndarray(self.shape, self.dtype, buffer, lead + self.start)

    def tensor(self, buffer: torch.Tensor) -> torch.Tensor:
        """The field as a tensor over a copy of the slot."""
        return buffer[self.start : self.start + self.num_bytes].view(self.torch_dtype).view(self.shape)


def lay_out(
    columns: list[FedColumn], rows: int, steps: int | None, total: int, *, starts: bool, returns: Returns
) -> tuple[dict[str, Field], int]:
    """The fields of a batch of `rows` samples, and their bytes together: `steps` per row, or `total` steps end to end."""
    fields: dict[str, Field] = {}
    end = 0

    def place(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], torch_dtype: torch.dtype) -> None:
        nonlocal end
        field = fields[name] = Field(end, math.prod(shape) * dtype.itemsize, shape, dtype, torch_dtype)
        end += -(-field.num_bytes // ALIGNMENT) * ALIGNMENT

    for column in columns:
        width = () if column.width is None else (column.width,)
        per_step = (total,) if steps is None else (rows, steps)
        shape = (rows,) if column.level == "series" else per_step
        place("column " + column.name, shape + width, column.dtype, column.torch_dtype)
        if column.observed:
            place("observed " + column.name, shape + width, np.dtype(np.bool_), torch.bool)
    place(STARTS if starts else COUNTS, (rows + 1 if starts else rows,), np.dtype(np.int32), torch.int32)
    for name, is_asked in ((NUMBERS, returns.numbers), (SERIES, returns.series)):
        if is_asked:
            place(name, (rows,), np.dtype(np.int64), torch.int64)
    return fields, end


def check_names(view: AnyView, columns: list[FedColumn], returns: Returns) -> None:
    """Refuse names of columns that a batch needs for itself."""
    endings = {column.name: ("_observed", "_target_observed") if column.observed else () for column in columns}
    taken = {
        name + ending for name in endings for ending in (*endings[name], *(() if isinstance(view, Sequences) else ("_target",)))
    }
    taken |= {*RESERVED, *(name for name in ("series", "store") if getattr(returns, name))}
    for column in columns:
        if column.name in taken:
            raise OptionError(
                f"a batch has an entry {column.name!r} of its own, which the column would hide. Leave it out of columns=.",
                parameter="store" if column.name == "store" else "columns",
            )


@dataclass(frozen=True, kw_only=True)
class Assembler:
    """How parts become the entries of a batch. Runs where the tensors are: it makes views, and masks from counts."""

    view: AnyView
    columns: list[FedColumn]
    padded: bool
    """Whether samples may be padded."""
    returns: Returns
    marks_valid: bool
    store_ends: tuple[int, ...] | None = None
    """Samples of all stores up to each but the last, for the entry `store`."""

    @property
    def has_lengths(self) -> bool:
        """Whether batches say how long samples are."""
        return self.padded or bool(self.returns.masks)

    def __call__(self, parts: Tensors, num_valid: int) -> Tensors:
        """The batch. `parts` are tensors under the names that `lay_out` gives them."""
        batch = self._sequences(parts) if isinstance(self.view, Sequences) else self._windows(self.view, parts)
        for column in self.columns:
            if column.level == "series":
                batch[column.name] = parts["column " + column.name]
                if column.observed:
                    batch[f"{column.name}_observed"] = parts["observed " + column.name]
        if self.marks_valid:
            rows = parts[STARTS][1:] if STARTS in parts else next(iter(parts.values()))
            if num_valid >= len(rows):
                batch["valid"] = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            else:
                batch["valid"] = torch.arange(len(rows), device=rows.device) < num_valid
        if self.returns.index:
            batch["sample"] = parts[NUMBERS]
        if SERIES in parts:
            batch["series"] = parts[SERIES]
        if self.store_ends is not None:
            batch["store"] = _stores_of(parts[NUMBERS], self.store_ends)
        return batch

    def _windows(self, view: Windows | Segments, parts: Tensors) -> Tensors:
        batch: Tensors = {}
        has_target = view.horizon or view.shift
        start = view.length if view.horizon else view.shift
        for column in self.columns:
            if column.level == "step":
                rows = parts["column " + column.name]
                batch[column.name] = rows[:, : view.length]
                if has_target:
                    batch[f"{column.name}_target"] = rows[:, start:]
                if column.observed:
                    marks = parts["observed " + column.name]
                    batch[f"{column.name}_observed"] = marks[:, : view.length]
                    if has_target:
                        batch[f"{column.name}_target_observed"] = marks[:, start:]
        if self.has_lengths:
            batch["lengths"] = counts = parts[COUNTS]
            if self.returns.masks is not False:
                batch["mask"] = _mask(counts, 0, view.length)
            if self.returns.masks is not False and has_target:
                batch["target_mask"] = _mask(counts, start, view.span)
        return batch

    def _sequences(self, parts: Tensors) -> Tensors:
        batch = {column.name: parts["column " + column.name] for column in self.columns if column.level == "step"}
        seen = [column.name for column in self.columns if column.level == "step" and column.observed]
        batch |= {f"{name}_observed": parts["observed " + name] for name in seen}
        if STARTS in parts:
            batch["cu_seqlens"] = parts[STARTS]
            return batch
        batch["lengths"] = counts = parts[COUNTS]
        rows = next((tensor for tensor in batch.values() if tensor.dim() > 1), None)
        if rows is not None and self.returns.masks is not False:
            batch["mask"] = _mask(counts, 0, rows.shape[1])
        return batch


def _stores_of(numbers: torch.Tensor, ends: tuple[int, ...]) -> torch.Tensor:
    """The store of each sample; -1 in rows without one. Comparisons with numbers, so that a graph can capture it."""
    stores = -(numbers < 0).to(torch.int64)
    for end in ends:
        stores += numbers >= end
    return stores


def _mask(counts: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Which of the steps `start` to `stop` samples of these lengths have: [samples, steps]."""
    if counts.device.type == "cpu":
        marks = torch.empty(len(counts), stop - start, dtype=torch.bool, device="cpu")
        mark_rows(counts.numpy(), start, marks.numpy())
        return marks
    return torch.arange(start, stop, dtype=torch.int32, device=counts.device) < counts[:, None]
