"""For the fix `feed` of fixes.py: the columns of a dataset, from which a whole batch is gathered at once.

Columns are the arrays whose rows or windows the samples are (`columns_of` finds them by comparing a few samples), or copies made by
reading the dataset once. A column is used only if it gives, bit for bit, what the dataset and its collate function give for the same
indices: twice, and for a single sample as in a batch. Samples that differ from call to call, or that depend on the others of their batch,
have no columns. `gathering` makes batches from columns that are made of given batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.data import DataLoader, Dataset, default_collate

from stoker._batch import entries_of
from stoker._clock import now_ns

PROBES = 12
MAX_BYTES = 1 << 30
MAX_SECONDS = 30.0
MAX_COLUMN_BYTES = 256 << 20  # of a column that is repeated from a few batches
SEARCHED = 4096  # rows at which the first sample is searched
CHUNK = 256
MOST_PARTS = 32
Collate = Callable[[list[Any]], Any]
Make = Callable[[Sequence[int]], tuple[list[Any], TreeSpec]]
"""Indices of samples -> the tensors of their batch, and the structure around them."""


@dataclass(frozen=True, kw_only=True)
class TensorColumn:
    """One tensor of a batch: sample i is `length` values of a tensor from `offset + stride * i` on, or one value where None."""

    values: torch.Tensor
    dtype: torch.dtype
    stride: int = 1
    offset: int = 0
    length: int | None = None

    def gather(self, numbers: torch.Tensor) -> torch.Tensor:
        """The tensor of a batch, at once."""
        starts = numbers * self.stride + self.offset
        if self.length is None:
            return self.values.index_select(0, starts).to(self.dtype)
        places = starts[:, None] + torch.arange(self.length)
        return self.values[places].to(self.dtype)


@dataclass(frozen=True, kw_only=True)
class Columns(Dataset[Any]):
    """All tensors of a batch, and the structure around them: a dataset that gives whole batches."""

    columns: list[TensorColumn]
    form: TreeSpec
    count: int  # samples

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        wanted = torch.as_tensor(numbers)
        return tree_unflatten([column.gather(wanted) for column in self.columns], self.form)


def columns_of(dataset: Any, collate: Collate) -> Columns | str:
    """The columns of a dataset, or why it has none."""
    count = len(dataset)
    numbers = sorted({0, min(1, count - 1), count - 1, *np.random.default_rng(0).integers(0, count, PROBES).tolist()})
    name = type(dataset).__name__

    def made(chosen: Sequence[int]) -> tuple[list[Any], TreeSpec]:
        return tree_flatten(collate([dataset[number] for number in chosen]))

    leaves, form = made(numbers)
    if not all(isinstance(leaf, torch.Tensor) and leaf.ndim and len(leaf) == len(numbers) for leaf in leaves):
        return f"batches of {name} are not made of tensors with one row per sample"
    again, same_form = made(numbers)
    if form != same_form or not same_bits(leaves, again):
        return f"samples of {name} differ from one call to the next"
    for place, number in enumerate(numbers[:4]):
        one, one_form = made([number])
        if one_form != form or not same_bits([leaf[place : place + 1] for leaf in leaves], one):
            return f"samples of {name} depend on the others of their batch"
    arrays = list(_tensors_within(dataset))
    found = [_find(leaf, numbers, count, arrays) for leaf in leaves]
    if None not in found:
        return Columns(columns=[one for one in found if one is not None], form=form, count=count)
    # A collate function may pad: a single sample keeps its own shape.
    return _read_all(made, count, leaves, form, name, chunk=CHUNK if collate is default_collate else 1)


def _read_all(made: Make, count: int, probe: list[Any], form: TreeSpec, name: str, *, chunk: int) -> Columns | str:
    """Read every sample once, as packing would."""
    size = sum(leaf[0].nbytes for leaf in probe) * count
    if size > MAX_BYTES:
        return f"{name} has {count:,} samples, {size / 1e9:,.1f} GB: too much to read for a trial"
    begin = now_ns()
    whole = [torch.empty((count, *leaf.shape[1:]), dtype=leaf.dtype) for leaf in probe]
    for start in range(0, count, chunk):
        stop = min(count, start + chunk)
        leaves, _ = made(range(start, stop))
        if [leaf.shape[1:] for leaf in leaves] != [leaf.shape[1:] for leaf in probe]:
            return f"samples of {name} differ in their shapes"
        for column, leaf in zip(whole, leaves, strict=True):
            column[start:stop] = leaf
        seconds = (now_ns() - begin) / 1e9
        # A single chunk may have waited for other programs: the rest is estimated only after a second.
        if seconds > min(1, MAX_SECONDS) and seconds * count / stop > MAX_SECONDS:
            return f"{name} has {count:,} samples: reading them all would take too long for a trial"
    return Columns(columns=[TensorColumn(values=one, dtype=one.dtype) for one in whole], form=form, count=count)


def _tensors_within(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Tensors and arrays that an object holds, without a copy."""
    if isinstance(value, torch.Tensor):
        if value.ndim and value.device.type == "cpu":
            yield value.detach()
    elif isinstance(value, np.ndarray):
        if value.ndim and value.dtype.kind in "iuf" and value.flags.writeable:
            yield torch.from_numpy(value)
    elif depth < 3:
        some = value[:MOST_PARTS] if isinstance(value, list | tuple) else value
        parts = entries_of(some) or getattr(value, "__dict__", {}).items()
        for _, part in islice(parts, MOST_PARTS):
            yield from _tensors_within(part, depth + 1)


def _find(leaf: torch.Tensor, numbers: list[int], count: int, arrays: list[torch.Tensor]) -> TensorColumn | None:
    """The array whose rows or windows the samples are; None if there is none."""
    for column in (one for values in arrays for one in _candidates(leaf, numbers, count, values)):
        reaches = column.offset + column.stride * (count - 1) + (column.length or 1) <= len(column.values)
        if reaches and same_bits([column.gather(torch.tensor(numbers))], [leaf]):
            return column
    return None


def _candidates(leaf: torch.Tensor, numbers: list[int], count: int, values: torch.Tensor) -> Iterator[TensorColumn]:
    width = values.shape[1:]
    if leaf.shape[1:] == width:
        length = None
    elif leaf.ndim == values.ndim + 1 and leaf.shape[2:] == width and leaf.shape[1]:
        length = int(leaf.shape[1])
    else:
        return
    if len(values) == count and length is None:
        yield TensorColumn(values=values, dtype=leaf.dtype)
    if len(numbers) < 3:
        return
    offsets = _rows_of(leaf[0], values, length, 0)
    for offset in offsets[:4]:
        for second in _rows_of(leaf[1], values, length, offset + 1)[:4]:
            yield TensorColumn(values=values, dtype=leaf.dtype, stride=second - offset, offset=offset, length=length)


def _rows_of(sample: torch.Tensor, values: torch.Tensor, length: int | None, start: int) -> list[int]:
    """Rows at which the first value of a sample is found."""
    first = sample if length is None else sample[0]
    part = values[start : start + SEARCHED].to(sample.dtype)
    same = (part == first).reshape(len(part), math.prod(part.shape[1:]) if part.ndim > 1 else 1).all(1)
    return [start + int(place) for place in same.nonzero().flatten()]


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Bit for bit, NaN included."""
    same_form = [(one.dtype, one.shape) for one in a] == [(one.dtype, one.shape) for one in b]
    return same_form and all(bool(((x == y) | ((x != x) & (y != y))).all()) for x, y in zip(a, b, strict=True))


def gathering(batches: Sequence[Any], rows: int, size: int) -> Iterator[Any] | None:
    """Endless batches of `size` samples, gathered from columns of `rows` rows that repeat these batches.

    None where a batch is not made of tensors with one row per sample. As the columns are as large as those of the dataset, gathering
    takes as long as from these.
    """
    flat = [tree_flatten(batch) for batch in batches]
    if not flat or not flat[0][0] or any(form != flat[0][1] for _, form in flat):
        return None
    columns = []
    for parts in zip(*(leaves for leaves, _ in flat), strict=True):
        tensors = [part for part in parts if isinstance(part, torch.Tensor) and part.ndim and part.device.type == "cpu"]
        if len(tensors) < len(parts) or len({part.shape[1:] for part in tensors}) > 1:
            return None
        whole = torch.cat(tensors)
        times = max(1, min(rows, MAX_COLUMN_BYTES // max(1, whole[:1].nbytes)) // max(1, len(whole)))
        columns.append(TensorColumn(values=whole.repeat(times, *[1] * (whole.ndim - 1)), dtype=whole.dtype))
    count = min(len(column.values) for column in columns)
    if count < size:
        return None
    dataset = Columns(columns=columns, form=flat[0][1], count=count)
    return chain.from_iterable(repeat(DataLoader(dataset, size, shuffle=True, drop_last=True, collate_fn=unchanged)))


def unchanged(batch: Any) -> Any:
    """The collate function of datasets that give whole batches."""
    return batch
