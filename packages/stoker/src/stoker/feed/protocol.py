"""BatchSource: the contract between a trainer and what gives it batches.

Where an iterable cannot answer, the answer is None. `as_batch_source` gives a source for any iterable: a `Feed` is one itself, a
DataLoader, a list or a generator is wrapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch

from stoker._batch import map_tensors, tensors_of
from stoker.errors import FeedError, OptionError

_SETTINGS = ("batch_size", "drop_last", "collate_fn", "dataset", "sampler")
"""Attributes of a DataLoader that decide what its batches are."""

_MOST_TENSORS = 64


@runtime_checkable
class BatchSource(Protocol):
    """Batches, and what a trainer asks about them."""

    @property
    def num_batches(self) -> int | None:
        """Batches per epoch, on this rank; None where unknown."""

    @property
    def device(self) -> torch.device | None:
        """The device of all tensors; None where unknown."""

    @property
    def keeps_state(self) -> bool:
        """Whether `state_dict` and `load_state_dict` work."""

    @property
    def can_capture(self) -> bool:
        """Whether `captured` may work."""

    @property
    def digest(self) -> str | None:
        """The digest of the data; None where unknown."""

    def __iter__(self) -> Iterator[Any]:
        """The batches of the rest of an epoch after `load_state_dict`, otherwise of a whole one."""

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be over this epoch."""

    def state_dict(self) -> Any:
        """The position, after the batches that were given out; None where there is no state."""

    def load_state_dict(self, state: Any) -> None:
        """Continue where the state was saved."""

    def state_after(self, state: Any, batches: int) -> Any:
        """The state of a pass that began at `state` and has given out `batches` batches; None where unknown."""

    def origin(self, state: Any, first: int, count: int = 1) -> str | None:
        """Where `count` batches from batch `first` of a pass that began at `state` come from; None where unknown."""

    def identity(self) -> Mapping[str, Any]:
        """What the batches depend on, besides the position."""

    def captured(self) -> Any:
        """Batches that a CUDA graph gathers; see `stoker.feed.device.Captured`."""


class _IterableSource:
    """Any iterable as a BatchSource. All questions to the iterable are asked here: it may have each of the members or not."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches
        self.device: torch.device | None = getattr(batches, "device", None)
        self.keeps_state = hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict")
        self.can_capture = hasattr(batches, "captured")
        self.digest: str | None = getattr(getattr(batches, "store", None), "digest", None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    @property
    def num_batches(self) -> int | None:
        try:
            return len(self.batches) if isinstance(self.batches, Sized) else None
        except TypeError:  # a DataLoader of an iterable dataset has a __len__ that fails
            return None

    def set_epoch(self, epoch: int) -> None:
        sampler: Any = getattr(self.batches, "sampler", None)
        for one in (self.batches, sampler):  # DistributedSampler needs it
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    def state_dict(self) -> Any:
        return self.batches.state_dict() if self.keeps_state else None  # type: ignore[attr-defined]

    def load_state_dict(self, state: Any) -> None:
        if not self.keeps_state:
            raise FeedError(f"{type(self.batches).__name__} has no state_dict() and load_state_dict(), so it cannot be resumed.")
        self.batches.load_state_dict(state)  # type: ignore[attr-defined]

    def state_after(self, state: Any, batches: int) -> Any:
        return self.batches.state_after(state, batches) if hasattr(self.batches, "state_after") else None

    def origin(self, state: Any, first: int, count: int = 1) -> str | None:
        return self.batches.origin(state, first, count) if hasattr(self.batches, "origin") else None

    def identity(self) -> Mapping[str, Any]:
        batches: Any = self.batches
        if hasattr(batches, "identity"):
            found: Mapping[str, Any] = batches.identity()
            return found
        # The settings of a DataLoader, and the first batch of a sequence.
        settings = {"type": batches, **{name: getattr(batches, name) for name in _SETTINGS if hasattr(batches, name)}}
        if isinstance(batches, Sequence) and len(batches):
            settings |= {"length": len(batches), "first": tensors_of(batches[0])[:_MOST_TENSORS]}
        return settings

    def captured(self) -> Any:
        return self.batches.captured() if self.can_capture else None  # type: ignore[attr-defined]


def as_batch_source(batches: Iterable[Any]) -> BatchSource:
    """A source of these batches: the iterable itself if it implements `BatchSource`, otherwise a wrapper.

    Args:
        batches: A `Feed`, a DataLoader, a list, a generator or another iterable.

    Raises:
        OptionError: `batches` is not iterable.

    Example:
        >>> source = as_batch_source([{"x": torch.zeros(2)}, {"x": torch.ones(2)}])
        >>> source.num_batches, source.keeps_state, source.state_dict()
        (2, False, None)
    """
    if not isinstance(batches, Iterable):
        raise OptionError(f"the batches are {batches!r}; expected a feed, a DataLoader or another iterable.", parameter="batches")
    return batches if isinstance(batches, BatchSource) else _IterableSource(batches)


def copy_first_batches(source: BatchSource, count: int) -> list[Any]:
    """Copies of the first batches of the next pass, which is then closed. A loader may write over a batch with the next one."""
    iterator = iter(source)
    found = [map_tensors(batch, torch.clone) for batch in islice(iterator, count)]
    if hasattr(iterator, "close"):
        iterator.close()
    return found
