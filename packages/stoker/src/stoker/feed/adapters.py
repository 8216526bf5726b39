"""Adapters: a feed as what DataLoader and the frameworks around it expect.

OrderSampler     the order of a feed as a torch sampler, by which frameworks set the epoch
SampleDataset    the samples of a feed as a map-style dataset

`Feed` makes both, so the type of their feeds is not imported here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler

from stoker._types import Array
from stoker.errors import FeedError, OptionError
from stoker.feed.categories import share_categories
from stoker.feed.columns import lengths_of
from stoker.feed.gather import HostGather, Ring
from stoker.feed.mixture import MixtureGather, join_columns
from stoker.feed.padding import Assembler
from stoker.feed.transform import as_tensors, rng_parameter
from stoker.sampling.mixture import JoinedSamples
from stoker.sampling.views import Lengths, Samples, Sequences
from stoker.store.opening import open_store
from stoker.store.remote import RemoteStore
from stoker.store.store import Store

AT_ONCE = 4096


class OrderSampler(Sampler[int]):
    """The numbers of an epoch's samples, of all ranks together, in the order of the feed; the same ones until `set_epoch`."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    def __len__(self) -> int:
        return int(self._feed.num_samples)

    def __iter__(self) -> Iterator[int]:
        plan, epoch = self._feed.plan, self._feed.epoch
        for start in range(0, plan.num_positions, AT_ONCE):
            yield from plan.numbers(epoch, start, min(start + AT_ONCE, plan.num_positions)).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Set that of the feed; warns where that skips the rest of an epoch that a loaded state continues."""
        feed = self._feed
        if feed.is_resumed and epoch != feed.epoch:
            warnings.warn(
                f"a state was loaded that continues epoch {feed.epoch:,}, but the framework sets the feed to epoch {epoch:,}: "
                f"the rest of that epoch is left out. Let the framework's own checkpoint load the state of the feed.",
                stacklevel=2,
            )
        feed.set_epoch(epoch)


# Samples as a map-style dataset: for `DataLoader`, and for HF Trainer, Accelerate and Lightning, which build on it.
#
# The loader decides the order; a batch is still gathered at once, by `__getitems__`. Give `collate` to the loader so that
# what was gathered together is not taken apart and stacked again. Worker processes may be forked or spawned: each opens its
# own memory, and a store on disk travels as its path.

Sample = dict[str, torch.Tensor]

KEPT_SLOTS = 4


class GatheredSamples(Sequence[Sample]):
    """Samples that were gathered together: a sequence of samples, and the batch they are."""

    def __init__(self, batch: Sample, size: int) -> None:
        self.batch = batch
        self._size = size

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _samples(self) -> list[Sample]:
        """Taken apart once: collators of other libraries go through the samples for each name."""
        rows = zip(*(tensor.unbind() for tensor in self.batch.values()), strict=True)
        return [dict(zip(self.batch, row, strict=True)) for row in rows]

    def __getitem__(self, index: Any) -> Any:
        return self._samples[index]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)


def _refusal(feed: Any) -> str | None:
    """Why samples of this feed cannot be made without their epoch and position."""
    if isinstance(feed.view, Sequences) and feed.view.keep == "random":
        return "keep='random' takes other steps of a series in every epoch"
    if feed.transform is not None and rng_parameter(feed.transform) is not None:
        return "transform takes a generator that depends on epoch and position"
    return "OnDevice(…) gets batches of a position" if feed.device_transform is not None else None


def _opener(store: Store) -> Callable[[], Store] | None:
    """What opens the store again in another process; None in memory."""
    if isinstance(store, RemoteStore):
        return store.opener
    return None if store.path is None else partial(_open_again, store.path, store.digest)


def _open_again(path: Path, digest: str | None) -> Store:
    """The store as another process has opened it."""
    store = open_store(path)
    if store.digest != digest:
        raise FeedError(f"{path} was replaced or appended to since the feed was made. Make the feed again.")
    return store


class SampleDataset(torch.utils.data.Dataset[Sample]):
    """The samples of a feed by their numbers, on the CPU; `transform` of the feed applies, its order does not.

    `dataset[7]` is a sample; `dataset[[7, 3]]` and `dataset[3:8]` are batches.
    """

    def __init__(self, feed: Any) -> None:
        if feed.is_packed:
            raise OptionError(
                "a packed batch cannot be taken apart into samples. Use Sequences(layout='padded') for a dataset.",
                parameter="layout",
            )
        self._name = feed.store.name
        self._openers = [_opener(store) for store in feed.stores]
        self._digests = [store.digest for store in feed.stores]
        self._categories = feed.categories
        self._files = feed.shards()
        self._subsets = feed.subsets
        self._samples = feed.samples
        self._assemble: Assembler = feed.assembler(marks_valid=False)
        self._transform = feed.transform
        self._is_remote = feed.is_remote
        self._refusal = _refusal(feed)
        self._opened: tuple[int, HostGather] | None = None

    def __len__(self) -> int:
        return int(self._samples.num_samples)

    def __getitem__(self, index: Any) -> Sample:
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self)))).batch
        if np.ndim(index):
            return self.__getitems__(index).batch
        sample: Sample = self.__getitems__([index])[0]
        return sample

    def __getitems__(self, indices: Any) -> GatheredSamples:
        """Many samples at once."""
        if self._refusal is not None:
            raise FeedError(f"{self._refusal}, which samples of a dataset do not have. Iterate over the feed itself.")
        numbers = self._checked(np.asarray(indices))
        size = len(numbers)
        gather = self._open()
        try:
            gathered = gather.gather(numbers, size, gather.locate(numbers))
            try:
                batch = gather.assemble(gathered.tensors(), size)
            finally:
                gather.release(gathered)
            if self._transform is not None:
                batch = as_tensors(self._transform({name: tensor.numpy() for name, tensor in batch.items()}))
                for name, tensor in batch.items():
                    if not tensor.dim() or len(tensor) != size:
                        raise FeedError(
                            f"transform returned {name!r} of shape {list(tensor.shape)} for {size:,} samples; a dataset needs one row "
                            f"per sample. Use the feed itself, or give each sample its row."
                        )
            return GatheredSamples(batch, size)
        except Exception as error:
            error.add_note(f"while gathering {size:,} samples of {gather.origin(numbers)}")
            raise

    @staticmethod
    def collate(samples: Sequence[Sample]) -> Sample:
        """The batch that was gathered, or one stacked from single samples and padded with zeros where they differ in length."""
        if isinstance(samples, GatheredSamples):
            return samples.batch
        batch = {}
        for name in samples[0]:
            tensors = [sample[name] for sample in samples]
            same_shape = all(tensor.shape == tensors[0].shape for tensor in tensors)
            batch[name] = torch.stack(tensors) if same_shape else pad_sequence(tensors, batch_first=True)
        return batch

    def _checked(self, indices: Array) -> Array:
        if indices.ndim != 1 or (len(indices) and indices.dtype.kind not in "iu"):
            raise OptionError(
                f"samples of {self._name} are numbered from 0 to {len(self) - 1:,}; found an index of type {indices.dtype} and "
                f"shape {list(indices.shape)}. Give an integer, or a list of them.",
                parameter="index",
            )
        bad = np.flatnonzero((indices < -len(self)) | (indices >= len(self)))
        if len(bad):
            raise IndexError(f"{self._name} has {len(self):,} samples; there is no sample {indices[bad[0]]:,}.")
        numbers = indices.astype(np.int64)
        numbers[numbers < 0] += len(self)
        return numbers

    def _open(self) -> HostGather:
        """What gathers in this process: a fork may have copied a lock that is held, and slots that the parent uses."""
        if self._opened is None or self._opened[0] != os.getpid():
            ring = Ring(pinned=False, keep=KEPT_SLOTS)
            kind = HostGather if len(self._openers) == 1 else MixtureGather
            gather = kind(self._assemble, self._samples, ring, files=self._files, is_remote=self._is_remote)
            self._opened = os.getpid(), gather
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_opened": None}
        if None not in self._openers:
            empty, nowhere = np.empty(0), Lengths(num_series=0, num_steps=0)
            pieces = zip(*(column.pieces for column in self._assemble.columns), strict=True)
            columns = [
                [replace(piece, values=empty.astype(piece.values.dtype), lengths=nowhere) for piece in fed] for fed in pieces
            ]
            state |= {"_samples": None, "_assemble": replace(self._assemble, columns=[]), "_columns": columns}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("_columns", None)
        self.__dict__.update(state)
        if saved is None:
            return
        view = self._assemble.view
        stores, parts, columns, spaces = [], [], [], []
        for opener, digest, subset, fed in zip(self._openers, self._digests, self._subsets, saved, strict=True):
            store = opener()  # type: ignore[misc]
            if store.digest != digest:
                raise FeedError(
                    f"{store.name} was packed again since the feed was made from it. Make the feed and its dataset again."
                )
            lengths = lengths_of(store, view)
            columns.append([replace(column, values=store.mapped(column.name), lengths=lengths) for column in fed])
            samples: Samples = view.over(lengths)
            parts.append(samples if subset is None else subset.over(samples))
            stores.append(store)
            spaces.append(lengths)
        columns, _ = share_categories(stores, columns, self._categories)
        self._assemble = replace(self._assemble, columns=columns[0] if len(stores) == 1 else join_columns(stores, columns))
        self._samples = parts[0] if len(stores) == 1 else JoinedSamples(parts, spaces, view)
