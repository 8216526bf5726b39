"""Inputs and targets as pairs: for skorch, scikit-learn, and other libraries that take `(x, y)`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stoker._types import Array
from stoker.errors import OptionError
from stoker.feed.feed import Feed


class PairDataset(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The samples of a feed as `(x, y)`, by their index. skorch takes it as the `X` of `fit`, with `y=None`.

    Args:
        feed: A feed; its order does not matter.
        x: The entry of a batch that is the input.
        y: The entry that is the target.

    Raises:
        OptionError: Samples have no such entry.

    Example:
        >>> net = skorch.NeuralNetRegressor(model, max_epochs=3, train_split=None)  # doctest: +SKIP
        >>> net.fit(PairDataset(feed, x="load", y="load_target"), y=None)  # doctest: +SKIP
    """

    def __init__(self, feed: Feed, *, x: str, y: str) -> None:
        self._samples, self._names = feed.as_dataset(), (x, y)
        known = self._samples[0]
        for name in self._names:
            if name not in known:
                raise OptionError(f"samples of the feed have no entry {name!r}; they have {', '.join(known)}.", column=name)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, torch.Tensor]:
        sample = self._samples[index]
        return sample[self._names[0]], sample[self._names[1]]

    def __getitems__(self, indices: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Many samples, gathered at once."""
        x, y = self[indices]
        return list(zip(x, y, strict=True))


def to_arrays(feed: Feed, *, x: str, y: str) -> tuple[Array, Array]:
    """All samples of a feed as two arrays in the order of their indices, for estimators of scikit-learn.

    Args:
        feed: A feed; its order does not matter.
        x: The entry that is the input. Steps and columns become one row per sample.
        y: The entry that is the target.

    Returns:
        `X`, two-dimensional, and `y`.

    Raises:
        OptionError: Samples have no such entry.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(load=[np.arange(6.0)])
        >>> X, y = to_arrays(stoker.Feed(store, stoker.Windows(4, horizon=1, tail="drop"), batch_size=2), x="load", y="load_target")
        >>> X.shape, y.tolist()
        ((2, 4), [[4.0], [5.0]])
    """
    inputs, targets = PairDataset(feed, x=x, y=y)[:]
    return np.asarray(inputs).reshape(len(inputs), -1), np.asarray(targets)
