"""A drop-in for the authors' `TimeMoEWindowDataset`: the same samples bit for bit, gathered a batch at a time.

    from stoker.recipes.time_moe import Dataset
    dataset = Dataset("time300b/", context_length=2048, normalization_method="zero")
    Trainer(..., train_dataset=dataset, data_collator=dataset.collate)

Length, keys, types and numbering are the authors', so the same sampler with the same seed gives the same order. Folders come
sorted, where the authors' order is that of the file system.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.errors import OptionError
from stoker.recipes.time_moe.folder import open_corpus
from stoker.recipes.time_moe.samples import CompatSamples, Method

if TYPE_CHECKING:
    import torch

METHODS: dict[str | None, Method] = {None: "none", "none": "none", "zero": "zero", "max": "max"}


class Together(Sequence[dict[str, Any]]):
    """Samples that were gathered together: a sequence of samples, and the batch they are."""

    def __init__(self, batch: dict[str, torch.Tensor], size: int) -> None:
        self.batch = batch
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self._size):
            yield {name: rows[number] for name, rows in self.batch.items()}


class Dataset:
    """Windows of `context_length + prediction_length` points: `input_ids` and `labels` (float32), `loss_masks` (int32).

    `path` is anything that `open_corpus` takes: a tree of the authors' folders and files, one of them, or a store. What is left out
    of a tree is a Python warning.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        context_length: int,
        prediction_length: int = 0,
        stride: int | None = None,
        normalization_method: str | None = None,
        **ignored: Any,
    ) -> None:
        if callable(normalization_method) or normalization_method not in METHODS:
            raise OptionError(
                f"normalization_method is {normalization_method!r}; expected 'zero', 'max', 'none' or None. "
                f"For a function of your own, pack series that it has been applied to."
            )
        if set(ignored) - {"shuffle"}:  # the authors' class takes, and ignores, everything
            raise OptionError(f"Dataset has no option {min(set(ignored) - {'shuffle'})!r}.")
        self._given = (path, context_length, prediction_length, stride, normalization_method)
        self._samples = CompatSamples(
            open_corpus(path), context_length + prediction_length, stride=stride, method=METHODS[normalization_method]
        )

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sample: dict[str, torch.Tensor] = self.__getitems__([index])[0]
        return sample

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return (self[index] for index in range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> Together:
        """Many samples at once."""
        numbers = np.asarray(indices, dtype=np.int64)
        bad = numbers[(numbers < 0) | (numbers >= len(self))]
        if len(bad):
            raise IndexError(f"there are {len(self):,} windows; there is no window {bad[0]:,}.")
        return Together(self._samples.gather(numbers), len(numbers))

    @staticmethod
    def collate(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The batch that was gathered, or one stacked from single samples."""
        if isinstance(samples, Together):
            return samples.batch
        import torch

        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}

    def __reduce__(self) -> tuple[Any, ...]:
        """Worker processes open the data themselves: only its path travels."""
        return type(self), self._given
