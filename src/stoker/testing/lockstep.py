"""Lockstep: the feeds of all ranks of one training, made anew as new processes would, and their batches step by step."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from stoker.errors import OptionError
from stoker.testing.content import TellSamples, samples_of

MakeFeed = Callable[..., Any]
"""Makes a new feed each time; takes `rank` and `world_size` as keywords, or nothing if it is for one process."""


@dataclass(frozen=True)
class Seen:
    """A sample, and where it was seen."""

    sample: Hashable
    place: str

    def __str__(self) -> str:
        return f"sample {self.sample:,}" if isinstance(self.sample, int) else f"the sample of {self.place}"


@dataclass(frozen=True)
class Step:
    """What the ranks get at one step."""

    epoch: int
    number: int
    batches: list[Any]

    def seen(self, tell: TellSamples | None) -> Iterator[Seen]:
        """The samples of all ranks, one rank after the other."""
        for rank, batch in enumerate(self.batches):
            where = f"batch {self.number} of epoch {self.epoch}" + (f" on rank {rank}" if len(self.batches) > 1 else "")
            for row, sample in enumerate(samples_of(batch, tell)):
                yield Seen(sample, f"row {row} of {where}")


def make_ranks(make_feed: MakeFeed, world: int) -> list[Any]:
    """A new feed for each rank."""
    if world < 1:
        raise OptionError(f"worlds has {world}; expected numbers of ranks from 1.")
    try:
        parameters = dict(inspect.signature(make_feed).parameters)
    except (TypeError, ValueError):  # some callables hide what they take
        parameters = {}
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    if takes_any or {"rank", "world_size"} <= parameters.keys():
        return [make_feed(rank=rank, world_size=world) for rank in range(world)]
    if world != 1:
        raise OptionError(f"make_feed takes no rank and world_size, so it cannot be tested on {world} ranks. Give worlds=(1,).")
    return [make_feed()]


def walk(feeds: list[Any], epoch: int) -> Iterator[Step]:
    """One pass of all ranks, step by step."""
    absent = object()
    for number, batches in enumerate(itertools.zip_longest(*feeds, fillvalue=absent)):
        ended = [rank for rank, batch in enumerate(batches) if batch is absent]
        if ended:
            going = next(rank for rank in range(len(feeds)) if rank not in ended)
            fail(
                f"in epoch {epoch}, rank {ended[0]} of {len(feeds)} ended after {number} batches, but rank {going} goes on: "
                f"it would wait for the other for ever"
            )
        yield Step(epoch, number, list(batches))


def close(feeds: list[Any]) -> None:
    """End what feeds have running, where they can be told to."""
    for feed in feeds:
        if callable(getattr(feed, "close", None)):
            feed.close()


def readable_ranks(world: int) -> str:
    """In words."""
    return "1 rank" if world == 1 else f"{world} ranks"


def fail(message: str) -> NoReturn:
    """A law does not hold."""
    raise AssertionError(f"{message}.")
