"""Ranks: how the processes of one training share the positions of an epoch.

A step takes the next `world_size * batch_size` positions of the one order there is. Each rank gets a stretch of them, of
equal size or, at the end of an epoch, of sizes that differ by one at most. Laid end to end the stretches are the order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from stoker.errors import OptionError


@dataclass(frozen=True)
class Ranks:
    """This process and how many there are."""

    rank: int
    world_size: int

    @classmethod
    def find(cls, rank: int | None, world_size: int | None) -> Ranks:
        """As given, or from RANK and WORLD_SIZE as `torchrun` sets them, or a single process."""
        if (rank is None) != (world_size is None):
            raise OptionError(f"rank is {rank} and world_size {world_size}; give both, or none to read RANK and WORLD_SIZE.")
        if rank is None or world_size is None:
            rank, world_size = _from_environment("RANK"), _from_environment("WORLD_SIZE") or 1
            if rank is None and world_size > 1:
                raise OptionError(
                    f"WORLD_SIZE is {world_size}, but RANK is not set, so this process cannot know its share. Pass rank= and "
                    f"world_size= (for Lightning: trainer.global_rank and trainer.world_size)."
                )
            rank = rank or 0
        whole = all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in (rank, world_size))
        if not whole or world_size < 1 or not 0 <= rank < world_size:
            raise OptionError(f"rank {rank!r} of {world_size!r} cannot be; expected a rank from 0 below the number of ranks.")
        return cls(int(rank), int(world_size))

    def share(self, start: int, stop: int) -> tuple[int, int]:
        """The stretch of the positions `start` to `stop` that this rank gets."""
        count = stop - start
        return start + count * self.rank // self.world_size, start + count * (self.rank + 1) // self.world_size


def _from_environment(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None or not text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"the environment variable {name} is {text!r}; expected a whole number.") from None
