"""A plan: what each step of a loop gets, told step by step by a generator that is sent the times of the step before."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from stoker.diagnose.boundaries import Times
from stoker.diagnose.turns import Turns


class Mode(NamedTuple):
    """What a step gets."""

    cached: bool = False
    before: Callable[[], object] | None = None
    """Called when the batch is there, outside of all times."""
    turns: Turns | None = None
    """What takes the times of the steps behind this one, until it is over; they get batches of the same kind."""


TRUE, CACHED = Mode(), Mode(cached=True)
Plan = Generator[Mode, Times, None]
