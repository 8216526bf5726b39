"""Exactly once: the law that every epoch has every sample once, in one order, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from stoker.testing.content import TellSamples
from stoker.testing.lockstep import MakeFeed, Seen, close, fail, make_ranks, readable_ranks, walk


def assert_exactly_once(
    make_feed: MakeFeed,
    *,
    worlds: Sequence[int] = (1, 2, 3),
    epochs: int = 2,
    num_samples: int | None = None,
    samples: TellSamples | None = None,
    one_order: bool = True,
) -> None:
    """Assert that every epoch has every sample exactly once, and that the ranks of any world together have one order.

    `make_feed` makes a new feed each time. It is called with `rank` and `world_size` if it takes them, so
    `functools.partial(stoker.Feed, store, view, batch_size=8)` will do; any loader will, stoker's or not.
    An epoch has `num_samples` samples; by default as many as the feed (or its `dataset`) says. `samples` tells which samples
    a batch has; by default they are known by the numbers that stoker gives them (`numbers=True`), or else by their content.
    `one_order=False` leaves the order to the number of ranks.
    """
    first: dict[int, list[Seen]] = {}
    for world in worlds:
        feeds = make_ranks(make_feed, world)
        expected = num_samples if num_samples is not None else _stated_samples(feeds[0])
        for epoch in range(epochs):
            seen = [one for step in walk(feeds, epoch) for one in step.seen(samples)]
            place = f"epoch {epoch} on {readable_ranks(world)}"
            _check_once(seen, expected, place)
            reference = first.setdefault(epoch, seen)
            _check_same_samples(seen, first[0], place, f"epoch 0 on {readable_ranks(worlds[0])}")
            if one_order:
                _check_same_order(seen, reference, place, f"on {readable_ranks(worlds[0])}")
        close(feeds)


def _stated_samples(feed: Any) -> int | None:
    """How many samples a feed says that it has."""
    stated = getattr(feed, "num_samples", None)
    if stated is None and hasattr(getattr(feed, "dataset", None), "__len__"):
        stated = len(feed.dataset)
    return int(stated) if stated is not None else None


def _check_once(seen: list[Seen], expected: int | None, place: str) -> None:
    places: dict[Hashable, str] = {}
    for one in seen:
        if one.sample in places:
            fail(
                f"in {place}, {one} came twice: as {places[one.sample]} and as {one.place}. "
                f"(If the data hold equal samples, number them: numbers=True for a feed of stoker, samples= for others)"
            )
        places[one.sample] = one.place
    if expected is not None and len(seen) != expected:
        numbered = all(isinstance(sample, int) for sample in places)
        absent = [number for number in range(expected) if number not in places] if numbered else []
        example = f"; sample {absent[0]:,} did not come" if absent else ""
        fail(f"{place} has {len(seen):,} samples; expected {expected:,}{example}")


def _check_same_samples(seen: list[Seen], reference: list[Seen], place: str, where: str) -> None:
    here, there = {one.sample for one in seen}, {one.sample for one in reference}
    for one in reference:
        if one.sample not in here:
            fail(f"{one} came in {where}, but not in {place}")
    for one in seen:
        if one.sample not in there:
            fail(f"{one} came in {place}, but not in {where}")


def _check_same_order(seen: list[Seen], reference: list[Seen], place: str, where: str) -> None:
    for position, (one, expected) in enumerate(zip(seen, reference, strict=True)):
        if one.sample != expected.sample:
            fail(
                f"the order depends on the number of ranks: at position {position:,} of {place} comes {one}, "
                f"but {where} it is {expected} (one_order=False allows it)"
            )
