"""The fix `feed`: batches gathered at once from columns in memory, a part of what stoker.Feed does. No store is packed.

In a trial the columns are made of the dataset, each sample of which is read once, as packing would (`columns_of`). Samples that differ
from one call to the next, or that depend on the others of their batch, change the losses of the trial, which says so. In a program that
runs, the columns repeat its cached batches (`gathered_batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, default_collate

from stoker._clock import now_ns
from stoker.compare.seeding import kept_seeds
from stoker.diagnose.experiments.base import LoaderFix
from stoker.diagnose.experiments.data import OtherBatches
from stoker.diagnose.session import MAX_CACHED, Session

MAX_BYTES = 1 << 30
MAX_SECONDS = 30.0
MAX_COLUMN_BYTES = 256 << 20  # of a column that is repeated from a few batches
CHUNK = 256
Collate = Callable[[list[Any]], Any]


class GatheredLoader(LoaderFix):
    """Each batch gathered at once from columns, in the order of the program's sampler.

    For datasets whose samples are few enough to be read once before the training.
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

    columns: list[torch.Tensor]  # each row is a sample
    form: TreeSpec
    count: int  # samples

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        """Gather each tensor of the batch at once."""
        wanted = torch.as_tensor(numbers)
        return tree_unflatten([rows.index_select(0, wanted) for rows in self.columns], self.form)


def columns_of(dataset: Any, collate: Collate) -> Columns | str:
    """Read every sample once, as packing would. Return the columns, or why there are none."""
    name, count = type(dataset).__name__, len(dataset)
    chunk = CHUNK if collate is default_collate else 1  # a collate function may pad: a single sample keeps its own shape
    columns: list[torch.Tensor] = []
    begin, form = now_ns(), None
    for start in range(0, count, chunk):
        numbers = range(start, min(count, start + chunk))
        leaves, form = tree_flatten(collate([dataset[number] for number in numbers]))
        if not all(isinstance(leaf, torch.Tensor) and leaf.ndim and len(leaf) == len(numbers) for leaf in leaves):
            return f"batches of {name} are not made of tensors with one row per sample"
        if not columns:
            size = sum(leaf[0].nbytes for leaf in leaves) * count
            if size > MAX_BYTES:
                return f"{name} has {count:,} samples, {size / 1e9:,.1f} GB: too much to read for a trial"
            columns = [torch.empty((count, *leaf.shape[1:]), dtype=leaf.dtype) for leaf in leaves]
        if [leaf.shape[1:] for leaf in leaves] != [rows.shape[1:] for rows in columns]:
            return f"samples of {name} differ in their shapes"
        for rows, leaf in zip(columns, leaves, strict=True):
            rows[start : numbers.stop] = leaf
        seconds = (now_ns() - begin) / 1e9
        # A single chunk may have waited for other programs: the rest is estimated only after a second.
        if seconds > min(1, MAX_SECONDS) and seconds * count / numbers.stop > MAX_SECONDS:
            return f"{name} has {count:,} samples: reading them all would take too long for a trial"
    return Columns(columns=columns, form=form, count=count) if form is not None else f"{name} is empty"


def gathered_batches(session: Session) -> Iterator[OtherBatches]:
    """Yield batches of the training loop gathered at once, in place of its own, where they can be."""
    source, size = session.sources.training, session.recorder.batch_rows
    if source is None or not size or not session.can_repeat:
        return
    dataset = source.loader.dataset if source.loader is not None else ()
    rows = len(dataset) if isinstance(dataset, Sized) and len(dataset) else MAX_CACHED * size
    gathered = gathering(session.batches, rows, size)
    if gathered is not None:
        yield OtherBatches(session, gathered)


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
        columns.append(whole.repeat(times, *[1] * (whole.ndim - 1)))
    count = min(map(len, columns))
    if count < size:
        return None
    dataset = Columns(columns=columns, form=flat[0][1], count=count)
    return chain.from_iterable(repeat(DataLoader(dataset, size, shuffle=True, drop_last=True, collate_fn=unchanged)))


def unchanged(batch: Any) -> Any:
    """Return a batch as it is: the collate function of datasets that give whole batches."""
    return batch
