"""Samples as a map-style dataset: for `DataLoader`, and for HF Trainer, Accelerate and Lightning, which build on it.

The loader decides the order; a batch is still gathered at once, by `__getitems__`. Give `collate` to the loader so that
what was gathered together is not taken apart and stacked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stoker.feed.host import HostGather
from stoker.feed.layout import Finish
from stoker.feed.slots import Ring

if TYPE_CHECKING:
    from stoker.feed.feed import Feed

Sample = dict[str, torch.Tensor]


class Together(Sequence[Sample]):
    """Samples that were gathered together: a sequence of samples, and the batch they are."""

    def __init__(self, batch: Sample, size: int) -> None:
        self.batch = batch
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        return {name: tensor[range(self._size)[index]] for name, tensor in self.batch.items()}

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(self._size))


class SampleDataset(torch.utils.data.Dataset[Sample]):
    """The samples of a feed by their numbers, on the CPU. Holds no open thread, so worker processes may fork it."""

    def __init__(self, feed: Feed) -> None:
        if feed.is_packed:
            from stoker.errors import OptionError

            raise OptionError("a packed batch cannot be taken apart into samples. Use Sequences(layout='padded') for a dataset.")
        finish = Finish(view=feed.view, columns=tuple(feed.columns), padded=feed.samples.padded, marks_valid=False)
        self._finish = finish
        self._num_samples = feed.samples.num_samples
        self._gather = HostGather(
            feed.view, feed.samples, feed.columns, Ring(pinned=False, keep=4), numbers=feed.has_numbers, files=feed.shards()
        )
        self._name = feed.store.name

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]  # type: ignore[no-any-return]

    def __getitems__(self, indices: Sequence[int]) -> Together:
        """Many samples at once."""
        numbers = np.asarray(indices, dtype=np.int64).reshape(-1)
        numbers = np.where(numbers < 0, numbers + self._num_samples, numbers)
        bad = np.flatnonzero((numbers < 0) | (numbers >= self._num_samples))
        if len(bad):
            raise IndexError(f"{self._name} has {self._num_samples:,} samples; there is no sample {list(indices)[bad[0]]:,}.")
        gathered = self._gather.gather(numbers, len(numbers))
        try:
            return Together(self._finish(gathered.tensors(), len(numbers)), len(numbers))
        finally:
            self._gather.release(gathered)

    @staticmethod
    def collate(samples: Sequence[Sample]) -> Sample:
        """The batch that was gathered, or one stacked from single samples."""
        if isinstance(samples, Together):
            return samples.batch
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
