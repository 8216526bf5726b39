"""The stream of training batches: a `BatchSource`, placed on the device of the model, read ahead for measurements, and resumed.

A source with a state is saved and resumed where it is. From any other iterable as many batches are taken as had been taken before,
which is exact where the iterable gives the same ones again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch

from stoker._batch import map_tensors, to_device
from stoker.errors import CheckpointInvalidError, StokerError, TrainError
from stoker.feed.protocol import as_batch_source, copy_first_batches
from stoker.train import state_dict


class Stream:
    """The training batches. `source` answers questions about them (see `BatchSource`)."""

    def __init__(self, batches: Iterable[Any], device: torch.device) -> None:
        self.source = as_batch_source(batches)
        self.batches = batches
        self._device = device
        self._begun: Iterator[Any] | None = None
        """The first epoch, where `peek` has begun it."""
        self._skip = 0

    def num_updates(self, accumulate: int, epochs: int) -> int | None:
        """Updates of `epochs` epochs; None where the length of an epoch is unknown."""
        num_batches = self.source.num_batches
        return None if num_batches is None else -(-num_batches // accumulate) * epochs

    def peek(self, count: int) -> list[Any]:
        """The first batches on the device, for measurements. The batches that follow are the same as without it.

        A source with a state is read ahead and put back. Of any other, the first batch alone is taken, by the iterator of the
        first epoch itself, which the training then continues: its random numbers and those of its dataset are drawn as if
        nothing had been measured.
        """
        if self.source.keeps_state:
            state, random = self.state(), state_dict.capture()
            found = copy_first_batches(self.source, count)
            self.source.load_state_dict(state)
            state_dict.restore(random)
        else:
            self.set_epoch(0)
            iterator = iter(self.batches)
            first = list(islice(iterator, 1))
            self._begun = chain(first, iterator)
            found = [map_tensors(batch, torch.clone) for batch in first]
        if not found:
            raise TrainError("there is no batch to train on: the iterable is empty.")
        return [self.place(batch) for batch in found]

    def passes(self, source: Callable[[Iterable[Any]], Iterator[Any]]) -> Iterator[Any]:
        """One pass over (the rest of) an epoch, as `source` makes it from the batches."""
        entries = source(self.batches if self._begun is None else self._begun)
        self._begun = None
        if self._skip:
            entries, self._skip = islice(entries, self._skip, None), 0
        return entries

    def place(self, batch: Any) -> Any:
        """The batch on the device of the model."""
        return to_device(batch, self._device)

    @property
    def needs_placing(self) -> bool:
        """Whether batches may be on another device than the model; those of a feed on the same device are not."""
        return self.source.device != self._device

    def state(self) -> Any:
        """The position of the source, if it has a state."""
        return self.source.state_dict()

    def resume(self, state: Any, *, taken: int) -> None:
        """Continue where a state was saved; a source without one skips as many batches as had been taken."""
        if state is None or not self.source.keeps_state:
            self._skip = taken
            return
        try:
            self.source.load_state_dict(state)
        except StokerError:
            raise
        except Exception as error:  # other loaders may refuse a state with any error
            reason = " ".join(str(error).split())[:200]
            raise CheckpointInvalidError(f"the batches refuse their saved state ({type(error).__name__}: {reason}).") from error

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a sampler that shuffles by epoch. A source with a state counts epochs itself."""
        if not self.source.keeps_state:
            self.source.set_epoch(epoch)

    def is_done(self, state: Any, taken: int) -> bool:
        """Whether a pass that began at `state` has given out all batches of its epoch, `taken` of them."""
        if not taken:
            return False
        now = self.state()
        if isinstance(now, dict) and isinstance(state, dict) and "epoch" in now:
            return bool(now["epoch"] != state["epoch"])
        return self.source.num_batches == taken

    def state_after(self, state: Any, taken: int) -> Any:
        """The state of a pass that began at `state` and has given out `taken` batches; None where unknown."""
        return self.source.state_after(state, taken) if state is not None else None

    def blame(self, state: Any, first: int, count: int) -> str:
        """Where some batches of a pass come from: the samples with non-finite values if there are any, else all of them."""
        name = f"batch {first:,} of the pass" if count == 1 else f"batches {first:,} to {first + count - 1:,} of the pass"
        origin = self.source.origin(state, first, count) if state is not None else None
        return name if origin is None else f"{name}: {origin}"
