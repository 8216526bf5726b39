"""The fix `feed`: batches gathered at once from columns, as stoker.Feed does.

Columns are the arrays whose rows or windows the samples are (`columns_of` finds them by comparing a few samples), or copies made by
reading the dataset once. A column is used only if it gives, bit for bit, what the dataset and its collate function give for the same
indices: twice, and for a single sample as in a batch. Samples that differ from call to call, or that depend on the others of their batch,
have no columns. In a program that runs, the columns repeat its cached batches (`gathered_batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, default_collate

from stoker._batch import entries_of
from stoker._clock import now_ns
from stoker.diagnose.experiments.base import LoaderFix
from stoker.diagnose.experiments.data import OtherBatches
from stoker.diagnose.seeds import kept_seeds
from stoker.diagnose.session import MAX_CACHED, Session

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


class GatheredLoader(LoaderFix):
    """Each batch gathered at once from columns, in the order of the program's sampler.

    For datasets whose samples are rows or windows of arrays, or are few enough to be read once before the training.
    """

    unused_reason = "the program makes no DataLoader of a map-style dataset"

    def _change(self, options: dict[str, Any]) -> None:
        dataset = options["dataset"]
        if isinstance(dataset, GatheredDataset):
            return
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            self.unused_reason = "the samples of the dataset are not found by index"
        elif options.get("batch_size", 1) is None and options.get("batch_sampler") is None:
            gathers = isinstance(options.get("sampler"), BatchSampler)
            self.unused_reason = "the dataset makes whole batches " + ("already" if gathers else "itself")
        else:
            gathered = GatheredDataset(dataset, options.get("collate_fn") or default_collate, self)
            options.update(dataset=gathered, collate_fn=unchanged, num_workers=0)
            for name in ("persistent_workers", "prefetch_factor", "worker_init_fn", "multiprocessing_context"):
                options.pop(name, None)


class GatheredDataset(Dataset[Any]):
    """A dataset that returns batches: from columns, or, where it has none, as before."""

    def __init__(self, dataset: Any, collate: Collate, fix: GatheredLoader) -> None:
        self._dataset = dataset
        self._collate = collate
        self._fix = fix
        self._columns: Columns | str | None = None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __getitem__(self, number: int) -> Any:
        return self._dataset[number]

    def __getitems__(self, numbers: list[int]) -> Any:
        """Return the batch of these samples; columns are made at the first call."""
        if self._columns is None:
            with kept_seeds():
                self._columns = columns_of(self._dataset, self._collate)
            if isinstance(self._columns, str):
                self._fix.unused_reason = self._columns
            else:
                self._fix.used = True
        if isinstance(self._columns, str):
            return self._collate([self._dataset[number] for number in numbers])
        return self._columns.__getitems__(numbers)


@dataclass(frozen=True, kw_only=True)
class Columns(Dataset[Any]):
    """All tensors of a batch, and the structure around them: a dataset that gives whole batches."""

    columns: list[tuple[torch.Tensor, torch.dtype]]  # rows, of which each is a sample, and their type in a batch
    form: TreeSpec
    count: int  # samples

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        """Gather each tensor of the batch at once."""
        wanted = torch.as_tensor(numbers)
        return tree_unflatten([rows.index_select(0, wanted).to(dtype) for rows, dtype in self.columns], self.form)


def columns_of(dataset: Any, collate: Collate) -> Columns | str:
    """Return the columns of a dataset, or why it has none."""
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
        single, single_form = made([number])
        if single_form != form or not same_bits([leaf[place : place + 1] for leaf in leaves], single):
            return f"samples of {name} depend on the others of their batch"
    arrays = list(_tensors_within(dataset))
    columns = [(rows, leaf.dtype) for leaf in leaves if (rows := _rows_of(leaf, numbers, count, arrays)) is not None]
    if len(columns) == len(leaves):
        return Columns(columns=columns, form=form, count=count)
    # A collate function may pad: a single sample keeps its own shape.
    return _read_all(made, count, leaves, form, name, chunk=CHUNK if collate is default_collate else 1)


def _read_all(made: Make, count: int, probe: list[Any], form: TreeSpec, name: str, *, chunk: int) -> Columns | str:
    """Read every sample once, as packing would."""
    size = sum(leaf[0].nbytes for leaf in probe) * count
    if size > MAX_BYTES:
        return f"{name} has {count:,} samples, {size / 1e9:,.1f} GB: too much to read for a trial"
    begin = now_ns()
    columns = [(torch.empty((count, *leaf.shape[1:]), dtype=leaf.dtype), leaf.dtype) for leaf in probe]
    for start in range(0, count, chunk):
        stop = min(count, start + chunk)
        leaves, _ = made(range(start, stop))
        if [leaf.shape[1:] for leaf in leaves] != [leaf.shape[1:] for leaf in probe]:
            return f"samples of {name} differ in their shapes"
        for (rows, _), leaf in zip(columns, leaves, strict=True):
            rows[start:stop] = leaf
        seconds = (now_ns() - begin) / 1e9
        # A single chunk may have waited for other programs: the rest is estimated only after a second.
        if seconds > min(1, MAX_SECONDS) and seconds * count / stop > MAX_SECONDS:
            return f"{name} has {count:,} samples: reading them all would take too long for a trial"
    return Columns(columns=columns, form=form, count=count)


def _tensors_within(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors and arrays that an object holds, without a copy."""
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


def _rows_of(leaf: torch.Tensor, numbers: list[int], count: int, arrays: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the rows or windows of an array that are the samples; None if there are none."""
    for rows in (rows for values in arrays for rows in _candidates(leaf, values, count)):
        if len(rows) >= count and same_bits([rows[numbers].to(leaf.dtype)], [leaf]):
            return rows[:count]
    return None


def _candidates(leaf: torch.Tensor, values: torch.Tensor, count: int) -> Iterator[torch.Tensor]:
    """Yield views of an array whose first two rows, or windows, are the first two samples."""
    if leaf.shape[1:] == values.shape[1:]:
        length = 0  # samples are rows
    elif leaf.ndim == values.ndim + 1 and leaf.shape[2:] == values.shape[1:] and leaf.shape[1]:
        length = int(leaf.shape[1])
    else:
        return
    if len(values) == count and not length:
        yield values
    first, second = (leaf[number] if not length else leaf[number, 0] for number in (0, min(1, count - 1)))
    for offset in _places(first, values, 0) if count > 2 else ():
        for other in _places(second, values, offset + 1):
            if not length:
                yield values[offset :: other - offset]
            elif offset + length <= len(values):
                yield values[offset:].unfold(0, length, other - offset).movedim(-1, 1)


def _places(row: torch.Tensor, values: torch.Tensor, start: int) -> list[int]:
    """Return the first places at which a row is found."""
    same = (values[start : start + SEARCHED].to(row.dtype) == row).unsqueeze(-1).flatten(1).all(1)
    return [start + int(place) for place in same.nonzero().flatten()[:4]]


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Say whether tensors are the same bit for bit, NaN included."""
    same_form = [(tensor.dtype, tensor.shape) for tensor in a] == [(tensor.dtype, tensor.shape) for tensor in b]
    return same_form and all(bool(((x == y) | ((x != x) & (y != y))).all()) for x, y in zip(a, b, strict=True))


def gathered_batches(session: Session) -> OtherBatches | None:
    """Return batches of the training loop gathered at once, in place of its own; None where they cannot be."""
    source, size = session.sources.training, session.recorder.batch_rows
    if source is None or not size or not session.can_repeat:
        return None
    dataset = source.loader.dataset if source.loader is not None else ()
    rows = len(dataset) if isinstance(dataset, Sized) and len(dataset) else MAX_CACHED * size
    gathered = gathering(session.batches, rows, size)
    return OtherBatches(session, gathered) if gathered is not None else None


def gathering(batches: Sequence[Any], rows: int, size: int) -> Iterator[Any] | None:
    """Return endless batches of `size` samples, gathered from columns of `rows` rows that repeat these batches.

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
        columns.append((whole.repeat(times, *[1] * (whole.ndim - 1)), whole.dtype))
    count = min(len(column) for column, _ in columns)
    if count < size:
        return None
    dataset = Columns(columns=columns, form=flat[0][1], count=count)
    return chain.from_iterable(repeat(DataLoader(dataset, size, shuffle=True, drop_last=True, collate_fn=unchanged)))


def unchanged(batch: Any) -> Any:
    """Return a batch as it is: the collate function of datasets that give whole batches."""
    return batch
