"""Claims: what a loader says of itself, which is what an audit holds it to. Reads attributes, runs nothing.

A `DataLoader` of torch is understood with its samplers, and a `Feed` with its order. Any other object may say `dataset`,
`collate_fn`, `shuffled`, `drop_last`, `batch_size` and `num_replicas`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.feed.auditing.leaves import Array

if TYPE_CHECKING:
    from stoker.feed.feed import Feed


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What a loader promises; None where it promises nothing."""

    name: str
    dataset: Any = None
    """A map-style dataset: has a length, and items by number."""
    collate: Callable[[Any], Any] | None = None
    """Makes a batch of a list of items."""
    items_are_batches: bool = False
    shuffled: bool | None = None
    once: bool = True
    """Each sample once an epoch; False where the sampler draws with replacement or a number of its own."""
    expected: Array | None = None
    """The samples that the sampler goes through, where these are not all."""
    num_replicas: int = 1
    """Processes that share an epoch."""
    droppable: int = 0
    """Samples that an epoch may leave out, because its last batch would be short."""
    num_workers: int = 0
    iterable: bool = False
    """Whether each worker process runs the whole iterable of the user."""


def claims_of(batches: Any) -> Claims:
    """Read what an iterable of batches says of itself."""
    data = _torch_data()
    if data is not None and isinstance(batches, data.DataLoader):
        return _torch_claims(batches, data)
    feeds = sys.modules.get("stoker.feed.feed")
    if feeds is not None and isinstance(batches, feeds.Feed):
        return _feed_claims(batches)
    dataset = getattr(batches, "dataset", None)
    dataset = dataset if is_map_style(dataset) else None
    shuffled = getattr(batches, "shuffled", None)
    collate = getattr(batches, "collate_fn", None)
    replicas = getattr(batches, "num_replicas", 1)
    return Claims(
        name=name_of(batches),
        dataset=dataset,
        collate=collate if callable(collate) else None,
        shuffled=shuffled if isinstance(shuffled, bool) else None,
        num_replicas=replicas if isinstance(replicas, int) else 1,
        droppable=_droppable(dataset, batches),
    )


class Turn:
    """The epoch of a loader or its sampler, which a training sets before each epoch, and an audit puts back afterwards."""

    def __init__(self, batches: Any) -> None:
        sampler = getattr(batches, "sampler", None)
        batcher = getattr(batches, "batch_sampler", None)
        places = [batches, sampler, batcher, getattr(batcher, "sampler", None)]
        self._owner = next((place for place in places if callable(getattr(place, "set_epoch", None))), None)
        epoch = getattr(self._owner, "epoch", 0)
        self._first = epoch if isinstance(epoch, int) else 0

    def go(self, number: int) -> None:
        """Set the epoch, counted from the one that the audit began with."""
        if self._owner is not None:
            self._owner.set_epoch(self._first + number)

    def back(self) -> None:
        """Set the epoch that the audit began with."""
        self.go(0)


def is_map_style(dataset: Any) -> bool:
    """Whether items can be had by number, and their number is known."""
    data = _torch_data()
    if (
        dataset is None
        or isinstance(dataset, dict | str | bytes)
        or (data is not None and isinstance(dataset, data.IterableDataset))
    ):
        return False
    return hasattr(type(dataset), "__getitem__") and hasattr(type(dataset), "__len__")


def name_of(value: Any) -> str:
    """What to call something in a sentence."""
    return getattr(value, "__name__", None) or type(value).__name__


def _torch_data() -> Any:
    return sys.modules.get("torch.utils.data")


def _feed_claims(feed: Feed) -> Claims:
    from stoker.order.bylength import ByLength
    from stoker.order.order import Sequential
    from stoker.order.weighted import Weighted

    dataset = None if feed.is_packed else feed.dataset
    return Claims(
        name=f"Feed of {feed.store.name}",
        dataset=dataset,
        collate=None if dataset is None else dataset.collate,
        # Samples of similar length need not be from everywhere, nor need heavy ones.
        shuffled=None if isinstance(feed.order, ByLength | Weighted) else not isinstance(feed.order, Sequential),
        once=not isinstance(feed.order, Weighted),
        num_replicas=feed.ranks.world_size,
        droppable=feed.num_samples % (feed.batch_size * feed.ranks.world_size) if feed.drop_last else 0,
    )


def _torch_claims(loader: Any, data: Any) -> Claims:
    name = f"{type(loader).__name__} over {type(loader.dataset).__name__}"
    if isinstance(loader.dataset, data.IterableDataset):
        return Claims(name=name, num_workers=loader.num_workers, iterable=True)
    dataset = loader.dataset if is_map_style(loader.dataset) else None
    alone = loader.batch_size is None and loader.batch_sampler is None
    sampler = loader.sampler if alone else getattr(loader.batch_sampler, "sampler", None)
    shuffled, once, expected, replicas = None, True, None, 1
    if isinstance(sampler, data.SequentialSampler):
        shuffled = False
    elif isinstance(sampler, data.RandomSampler):
        shuffled = True
        once = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    elif isinstance(sampler, data.SubsetRandomSampler):
        shuffled = True
        expected = np.unique(np.asarray(sampler.indices, dtype=np.int64))
    elif isinstance(sampler, data.WeightedRandomSampler):
        once = not sampler.replacement and sampler.num_samples == len(sampler.weights)
    elif isinstance(sampler, data.DistributedSampler):
        shuffled, replicas = bool(sampler.shuffle), int(sampler.num_replicas)
    elif dataset is not None and sampler is not None and hasattr(sampler, "__len__"):
        once = len(sampler) == len(dataset)
    return Claims(
        name=name,
        dataset=dataset,
        collate=loader.collate_fn,
        items_are_batches=alone,
        shuffled=None if alone else shuffled,  # what it says of items says nothing of the rows in them
        once=once,
        expected=None if alone else expected,
        num_replicas=replicas,
        droppable=_droppable(dataset if expected is None else expected, loader.batch_sampler),
        num_workers=loader.num_workers,
    )


def _droppable(samples: Any, batcher: Any) -> int:
    size = getattr(batcher, "batch_size", None)
    if getattr(batcher, "drop_last", False) is not True or not isinstance(size, int) or size < 1 or samples is None:
        return 0
    return len(samples) % size
