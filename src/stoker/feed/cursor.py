"""Cursor: where a feed is. Together with the seed it is all the state there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.errors import FeedError
from stoker.order.keys import MAX_SEED


@dataclass
class Cursor:
    """The next position of an epoch, counted over all ranks."""

    epoch: int = 0
    position: int = 0

    def copy(self) -> Cursor:
        """One that moves on its own."""
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
            raise FeedError(f"the state of a feed has {key} {state[key]!r}; expected a whole number from 0.")
        if state[key] > MAX_SEED:
            raise FeedError(f"the state of a feed has {key} {state[key]:,}; expected at most 2**63 - 1.")
    if state["samples"] != num_positions:
        raise FeedError(
            f"the state was saved with {state['samples']:,} samples an epoch, but this feed has {num_positions:,}: "
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
