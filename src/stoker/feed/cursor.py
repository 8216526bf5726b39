"""Cursor: the position of a feed in its order, and how ranks share the positions.

    Ranks          this process among all of a training run
    Cursor         epoch and position: with the seed, all the state of a feed
    check_state    the cursor of a saved state, checked
    Steps          which positions each step of a pass takes

A step takes the next `world_size * batch_size` positions of the order. Each rank gets a range of them, of equal sizes or, at the
end of an epoch, of sizes that differ by at most one. End to end the ranges are the order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker._types import Array
from stoker.errors import FeedError, OptionError
from stoker.sampling.orders import Plan
from stoker.sampling.permutation import MAX_SEED


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
            raise OptionError(f"rank {rank!r} of {world_size!r} is invalid; expected 0 <= rank < world_size.")
        return cls(int(rank), int(world_size))

    def share(self, start: int, stop: int) -> tuple[int, int]:
        """The range of the positions `start` to `stop` that this rank gets."""
        count = stop - start
        return start + count * self.rank // self.world_size, start + count * (self.rank + 1) // self.world_size


def _from_environment(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None or not text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"the environment variable {name} is {text!r}; expected an integer.") from None


# Cursor: the position of a feed. With the seed it is all the state there is.


@dataclass
class Cursor:
    """The next position of an epoch, counted over all ranks."""

    epoch: int = 0
    position: int = 0

    def copy(self) -> Cursor:
        """A cursor that moves independently."""
        return Cursor(self.epoch, self.position)


_KEYS = ("seed", "epoch", "position", "samples", "feed")


def check_state(state: Mapping[str, Any], *, num_positions: int, fingerprint: str) -> tuple[int, Cursor, dict[str, int]]:
    """Seed, cursor and the choices of the order from a saved state; refuses one that belongs to other samples."""
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise FeedError(f"the state of a feed lacks {', '.join(missing)}; found {', '.join(map(str, state)) or 'nothing'}.")
    choices = [key for key in state if key not in _KEYS]
    for key in (*_KEYS[:4], *choices):
        if isinstance(state[key], bool) or not isinstance(state[key], int) or state[key] < 0:
            raise FeedError(f"the state of a feed has {key} {state[key]!r}; expected an integer from 0.")
        if state[key] > MAX_SEED:
            raise FeedError(f"the state of a feed has {key} {state[key]:,}; expected at most 2**63 - 1.")
    if state["samples"] != num_positions:
        raise FeedError(
            f"the state was saved with {state['samples']:,} samples per epoch, but this feed has {num_positions:,}: "
            f"other data, another view or another order. Resume with what the state was saved with."
        )
    if state["feed"] != fingerprint:
        raise FeedError(
            f"the state was saved by a feed of other data, another view or another kind of order (it says {state['feed']}, "
            f"this feed is {fingerprint}). Resume with what the state was saved with."
        )
    if state["position"] > num_positions:
        raise FeedError(f"the state is at position {state['position']:,} of {num_positions:,}; expected at most that.")
    return state["seed"], Cursor(state["epoch"], state["position"]), {str(key): state[key] for key in choices}


# Steps: which positions each step of a pass takes.


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of one pass: which positions each takes, and which of them are this rank's."""

    plan: Plan
    epoch: int
    start: int
    batch_size: int
    ranks: Ranks
    drops_last: bool

    @property
    def stride(self) -> int:
        """Positions of a step, of all ranks."""
        return self.batch_size * self.ranks.world_size

    def __len__(self) -> int:
        left = self.plan.num_positions - self.start
        return left // self.stride if self.drops_last else -(-left // self.stride)

    def end(self, step: int) -> int:
        """The position after a step."""
        return min(self.start + (step + 1) * self.stride, self.plan.num_positions)

    @property
    def num_whole(self) -> int:
        """Steps in which each rank has a whole batch: all but perhaps the last."""
        return (self.plan.num_positions - self.start) // self.stride

    def numbers(self, step: int, count: int = 1) -> Array:
        """The samples of this rank in a step, or in `count` steps from there on."""
        if self.ranks.world_size == 1:
            return self.plan.numbers(self.epoch, self.start + step * self.stride, self.end(step + count - 1))
        shares = [self.ranks.share(self.start + one * self.stride, self.end(one)) for one in range(step, step + count)]
        return np.concatenate([self.plan.numbers(self.epoch, *share) for share in shares])
