"""Order sampler: the order of a feed for loaders that take numbers of samples, and the handle by which frameworks set the epoch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.utils.data import Sampler

if TYPE_CHECKING:
    from stoker.feed.feed import Feed

AT_ONCE = 4096


class OrderSampler(Sampler[int]):
    """The numbers of an epoch's samples, of all ranks together, in the order of the feed; the same ones until `set_epoch`."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __len__(self) -> int:
        return self._feed.num_samples

    def __iter__(self) -> Iterator[int]:
        plan, epoch = self._feed.plan, self._feed.epoch
        for start in range(0, plan.num_positions, AT_ONCE):
            yield from plan.numbers(epoch, start, min(start + AT_ONCE, plan.num_positions)).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Set that of the feed; warns where that leaves out the rest of an epoch that a loaded state would go on with."""
        feed = self._feed
        if feed.is_resumed and epoch != feed.epoch:
            warnings.warn(
                f"a state was loaded that goes on with epoch {feed.epoch:,}, but the framework sets the feed to epoch {epoch:,}: "
                f"the rest of that epoch is left out. Let the framework's own checkpoint load the state of the feed.",
                stacklevel=2,
            )
        feed.set_epoch(epoch)
