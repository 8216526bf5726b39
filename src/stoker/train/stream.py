"""The stream of batches: any iterable, with what a training asks of it beyond its batches.

A feed, or another loader with `state_dict` and `load_state_dict`, is saved and resumed where it is. Of any other iterable, as many
batches as had been taken are taken again, which is exact where the iterable gives the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import chain, islice
from typing import Any

import torch

from stoker._batch import map_tensors, to_device
from stoker.errors import CheckpointInvalidError, OptionError, StokerError, TrainError
from stoker.train import state_dict


class Stream:
    """The training batches."""

    def __init__(self, batches: Iterable[Any], device: torch.device) -> None:
        if not isinstance(batches, Iterable):
            raise OptionError(f"the batches are {batches!r}; expected a feed, a DataLoader or another iterable.")
        self.batches = batches
        self._device = device
        self._keeps_state = hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict")
        self._begun: Iterator[Any] | None = None
        """The first epoch, where `peek` has begun it."""
        self._skip = 0

    def num_updates(self, accumulate: int, epochs: int) -> int | None:
        """Updates of so many epochs; None where nobody can know."""
        try:
            return -(-len(self.batches) // accumulate) * epochs if isinstance(self.batches, Sized) else None
        except TypeError:  # a DataLoader of an iterable dataset has a length that it cannot tell
            return None

    def peek(self, count: int) -> list[Any]:
        """The first batches on the device, for measurements; nothing that follows is different for it.

        An iterable with a state is read ahead and put back. Of any other, the first batch alone is taken, by the iterator of
        the first epoch itself, which the training then continues: its random numbers and those of its dataset are drawn
        as if nothing had been measured.
        """
        if self._keeps_state:
            state, random = self.state(), state_dict.capture()
            iterator = iter(self.batches)
            found = [map_tensors(batch, torch.clone) for batch in islice(iterator, count)]
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
            self.batches.load_state_dict(state)  # type: ignore[attr-defined]
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

    def passes(self, source: Any) -> Iterator[Any]:
        """One pass over (the rest of) an epoch, from what a `source` makes of the batches."""
        entries: Iterator[Any] = source(self.batches if self._begun is None else self._begun)
        self._begun = None
        if self._skip:
            entries, self._skip = islice(entries, self._skip, None), 0
        return entries

    def place(self, batch: Any) -> Any:
        """The batch on the device of the model."""
        return to_device(batch, self._device)

    @property
    def needs_placing(self) -> bool:
        """Whether batches may be elsewhere than the model: a feed on the same device never is."""
        found = getattr(self.batches, "device", None)
        return found != self._device

    def state(self) -> Any:
        """Where the iterable is, if it can tell."""
        return self.batches.state_dict() if self._keeps_state else None  # type: ignore[attr-defined]

    def resume(self, state: Any, *, taken: int) -> None:
        """Go on where a state was saved; of an iterable without one, leave out as many batches as had been taken."""
        if state is not None and self._keeps_state:
            try:
                self.batches.load_state_dict(state)  # type: ignore[attr-defined]
            except StokerError:
                raise
            except Exception as error:  # a loader of somebody else, which may refuse a state with any error
                reason = " ".join(str(error).split())[:200]
                raise CheckpointInvalidError(f"the batches refuse their saved state ({type(error).__name__}: {reason}).") from error
        else:
            self._skip = taken

    def set_epoch(self, epoch: int) -> None:
        """Tell a sampler that shuffles by epoch (as those of torch do) which one begins."""
        if self._keeps_state:
            return
        for one in (self.batches, getattr(self.batches, "sampler", None)):
            set_epoch = getattr(one, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    def is_done(self, state: Any, taken: int) -> bool:
        """Whether a pass that began at `state` has given out all batches of its epoch, `taken` of them."""
        if not taken:
            return False
        now = self.state()
        if isinstance(now, dict) and isinstance(state, dict) and "epoch" in now:
            return bool(now["epoch"] != state["epoch"])
        return isinstance(self.batches, Sized) and self.num_updates(1, 1) == taken

    def state_after(self, state: Any, taken: int) -> Any:
        """The state of a pass that began at `state` and has given out so many batches, where the iterable can tell."""
        tell = getattr(self.batches, "state_after", None)
        return tell(state, taken) if tell is not None and state is not None else None

    def blame(self, state: Any, first: int, count: int) -> str:
        """Where some batches of a pass come from: the samples that hold no numbers, if there are such, else all of them."""
        tell = getattr(self.batches, "origin", None)
        name = f"batch {first:,} of the pass" if count == 1 else f"batches {first:,} to {first + count - 1:,} of the pass"
        if tell is None or state is None:
            return name
        return f"{name}: {tell(state, first, count)}"
