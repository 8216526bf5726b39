"""Worker processes of a DataLoader: how much they make ahead, and when they have nothing to do."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker._clock import now_ns
from stoker.diagnose.hooks import NEXT, Boundaries, leaves
from stoker.diagnose.measurements import SourceLine

PATIENCE_SECONDS = 3.0


def queue_length(loader: DataLoader[Any] | None) -> int:
    """Batches that are made ahead."""
    if loader is None or not loader.num_workers:
        return 0
    return int(loader.num_workers * (loader.prefetch_factor or 2))


def wait_for_workers(iterator: Any) -> None:
    """Return when all batches that were asked for are made (or after some seconds): from then on the workers sleep."""
    queue = getattr(iterator, "_worker_result_queue", None)
    if queue is None:
        return
    begin, pause = now_ns(), threading.Event()
    while now_ns() - begin < PATIENCE_SECONDS * 1e9:
        pinned = getattr(iterator, "_data_queue", queue)
        ready = queue.qsize() + (pinned.qsize() if pinned is not queue else 0)
        early = sum(len(info) > 1 for info in iterator._task_info.values())  # taken off the queue before their turn
        if ready + early >= iterator._tasks_outstanding:
            return
        pause.wait(0.01)


# Watched iterables: what the loops of a program go through, and which of them is THE training loop.
#
# A loop is known by its place in the user's text, a `DataLoader` by itself, or by its place where each epoch makes one anew. The
# training loop is the innermost one between whose turns optimizer steps happen; until it is known all are watched, afterwards
# this
# one alone, and the others cost nothing.

LEAST_STEPS = 3
STEPS_WITHOUT_LOOP = 6
MAX_STEPS_A_BATCH = 8
STEPLESS_PASSES = 3
"""Passes without a step after which a loop is watched no more."""

_original_iter = DataLoader.__iter__


class Source:
    """Where the batches of one loop come from."""

    def __init__(self, iterable: Any, place: SourceLine | None) -> None:
        self.iterable = iterable
        """None for a `while` loop."""
        self.place = place
        self.nexts = 0
        self.steps_between = 0
        self.gives_batches = False
        self.passes_on = False
        """Whether it gives what `inner` gives, as it is."""
        self.inner: Source | None = None
        """Another one, whose `next` is called by the `next` of this."""
        self.startup_ns: int | None = None
        self.last: Any = None
        self.with_gradients = True
        """Whether torch computes them in passes in which there are steps."""
        self._seen_steps = 0

    def begin(self, steps: int, *, first: bool = False) -> None:
        """A turn of the loop begins; so many optimizer steps have happened. Those before the first of a pass are not its own."""
        if self.nexts and not first and steps != self._seen_steps:
            self.steps_between += 1
            self.with_gradients = torch.is_grad_enabled()
        self._seen_steps = steps

    def take_inner(self) -> Source | None:
        """What `inner` is, which is to be found anew."""
        inner, self.inner = self.inner, None
        return inner

    def fresh(self) -> Iterator[Any]:
        """A new pass."""
        return _original_iter(self.iterable) if isinstance(self.iterable, DataLoader) else iter(self.iterable)

    @property
    def can_repeat(self) -> bool:
        """Whether a new pass can be made at any time."""
        return self.iterable is not None and not hasattr(self.iterable, "__next__")

    @property
    def may_train(self) -> bool:
        """Whether a pass that begins here can be one in which there are steps: one without gradients is a look at the model."""
        return torch.is_grad_enabled() == self.with_gradients

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The DataLoader at the bottom of it."""
        if isinstance(self.iterable, DataLoader):
            return self.iterable
        return self.inner.loader if self.inner is not None else None


class Watched:
    """An iterator that tells of itself, and that others may fill."""

    def __init__(self, sources: Sources, source: Source, iterator: Iterator[Any], started_ns: int) -> None:
        self.source = source
        self.iterator = iterator
        self.started_ns = started_ns
        """When this pass began."""
        self._sources = sources
        self._first = True
        self._steps_before = sources.boundaries.steps

    def __iter__(self) -> Watched:
        return self

    def __next__(self) -> Any:
        sources = self._sources
        if sources.found is self.source:
            return sources.hand_out(self)
        return next(self.iterator) if sources.settled else self._look()

    def __len__(self) -> int:
        return len(self.iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)

    def _look(self) -> Any:
        """Give the next one, and learn what kind of loop this is."""
        source, sources = self.source, self._sources
        source.begin(sources.boundaries.steps, first=self._first)
        self._first = False
        sources.running.append(source)
        before = source.take_inner()
        try:
            value = next(self.iterator)
        except StopIteration:
            source.inner = before
            if sources.boundaries.steps == self._steps_before:
                sources.pass_without_step(source)
            raise
        finally:
            sources.running.pop()
        if source.startup_ns is None:
            source.startup_ns = now_ns() - self.started_ns
        source.nexts += 1
        source.gives_batches = next(leaves(value), None) is not None
        inner = source.inner
        if inner is not None:
            given = inner.last
            source.passes_on = value is given or (isinstance(value, tuple) and any(one is given for one in value))
        source.inner = inner or before
        source.last = value
        if sources.running:
            sources.running[-1].inner = source
        return value

    def restart(self) -> None:
        """Begin a new pass in place of the one that has ended."""
        boundaries = self._sources.boundaries
        outer, self.started_ns = boundaries.phase, now_ns()
        boundaries.switch(NEXT)
        self.iterator = self.source.fresh()
        boundaries.switch(outer)


class WatchedIterable:
    """What a `for` statement goes through: looks like what the user wrote, and gives a watched iterator."""

    def __init__(self, sources: Sources, source: Source, iterable: Iterable[Any]) -> None:
        self._sources = sources
        self._source = source
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        started = now_ns()
        iterator = iter(self._iterable)
        if self._sources.found is self._source and not self._source.may_train:
            return iterator
        self._source.iterable = self._iterable
        return Watched(self._sources, self._source, iterator, started)

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterable, name)


class Sources:
    """All loops of a program."""

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.found: Source | None = None
        self.settled = False
        """Whether it is known which the training loop is, or that there is none."""
        self.running: list[Source] = []
        self.hand_out: Callable[[Watched], Any] = lambda watched: next(watched.iterator)
        """What gives the batches of the training loop, once it is known."""
        self.on_turn: Callable[[], None] = lambda: None
        """Called when a `while` loop that trains begins anew."""
        self.stepless: list[Any] = []
        """What other loops went through, in which nothing was trained."""
        self.passed: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        """Loaders that others went through since the training loop is known."""
        self.trained: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        """Loaders between whose batches there were steps."""
        self._loops: dict[SourceLine, Source] = {}
        self._loaders: dict[int, Source] = {}
        self._there: weakref.WeakSet[DataLoader[Any]] | None = None
        """Loaders that were there when the first step had ended."""
        self._passes: dict[SourceLine, int] = {}
        self._plain: set[SourceLine] = set()
        self._undo: list[Callable[[], Any]] = []

    # ---- what loops call ----

    def watched(self, iterable: Iterable[Any], place: SourceLine) -> Iterable[Any]:
        """What a `for` statement goes through instead."""
        if place in self._plain or (self.settled and (self.found is None or self.found.place != place)):
            return iterable
        if isinstance(iterable, DataLoader):  # watches itself
            if not self.settled:
                self._of_loader(iterable, place).place = place
            elif self.found is not None:
                self._hand_over(self.found, iterable)
            return iterable
        source = self._loops.setdefault(place, Source(iterable, place))
        return WatchedIterable(self, source, iterable)

    def turn(self, place: SourceLine) -> None:
        """A `while` statement begins anew."""
        if self.settled:
            if self.found is not None and self.found.place == place:
                self.on_turn()
            return
        source = self._loops.setdefault(place, Source(None, place))
        source.begin(self.boundaries.steps)
        source.nexts += 1

    def watch_loaders(self) -> None:
        """Have every DataLoader watched, whoever goes through it."""
        sources = self

        @functools.wraps(_original_iter)
        def watched_iter(loader: DataLoader[Any]) -> Any:
            if sources.settled and not sources._is_pass_of_training(loader):
                return _original_iter(loader)
            boundaries = sources.boundaries
            outer, started = boundaries.phase, now_ns()
            boundaries.switch(NEXT)  # workers start here
            iterator = _original_iter(loader)
            boundaries.switch(outer)
            return Watched(sources, sources._of_loader(loader, None), iterator, started)

        DataLoader.__iter__ = watched_iter  # type: ignore[method-assign]
        self._undo.append(lambda: setattr(DataLoader, "__iter__", _original_iter))

    def remove(self) -> None:
        """Watch no more."""
        while self._undo:
            self._undo.pop()()
        self.settled = True
        self.hand_out = lambda watched: next(watched.iterator)
        self.on_turn = lambda: None

    def pass_without_step(self, source: Source) -> None:
        """A pass has ended, and nothing was trained in it."""
        if source.place is None or isinstance(source.iterable, DataLoader):
            return
        count = self._passes[source.place] = self._passes.get(source.place, 0) + 1
        if count >= STEPLESS_PASSES and not source.steps_between:
            self._plain.add(source.place)
            self._loops.pop(source.place, None)

    # ---- loaders that are made anew for each epoch ----

    def _of_loader(self, loader: DataLoader[Any], place: SourceLine | None) -> Source:
        """Its own, or that of one whose place it takes."""
        found = self._loaders.get(id(loader))
        if found is None:
            there = [one for one in self._loaders.values() if one.place == place]
            there.sort(key=lambda one: one.iterable.dataset is not loader.dataset)  # the same data first
            found = next((one for one in there if self._hand_over(one, loader)), None) or Source(loader, None)
            self._loaders[id(loader)] = found
        return found

    def _hand_over(self, source: Source, loader: DataLoader[Any]) -> bool:
        """Let a loader go on where that of a source has ended, if it was made for this, as where each epoch makes its own.

        One that was there before, such as that of a validation which has the same lines, was not.
        """
        former = source.iterable
        if source.place is None or former is loader or not isinstance(former, DataLoader) or not source.may_train:
            return False
        if not issubclass(type(loader), DataLoader):  # but a form of one around it, which only says that it is one
            return False
        if self._there is None or loader in self._there or type(loader.dataset) is not type(former.dataset):
            return False
        self._loaders.pop(id(former), None)
        self._loaders[id(loader)] = source
        source.iterable = loader
        return True

    def _is_pass_of_training(self, loader: DataLoader[Any]) -> bool:
        """Asked when a pass begins and the training loop is known."""
        source = self.found
        if source is None or source.iterable is not loader:
            self.passed.add(loader)
            return False
        self.trained.add(loader)
        return source.may_train

    # ---- which one it is ----

    def take(self, source: Source) -> None:
        """This is the training loop."""
        self.found, self.settled = source, True
        known = [*self._loops.values(), *self._loaders.values()]
        self.stepless = [one.iterable for one in known if one.gives_batches and one.can_repeat and not one.steps_between]
        self.trained.update(one.iterable for one in self._loaders.values() if one.steps_between)
        self._loops = {place: one for place, one in self._loops.items() if one is source}
        self._loaders = {key: one for key, one in self._loaders.items() if one is source or one.iterable is source.loader}
        source.last = None

    def choose(self) -> bool:
        """Look for the training loop among those seen so far; True when the search is over."""
        steps = self.boundaries.steps
        if self._there is None:
            self._there = weakref.WeakSet(one for one in gc.get_objects() if issubclass(type(one), DataLoader))
        if steps < LEAST_STEPS:
            return False
        candidates = [one for one in (*self._loops.values(), *self._loaders.values()) if one.steps_between >= LEAST_STEPS - 1]
        if not candidates:
            self.settled = steps >= STEPS_WITHOUT_LOOP
            return self.settled
        batches = [one for one in candidates if one.gives_batches and steps <= MAX_STEPS_A_BATCH * one.nexts]
        if not batches and steps < STEPS_WITHOUT_LOOP:
            return False  # a loop over batches, each of which is trained on several times, takes longer to be seen
        pool = batches or candidates
        best = max(pool, key=lambda one: one.steps_between)
        for one in pool * 2:  # outwards, along what prepares its batches
            if one.inner is best and not one.passes_on and one.steps_between >= best.steps_between - 1:
                best = one
        while best.passes_on and best.inner in pool:
            best = best.inner
        if best.place is None:  # an outer form of a loader, that others prepared, is what stands in the user's loop
            best.place = next((one.place for one in self._loaders.values() if one.place is not None and not one.nexts), None)
        self.take(best)
        return True
