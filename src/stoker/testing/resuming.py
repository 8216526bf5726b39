"""Exact resume: the law that whoever stops anywhere and goes on from the state gets the batches of one who did not stop."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import OptionError
from stoker.testing.content import Content, TellSamples, content_of, difference
from stoker.testing.lockstep import MakeFeed, Seen, Step, close, fail, make_ranks, readable_ranks, walk

_PATIENCE = 2  # passes without a batch, one after the other, after which there is nothing to wait for


def assert_resumes_exactly(
    make_feed: MakeFeed,
    *,
    cuts: Iterable[int] | None = None,
    worlds: Sequence[int] = (1,),
    epochs: int = 2,
    samples: TellSamples | None = None,
) -> None:
    """Assert that a feed stopped after any number of batches and resumed by a new one gives the batches that were left.

    `make_feed` makes a new feed (stoker's, or any loader with `state_dict` and `load_state_dict`) each time, as a new process
    would. It is called with `rank` and `world_size` if it takes them. Batches are compared bit for bit.

    `cuts` are the numbers of batches after which it is stopped, counted over all `epochs`; by default every one. With several
    `worlds`, each is also resumed by every other: the samples must then follow one another as if nothing had happened
    (`samples` tells which samples a batch has, as in `assert_exactly_once`). Last, a feed that is stopped and resumed before
    every single batch, twice each time, must give the same batches too.
    """
    for world in worlds:
        whole = _record(make_feed, world, epochs, samples, tells=len(set(worlds)) > 1)
        chosen = range(len(whole.steps)) if cuts is None else sorted(set(cuts))
        for cut in chosen:
            if not 0 <= cut <= len(whole.steps):
                raise OptionError(f"cuts has {cut}, but {epochs} epochs have {len(whole.steps)} batches.")
            for state in whole.states[cut]:
                for other in worlds:
                    feeds = _resume(make_feed, other, state, same=other == world)
                    if other == world:
                        _compare_batches(feeds, whole, cut, f"resumed {state.when}")
                    else:
                        _compare_samples(feeds, whole, cut, f"resumed {state.when} on {readable_ranks(other)}", samples)
                    close(feeds)
        _compare_chain(make_feed, whole)


@dataclass(frozen=True)
class _State:
    """The states of all ranks, and when they were saved."""

    ranks: list[Any]
    when: str


@dataclass(frozen=True)
class _Past:
    """A step of the whole run."""

    name: str
    contents: list[Content]
    """One for each rank."""
    seen: list[Seen]


@dataclass
class _Whole:
    """A run that was never stopped."""

    world: int
    steps: list[_Past] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """The number of steps at the end of each epoch."""
    states: list[list[_State]] = field(default_factory=list)
    """For each number of steps, the states saved then."""

    def left_of_epoch(self, cut: int) -> int:
        """Steps from here to the end of the epoch; a whole epoch at the end of one."""
        return next((end - cut for end in self.ends if end > cut), 0)


def _record(make_feed: MakeFeed, world: int, epochs: int, samples: TellSamples | None, *, tells: bool) -> _Whole:
    """A run over all epochs, with the states that could have been saved on the way."""
    feeds = make_ranks(make_feed, world)
    for name in ("state_dict", "load_state_dict"):
        if not callable(getattr(feeds[0], name, None)):
            raise OptionError(f"{type(feeds[0]).__name__} has no {name}(), so it cannot be resumed.")
    whole = _Whole(world)
    whole.states.append([_save(feeds, "before the first batch")])
    for epoch in range(epochs):
        for step in walk(feeds, epoch):
            name = f"batch {step.number} of epoch {epoch}"
            seen = list(step.seen(samples)) if tells else []
            whole.steps.append(_Past(name, [content_of(batch) for batch in step.batches], seen))
            whole.states.append([_save(feeds, f"after {name}")])
        whole.states[-1].append(_save(feeds, f"at the end of epoch {epoch}"))
        whole.ends.append(len(whole.steps))
    close(feeds)
    if not whole.steps:
        raise OptionError("the feed has no batches, so there is nothing to resume.")
    return whole


def _save(feeds: list[Any], when: str) -> _State:
    return _State([copy.deepcopy(feed.state_dict()) for feed in feeds], when)


def _resume(make_feed: MakeFeed, world: int, state: _State, *, same: bool) -> list[Any]:
    """New feeds that go on from a state; on another number of ranks all take that of the first."""
    feeds = make_ranks(make_feed, world)
    for rank, feed in enumerate(feeds):
        feed.load_state_dict(copy.deepcopy(state.ranks[rank if same else 0]))
    return feeds


def _next_pass(feeds: list[Any]) -> Iterator[Step]:
    """The next pass with a batch. One may be empty: a feed may take the end of an epoch for a pass of its own."""
    for _ in range(_PATIENCE):
        steps = walk(feeds, 0)
        for first in steps:
            return itertools.chain([first], steps)
    return iter(())


def _compare_batches(feeds: list[Any], whole: _Whole, cut: int, how: str) -> None:
    """Compare what is left with what was left, batch by batch and epoch by epoch."""
    done = cut
    while done < len(whole.steps):
        left, found = whole.left_of_epoch(done), 0
        for step in _next_pass(feeds):
            if found == left:
                fail(f"{how}, the epoch goes on after the {left} batches that were left of it")
            _compare_step(step.batches, whole, done + found, how)
            found += 1
        if found < left:
            fail(f"{how}, the epoch ends after {found} batches; expected {left} to be left of it")
        done += left


def _compare_step(batches: list[Any], whole: _Whole, number: int, how: str) -> None:
    past = whole.steps[number]
    for rank, (batch, expected) in enumerate(zip(batches, past.contents, strict=True)):
        content = content_of(batch)
        found = difference(content, expected)
        if found:
            where = f" on rank {rank} of {whole.world}" if whole.world > 1 else ""
            fail(f"{how}, {past.name}{where} {found}{_resembled(content, whole, rank)}")


def _resembled(content: Content, whole: _Whole, rank: int) -> str:
    """Which batch of the whole run it is instead: the quickest way to see what went wrong."""
    for past in whole.steps:
        if difference(content, past.contents[rank]) is None:
            return f": it is {past.name}"
    return ""


def _compare_samples(feeds: list[Any], whole: _Whole, cut: int, how: str, tell: TellSamples | None) -> None:
    """Compare the samples that are left, epoch by epoch, where batches cannot be equal."""
    done = cut
    while done < len(whole.steps):
        left = whole.left_of_epoch(done)
        expected = [one for past in whole.steps[done : done + left] for one in past.seen]
        found = [one for step in _next_pass(feeds) for one in step.seen(tell)]
        for one, other in zip(found, expected, strict=False):
            if one.sample != other.sample:
                fail(f"{how}, {one} comes as {one.place} of the new run; expected {other}, which was {other.place}")
        if len(found) != len(expected):
            fail(f"{how}, the epoch ends after {len(found)} samples; expected {len(expected)} to be left of it")
        done += left


def _compare_chain(make_feed: MakeFeed, whole: _Whole) -> None:
    """Stop and resume before every batch, and save once more right after the resume: errors of a resume must not add up."""
    state = whole.states[0][0]
    for number in range(len(whole.steps)):
        feeds = _resume(make_feed, whole.world, state, same=True)
        again = _save(feeds, "at once after it was resumed")
        close(feeds)
        feeds = _resume(make_feed, whole.world, again, same=True)
        passes, batches = _first_batches(feeds)
        how = f"resumed {number + 1} times, before every batch and twice each time"
        if not batches:
            fail(f"{how}, the feed ends after {number} batches; expected {len(whole.steps)}")
        _compare_step(batches, whole, number, how)
        state = _save(feeds, "of a resumed run")
        del passes  # kept up to here, as whoever trains holds on to the pass while saving
        close(feeds)


def _first_batches(feeds: list[Any]) -> tuple[list[Iterator[Any]], list[Any]]:
    for _ in range(_PATIENCE):
        passes = [iter(feed) for feed in feeds]
        batches = [batch for one in passes for batch in itertools.islice(one, 1)]
        if len(batches) == len(feeds):
            return passes, batches
    return [], []
