"""Small loaders of one's own, one right and each of the others wrong in a way that real ones were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


class Loader:
    """A right one: the order is a function of epoch and position, a step is a stretch of it shared among the ranks."""

    def __init__(self, size: int = 11, batch: int = 3, *, rank: int = 0, world_size: int = 1, seed: int = 0) -> None:
        self.size, self.batch, self.rank, self.world, self.seed = size, batch, rank, world_size, seed
        self.epoch = self.position = 0
        self.dataset = range(size)

    def order(self, epoch: int) -> list[int]:
        numbers: list[int] = np.random.default_rng([self.seed, epoch]).permutation(self.size).tolist()
        return numbers

    def __iter__(self) -> Iterator[Any]:
        order = self.order(self.epoch)
        while self.position < len(order):
            step = order[self.position : self.position + self.batch * self.world]
            self.position += len(step)
            share = step[len(step) * self.rank // self.world : len(step) * (self.rank + 1) // self.world]
            if self.position >= len(order):
                self.epoch, self.position = self.epoch + 1, 0
                yield self.shape(share)
                return
            yield self.shape(share)

    def shape(self, numbers: list[int]) -> Any:
        values = torch.tensor(numbers, dtype=torch.int64)
        return {"x": values.to(torch.float32)[:, None] * torch.tensor([1.0, 0.5]), "y": (values, np.asarray(numbers) % 3)}

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class Forgetful(Loader):
    """Starts the epoch again after a resume."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], 0


class ForgetsEpoch(Loader):
    """Keeps the position, but takes the order of the first epoch."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = 0, state["position"]


class Ahead(Loader):
    """Its state counts a batch that was made ahead, but that nobody has got."""

    def state_dict(self) -> dict[str, int]:
        ahead = self.position + self.batch if self.position else 0
        return {"epoch": self.epoch, "position": min(ahead, self.size)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        if self.position >= self.size:
            self.epoch, self.position = self.epoch + 1, 0


class RepeatsAtEnd(Loader):
    """The end of an epoch is saved as an epoch to be done again."""

    def state_dict(self) -> dict[str, int]:
        at_end = self.position == 0 and self.epoch > 0
        return {"epoch": self.epoch - at_end, "position": 0 if at_end else self.position}


class ResumesOnce(Loader):
    """A state saved right after a resume says that nothing was seen yet."""

    resumed = False

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": 0} if self.resumed else super().state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.resumed = True

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            self.resumed = False
            yield batch


class LongEpochAfterResume(Loader):
    """After a resume the rest of the epoch and the next one are one pass."""

    resumed = False

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.resumed = self.position > 0

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        if self.resumed:
            self.resumed = False
            yield from super().__iter__()


class EmptyPassAtEnd(Loader):
    """Right in another way: resumed at the end of an epoch, it first gives the rest of that epoch, which is nothing."""

    ended = False

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "ended": self.position == 0 and self.epoch > 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.ended = bool(state["ended"])

    def __iter__(self) -> Iterator[Any]:
        if self.ended:
            self.ended = False
            return
        yield from super().__iter__()


class FillsUp(Loader):
    """Fills the last batch with samples of the beginning, as a distributed sampler does."""

    def order(self, epoch: int) -> list[int]:
        numbers = super().order(epoch)
        return numbers + numbers[: -len(numbers) % (self.batch * self.world)]


class DropsTail(Loader):
    """Drops what does not fill a batch."""

    def order(self, epoch: int) -> list[int]:
        numbers = super().order(epoch)
        return numbers[: len(numbers) - len(numbers) % (self.batch * self.world)]


class OrderByRanks(Loader):
    """Every sample once, but the order depends on how many ranks there are."""

    def order(self, epoch: int) -> list[int]:
        numbers: list[int] = np.random.default_rng([self.seed, epoch, self.world]).permutation(self.size).tolist()
        return numbers


class EndsEarlyOnOneRank(Loader):
    """A rank leaves out a last batch that has no sample for it."""

    def __iter__(self) -> Iterator[Any]:
        return (batch for batch in super().__iter__() if len(batch["x"]))


class WritesOver(Loader):
    """Right, but every batch is the same tensor, filled anew."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.buffer = torch.zeros(self.batch, dtype=torch.int64)

    def shape(self, numbers: list[int]) -> Any:
        self.buffer[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        return self.buffer[: len(numbers)]


class ShortEpochAfterResume(Loader):
    """After a resume the last batch of the epoch does not come."""

    resumed = False

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.resumed = True

    def order(self, epoch: int) -> list[int]:
        numbers = super().order(epoch)
        return numbers[: (self.size - 1) // self.batch * self.batch] if self.resumed and self.position else numbers
