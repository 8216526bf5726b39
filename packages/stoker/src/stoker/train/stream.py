"""Stream: what a trainer asks of its batches, whatever they come from.

All questions to the iterable are asked here: a `Feed` answers all of them, a DataLoader, a list or a generator some. Where an iterable
cannot answer, the answer is None.

A stream whose batches have a state is saved and resumed where it is. From any other iterable as many batches are taken as had been
taken before, which is exact where the iterable gives the same ones again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain, islice
from typing import Any

import torch

from stoker._batch import map_tensors, tensors_of, to_device
from stoker._clock import Spans
from stoker.errors import CheckpointInvalidError, OptionError, StokerError, TrainError
from stoker.feed.feed import Feed
from stoker.train import state_dict

_SETTINGS = ("batch_size", "drop_last", "collate_fn", "dataset", "sampler")
"""Attributes of a DataLoader that decide what its batches are."""
_MOST_TENSORS = 64


class Stream:
    """The batches of a training run, or of an evaluation.

    Args:
        batches: A `Feed`, a DataLoader, a list, a generator or another iterable.
        device: The device of the model.

    Raises:
        OptionError: `batches` is not iterable.

    Example:
        >>> stream = Stream([{"x": torch.zeros(2)}, {"x": torch.ones(2)}])
        >>> stream.num_batches, stream.keeps_state, stream.state()
        (2, False, None)
    """

    def __init__(self, batches: Iterable[Any], device: torch.device | None = None) -> None:
        if not isinstance(batches, Iterable):
            raise OptionError.expected("batches", batches, "a feed, a DataLoader or another iterable")
        self.batches: Any = batches
        self.keeps_state = hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict")
        self.can_capture: bool = getattr(batches, "can_capture", hasattr(batches, "captured"))
        """Whether `captured` of the batches may work."""
        self.digest: str | None = getattr(getattr(batches, "store", None), "digest", None)
        """The digest of the data."""
        self.micro_batches: int | None = getattr(batches, "micro_batches", None)
        """Batches per update, of all ranks, where a feed has a global batch."""
        self.batches_per_update: int = getattr(batches, "batches_per_update", None) or 1
        """Those of this rank, where a feed has a global batch."""
        self.pacing: Spans = getattr(batches, "pacing", None) or Spans(capacity=1)
        """Time for which a feed waited for a GPU that had batches enough, with the next one ready."""
        self.needs_placing = device is None or getattr(batches, "device", None) != device
        """Whether batches may be on another device than the model; those of a feed on the same device are not."""
        self._device = device
        self._begun: Iterator[Any] | None = None
        """The first epoch, where `peek` has begun it."""
        self._skip = 0

    @property
    def num_batches(self) -> int | None:
        """Batches per epoch, on this rank."""
        try:
            return len(self.batches) if isinstance(self.batches, Sized) else None
        except TypeError:  # a DataLoader of an iterable dataset has a __len__ that fails
            return None

    def num_updates(self, accumulate: int, epochs: int) -> int | None:
        """Updates of `epochs` epochs."""
        num_batches = self.num_batches
        return None if num_batches is None else -(-num_batches // accumulate) * epochs

    def identity(self) -> Mapping[str, Any]:
        """What the batches depend on, besides the position."""
        if hasattr(self.batches, "identity"):
            identity: Mapping[str, Any] = self.batches.identity()
            return identity
        # The settings of a DataLoader, and the first batch of a sequence.
        settings = {
            "type": self.batches,
            **{name: getattr(self.batches, name) for name in _SETTINGS if hasattr(self.batches, name)},
        }
        if isinstance(self.batches, Sequence) and len(self.batches):
            settings |= {"length": len(self.batches), "first": tensors_of(self.batches[0])[:_MOST_TENSORS]}
        return settings

    def place(self, batch: Any) -> Any:
        """The batch on the device of the model."""
        return batch if self._device is None or not self.needs_placing else to_device(batch, self._device)

    # ---- passes ----

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be over this epoch."""
        sampler: Any = getattr(self.batches, "sampler", None)
        for counter in (self.batches, sampler):  # DistributedSampler needs it
            if hasattr(counter, "set_epoch"):
                counter.set_epoch(epoch)

    def peek(self, count: int) -> list[Any]:
        """The first batches on the device, for measurements. The batches that follow are the same as without it.

        Batches with a state are read ahead and put back. Of any other, the first one alone is taken, by the iterator of the
        first epoch itself, which the training then continues: its random numbers and those of its dataset are drawn as if
        nothing had been measured.
        """
        if self.keeps_state:
            state, random = self.state(), state_dict.capture()
            iterator = iter(self.batches)
            first = _copies(islice(iterator, count))
            if hasattr(iterator, "close"):
                iterator.close()
            self.batches.load_state_dict(state)
            state_dict.restore(random)
        else:
            self.set_epoch(0)
            iterator = iter(self.batches)
            taken = list(islice(iterator, 1))
            self._begun = chain(taken, iterator)
            first = _copies(taken)
        if not first:
            raise TrainError("there is no batch to train on: the iterable is empty.")
        return [self.place(batch) for batch in first]

    def passes(self, source: Callable[[Iterable[Any]], Iterator[Any]]) -> Iterator[Any]:
        """One pass over (the rest of) an epoch, as `source` makes it from the batches."""
        entries = source(self.batches if self._begun is None else self._begun)
        self._begun = None
        if self._skip:
            entries, self._skip = islice(entries, self._skip, None), 0
        return entries

    def prefetch_next_epoch(self) -> None:
        """Begin to make the batches of the next epoch, where they come from a feed."""
        if isinstance(self.batches, Feed):
            self.batches.prefetch_next_epoch()

    def close(self) -> None:
        """Give up batches that were made for an epoch that does not come."""
        if isinstance(self.batches, Feed):
            self.batches.drop_prefetched_epoch()

    # ---- positions ----

    def state(self) -> Any:
        """The position, after the batches that were given out."""
        return self.batches.state_dict() if self.keeps_state else None

    def resume(self, state: Any, *, taken: int) -> None:
        """Continue where a state was saved; without one, skip as many batches as had been taken."""
        if state is None or not self.keeps_state:
            self._skip = taken
            return
        try:
            self.batches.load_state_dict(state)
        except StokerError:
            raise
        except Exception as error:  # other loaders may refuse a state with any error
            reason = " ".join(str(error).split())[:200]
            raise CheckpointInvalidError(f"the batches refuse their saved state ({type(error).__name__}: {reason}).") from error

    def batches_taken(self, saved: int) -> int:
        """Batches of this epoch that this rank would have taken; `saved` are those of a rank of the run that was saved."""
        position = self.state()["position"]  # only a feed has a global batch
        return -(-position // self.batches.global_batch_size) * self.batches_per_update if position else saved

    def is_done(self, state: Any, taken: int) -> bool:
        """Whether a pass that began at `state` has given out all batches of its epoch, `taken` of them."""
        if not taken:
            return False
        now = self.state()
        if isinstance(now, dict) and isinstance(state, dict) and "epoch" in now:
            return bool(now["epoch"] != state["epoch"])
        return self.num_batches == taken

    def state_after(self, state: Any, taken: int) -> Any:
        """The state of a pass that began at `state` and has given out `taken` batches."""
        return self.batches.state_after(state, taken) if state is not None and hasattr(self.batches, "state_after") else None

    def blame(self, state: Any, first: int, count: int) -> str:
        """Where some batches of a pass come from: the samples with non-finite values if there are any, else all of them."""
        name = f"batch {first:,} of the pass" if count == 1 else f"batches {first:,} to {first + count - 1:,} of the pass"
        knows_origin = state is not None and hasattr(self.batches, "origin")
        return f"{name}: {self.batches.origin(state, first, count)}" if knows_origin else name


def _copies(batches: Iterable[Any]) -> list[Any]:
    """Copies, as a loader may write over a batch with the next one."""
    return [map_tensors(batch, torch.clone) for batch in batches]
