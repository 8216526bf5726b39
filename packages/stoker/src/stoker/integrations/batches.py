"""A feed whose batches are converted: the base of the adapters that change the form of batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from stoker.errors import OptionError
from stoker.feed.feed import Feed
from stoker.sampling.views import Windows

Batch = dict[str, torch.Tensor]


class ConvertedBatches(ABC):
    """Iterates over a feed and converts each batch. Length, epoch and state are those of the feed, so a library that saves the state
    of its loader resumes at the next batch.

    Args:
        feed: A feed of `Windows` with a horizon.
    """

    def __init__(self, feed: Feed) -> None:
        if not isinstance(feed.view, Windows) or not feed.view.horizon:
            raise OptionError(f"the feed has the view {feed.view}; expected Windows(length, horizon=N).", parameter="horizon")
        if feed.last_batch == "pad":
            raise OptionError(
                "the feed pads its last batch, whose empty rows a loss would count. Use last_batch='drop' or 'short'.",
                parameter="last_batch",
            )
        if feed.samples.padded:
            raise OptionError("windows of this feed may be padded. Use Windows(..., tail='drop').", parameter="tail")
        self.feed = feed
        self.length, self.horizon = feed.view.length, feed.view.horizon

    @abstractmethod
    def convert(self, batch: Batch) -> Any:
        """The batch in the form of the library."""

    def check_columns(self, *names: str) -> None:
        """Refuse names that the feed has no column of."""
        known = [column.name for column in self.feed.columns]
        for name in names:
            if name not in known:
                raise OptionError(f"the feed has no column {name!r}; it has {', '.join(known)}.", parameter="feed")

    def __iter__(self) -> Iterator[Any]:
        return map(self.convert, self.feed)

    def __len__(self) -> int:
        return len(self.feed)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be over this epoch."""
        self.feed.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the feed."""
        return self.feed.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was saved."""
        self.feed.load_state_dict(state)
