"""Layout: what a batch consists of, and where each part lies in the memory of a slot.

All parts of a batch lie behind one another in one slot, so that one copy brings them to a device; there they are taken apart
again. Masks do not travel: each sample's number of steps does, and the mask is made from it where it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.errors import OptionError
from stoker.feed.columns import FedColumn
from stoker.feed.gather import mark_rows
from stoker.memory import ALIGNMENT
from stoker.order.sequences import Sequences
from stoker.order.windows import Segments, Windows

Array = npt.NDArray[Any]
Tensors = dict[str, torch.Tensor]
AnyView = Windows | Segments | Sequences

COUNTS, NUMBERS, STARTS = "counts", "numbers", "cu_seqlens"
COMPAT_ENTRIES = {"input_ids": "float32", "labels": "float32", "loss_masks": "int32"}
RESERVED = ("mask", "target_mask", "lengths", "valid", "sample", "cu_seqlens", "max_seqlen")


@dataclass(frozen=True)
class Part:
    """A stretch of a slot."""

    start: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    torch_dtype: torch.dtype

    def array(self, buffer: Array, lead: int) -> Array:
        """The stretch as an array over the slot."""
        return np.ndarray(self.shape, self.dtype, buffer, lead + self.start)

    def tensor(self, buffer: torch.Tensor, lead: int) -> torch.Tensor:
        """The stretch as a tensor over a copy of the slot."""
        return buffer[lead + self.start : lead + self.start + self.num_bytes].view(self.torch_dtype).view(self.shape)


@dataclass(frozen=True)
class Layout:
    """The parts of a batch by name, and their size together."""

    parts: dict[str, Part]
    num_bytes: int


def lay_out(columns: list[FedColumn], rows: int, steps: int | None, total: int, *, starts: bool, numbers: bool) -> Layout:
    """The layout of a batch of `rows` samples: `steps` a row, or `total` steps end to end."""
    parts: dict[str, Part] = {}
    end = 0

    def place(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], torch_dtype: torch.dtype) -> None:
        nonlocal end
        part = parts[name] = Part(end, math.prod(shape) * dtype.itemsize, shape, dtype, torch_dtype)
        end += -(-part.num_bytes // ALIGNMENT) * ALIGNMENT

    for column in columns:
        width = () if column.width is None else (column.width,)
        if column.level == "series":
            shape: tuple[int, ...] = (rows,)
        else:
            shape = (total,) if steps is None else (rows, steps)
        place("column " + column.name, shape + width, column.dtype, column.torch_dtype)
    if starts:
        place(STARTS, (rows + 1,), np.dtype(np.int32), torch.int32)
    else:
        place(COUNTS, (rows,), np.dtype(np.int32), torch.int32)
    if numbers:
        place(NUMBERS, (rows,), np.dtype(np.int64), torch.int64)
    return Layout(parts, end)


def check_names(view: AnyView, columns: list[FedColumn]) -> None:
    """Refuse names of columns that a batch needs for itself."""
    taken = [f"{column.name}_target" for column in columns] if not isinstance(view, Sequences) else []
    for column in columns:
        if column.name in RESERVED or column.name in taken:
            raise OptionError(
                f"a batch has an entry {column.name!r} of its own, which the column would hide. Leave it out of columns=."
            )
    fits = len(columns) == 1 and columns[0].width is None and columns[0].level == "step" and columns[0].torch_name != "bfloat16"
    if getattr(view, "compat", None) and not fits:
        raise OptionError(
            f"compat='time-moe' feeds one column of single numbers, but found {', '.join(column.name for column in columns)}. "
            f"Name it with columns=."
        )


@dataclass(frozen=True, kw_only=True)
class Finish:
    """How parts become the entries of a batch. Runs where the tensors are: it makes views, and masks from counts."""

    view: AnyView
    columns: tuple[FedColumn, ...]
    has_lengths: bool
    marks_valid: bool
    makes_masks: bool

    def without_valid(self) -> Finish:
        """The same for one who marks valid rows himself."""
        return replace(self, marks_valid=False)

    def __call__(self, parts: Tensors, num_valid: int) -> Tensors:
        """The batch. `parts` are tensors under the names of the layout."""
        if isinstance(self.view, Sequences):
            batch = self._sequences(parts)
        elif self.view.compat:
            batch = self._time_moe(parts)
        else:
            batch = self._windows(parts)
        for column in self.columns:
            if column.level == "series":
                batch[column.name] = parts["column " + column.name]
        if self.marks_valid and not getattr(self.view, "compat", None):
            rows = parts[STARTS][1:] if STARTS in parts else next(iter(parts.values()))
            batch["valid"] = _below(len(rows), num_valid, rows.device)
        if NUMBERS in parts:
            batch["sample"] = parts[NUMBERS]
        return batch

    def _windows(self, parts: Tensors) -> Tensors:
        view = self.view
        if isinstance(view, Sequences):
            raise TypeError(f"{view} has no windows")
        batch: Tensors = {}
        has_target = view.horizon or view.shift
        start = view.length if view.horizon else view.shift
        for column in self.columns:
            if column.level == "step":
                rows = parts["column " + column.name]
                batch[column.name] = rows[:, : view.length]
                if has_target:
                    batch[f"{column.name}_target"] = rows[:, start:]
        if self.has_lengths:
            batch["lengths"] = counts = parts[COUNTS]
            if self.makes_masks:
                batch["mask"] = _mask(counts, 0, view.length)
            if self.makes_masks and has_target:
                batch["target_mask"] = _mask(counts, start, view.span)
        return batch

    def _time_moe(self, parts: Tensors) -> Tensors:
        rows = parts["column " + self.columns[0].name]
        masks = _mask(parts[COUNTS], 1, rows.shape[1], torch.int32)
        return dict(zip(COMPAT_ENTRIES, (rows[:, :-1], rows[:, 1:], masks), strict=True))

    def _sequences(self, parts: Tensors) -> Tensors:
        batch = {column.name: parts["column " + column.name] for column in self.columns if column.level == "step"}
        if STARTS in parts:
            batch["cu_seqlens"] = parts[STARTS]
            return batch
        batch["lengths"] = counts = parts[COUNTS]
        rows = next((tensor for tensor in batch.values() if tensor.dim() > 1), None)
        if rows is not None and self.makes_masks:
            batch["mask"] = _mask(counts, 0, rows.shape[1])
        return batch


def _mask(counts: torch.Tensor, start: int, stop: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    """Which of the steps `start` to `stop` samples of these lengths have: [samples, steps]."""
    if counts.device.type == "cpu":
        marks = torch.empty(len(counts), stop - start, dtype=dtype, device="cpu")
        mark_rows(counts.numpy(), start, marks.numpy())
        return marks
    return (torch.arange(start, stop, dtype=torch.int32, device=counts.device) < counts[:, None]).to(dtype)


def _below(size: int, bound: int, device: torch.device) -> torch.Tensor:
    if bound >= size:
        return torch.ones(size, dtype=torch.bool, device=device)
    return torch.arange(size, device=device) < bound
