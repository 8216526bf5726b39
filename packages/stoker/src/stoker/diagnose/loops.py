"""The loops of a program: which one trains, and where its batches come from.

Every `for` and `while` statement of the user's files and every `DataLoader` reports its iterations to `Sources`. The training loop is
the innermost one between whose iterations optimizer steps happen, in the thread that trains. Once it is found, only this loop is watched,
and session.py gives it its batches. A loop is identified by its place in the source; a `DataLoader` by itself, or by its place where
each epoch creates a new one.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from stoker._clock import now_ns
from stoker.diagnose.hooks import NEXT, StepHooks, leaves, objects_of
from stoker.diagnose.measurements import SourceLine

PATIENCE_SECONDS = 3.0
MIN_STEPS = 3
STEPS_WITHOUT_LOOP = 6
MAX_STEPS_PER_BATCH = 8
LONGER_EPOCHS = "longer epochs"
"""What is avoided where a program fails if an epoch has more batches than it expects: epochs end where they do without a diagnosis."""
STEPLESS_PASSES = 3  # passes without an optimizer step after which a loop is no longer watched

_original_iter = DataLoader.__iter__


class Source:
    """One loop, and the iterable that its batches come from."""

    def __init__(self, iterable: Any, place: SourceLine | None) -> None:
        self.iterable = iterable  # None for a `while` loop
        self.place = place
        self.nexts = 0  # iterations so far
        self.steps_between = 0  # iterations with an optimizer step since the one before
        self.gives_batches = False  # whether its items contain tensors or arrays
        self.passes_on = False  # whether its batches are those of `inner`, unchanged
        self.inner: Source | None = None  # the source whose `next` is called by the `next` of this one
        self.last: Any = None  # the last batch
        self.with_gradients = True  # whether gradients are enabled in passes with optimizer steps
        self._seen_steps = 0

    def begin_iteration(self, steps: int, *, first: bool = False) -> None:
        """Count an iteration with optimizer steps since the last one. Steps before the first iteration of a pass do not count."""
        if self.nexts and not first and steps != self._seen_steps:
            self.steps_between += 1
            self.with_gradients = torch.is_grad_enabled()
        self._seen_steps = steps

    def take_inner(self) -> Source | None:
        """Forget `inner` until its `next` sets it again."""
        inner, self.inner = self.inner, None
        return inner

    def new_pass(self) -> Iterator[Any]:
        """A new iterator."""
        return _original_iter(self.iterable) if isinstance(self.iterable, DataLoader) else iter(self.iterable)

    @property
    def can_repeat(self) -> bool:
        """Whether a new pass can begin at any time."""
        return self.iterable is not None and not hasattr(self.iterable, "__next__")

    @property
    def may_train(self) -> bool:
        """Whether a pass that starts now can train: a pass without gradients is an evaluation."""
        return torch.is_grad_enabled() == self.with_gradients

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The DataLoader that the batches come from, directly or through other iterables."""
        if isinstance(self.iterable, DataLoader):
            return self.iterable
        return self.inner.loader if self.inner is not None else None


class WatchedIterator:
    """An iterator that reports to `Sources`, which may replace its batches."""

    def __init__(self, sources: Sources, source: Source, iterator: Iterator[Any], started_ns: int) -> None:
        self.source = source
        self.iterator = iterator
        self.started_ns = started_ns  # when this pass began
        self.given = 0  # batches that the loop has got in this pass
        self._sources = sources
        self._first = True
        self._steps_before = sources.hooks.steps_here

    def __iter__(self) -> WatchedIterator:
        return self

    def __next__(self) -> Any:
        sources = self._sources
        if sources.training is self.source:
            return sources.next_batch(self)
        return next(self.iterator) if sources.settled else self._observe()

    def __len__(self) -> int:
        return len(self.iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)

    def _observe(self) -> Any:
        """Give the next batch, and record what `find_training_loop` needs."""
        source, sources = self.source, self._sources
        source.begin_iteration(sources.hooks.steps_here, first=self._first)
        self._first = False
        sources.running.append(source)
        before = source.take_inner()
        try:
            value = next(self.iterator)
        except StopIteration:
            source.inner = before
            if sources.hooks.steps_here == self._steps_before:
                sources.pass_without_step(source)
            raise
        finally:
            sources.running.pop()
        source.nexts += 1
        self.given += 1
        source.gives_batches = next(leaves(value), None) is not None
        inner = source.inner
        if inner is not None:
            passed = inner.last
            source.passes_on = value is passed or (isinstance(value, tuple) and any(part is passed for part in value))
        source.inner = inner or before
        source.last = value
        if sources.running:
            sources.running[-1].inner = source
        return value

    def restart(self) -> None:
        """Replace the pass that has ended by a new one."""
        hooks = self._sources.hooks
        outer, self.started_ns = hooks.phase, now_ns()
        hooks.enter(NEXT)
        self.iterator = self.source.new_pass()
        hooks.enter(outer)


@dataclass(eq=False)
class WatchedIterable:
    """Replaces the iterable of a `for` statement, and gives a watched iterator."""

    _sources: Sources
    _source: Source
    _iterable: Iterable[Any]

    def __iter__(self) -> Iterator[Any]:
        started = now_ns()
        iterator = iter(self._iterable)
        if self._sources.training is self._source and not self._source.may_train:
            return iterator
        self._source.iterable = self._iterable
        return WatchedIterator(self._sources, self._source, iterator, started)

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterable, name)


class Sources:
    """All loops of a program."""

    def __init__(self, hooks: StepHooks) -> None:
        self.hooks = hooks
        self.training: Source | None = None  # the source of the training loop, once it is known
        self.settled = False  # whether the training loop is known, or known not to exist
        self.running: list[Source] = []
        self.next_batch: Callable[[WatchedIterator], Any] = lambda watched: next(watched.iterator)
        """Gives the batches of the training loop."""
        self.on_iteration: Callable[[], None] = lambda: None
        """Called at each iteration of a training loop that is a `while` statement."""
        self.stepless: list[Any] = []  # iterables of loops without optimizer steps
        self.passed: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        """Loaders iterated by other loops since the training loop is known."""
        self.skips: list[Callable[[str, int], bool]] = []
        """Of one experiment: whether statements after the update of the loop at a place are skipped (rewriting.py)."""
        self.trained: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()  # loaders with optimizer steps between their batches
        self._loops: dict[SourceLine, Source] = {}
        self._loaders: dict[int, Source] = {}
        self._existing: weakref.WeakSet[DataLoader[Any]] | None = None  # loaders that existed when the first step had ended
        self._stepless_passes: dict[SourceLine, int] = {}
        self._ignored: set[SourceLine] = set()

    def watched(self, iterable: Iterable[Any], place: SourceLine) -> Iterable[Any]:
        """The iterable that a `for` statement gets instead of its own."""
        if place in self._ignored or (self.settled and (self.training is None or self.training.place != place)):
            return iterable
        if isinstance(iterable, DataLoader):  # watched by `watch_loaders`
            if not self.settled:
                self._of_loader(iterable, place).place = place
            elif self.training is not None:
                self._replace_loader(self.training, iterable)
            return iterable
        source = self._loops.setdefault(place, Source(iterable, place))
        return WatchedIterable(self, source, iterable)

    def iteration(self, place: SourceLine) -> None:
        """An iteration of a `while` statement begins."""
        if self.settled:
            if self.training is not None and self.training.place == place:
                self.on_iteration()
            return
        source = self._loops.setdefault(place, Source(None, place))
        source.begin_iteration(self.hooks.steps_here)
        source.nexts += 1

    def watch_loaders(self) -> None:
        """Watch every DataLoader, also those iterated by library code."""
        sources = self

        @functools.wraps(_original_iter)
        def watched_iter(loader: DataLoader[Any]) -> Any:
            if sources.settled:  # is this a pass of the training loop?
                training = sources.training
                is_training = training is not None and training.iterable is loader
                (sources.trained if is_training else sources.passed).add(loader)
                if training is None or not is_training or not training.may_train:
                    return _original_iter(loader)
            hooks = sources.hooks
            outer, started = hooks.phase, now_ns()
            hooks.enter(NEXT)  # workers start here
            iterator = _original_iter(loader)
            hooks.enter(outer)
            return WatchedIterator(sources, sources._of_loader(loader, None), iterator, started)

        DataLoader.__iter__ = watched_iter  # type: ignore[method-assign]

    def remove(self) -> None:
        """Stop watching."""
        DataLoader.__iter__ = _original_iter  # type: ignore[method-assign]
        self.settled = True
        self.next_batch = lambda watched: next(watched.iterator)
        self.on_iteration = lambda: None

    def pass_without_step(self, source: Source) -> None:
        """Note a pass that ended without an optimizer step."""
        if source.place is None or isinstance(source.iterable, DataLoader):
            return
        count = self._stepless_passes[source.place] = self._stepless_passes.get(source.place, 0) + 1
        if count >= STEPLESS_PASSES and not source.steps_between:
            self._ignored.add(source.place)
            self._loops.pop(source.place, None)

    def _of_loader(self, loader: DataLoader[Any], place: SourceLine | None) -> Source:
        """The source of a loader: its own, or that of the loader it replaces."""
        source = self._loaders.get(id(loader))
        if source is None:
            others = [loader for loader in self._loaders.values() if loader.place == place]
            others.sort(key=lambda other: other.iterable.dataset is not loader.dataset)  # the same data first
            source = next((other for other in others if self._replace_loader(other, loader)), None) or Source(loader, None)
            self._loaders[id(loader)] = source
        return source

    def _replace_loader(self, source: Source, loader: DataLoader[Any]) -> bool:
        """Continue a source with another loader if each epoch creates a new one."""
        # A loader that existed at the first step, such as that of a validation in the same loop, is not a new one.
        former = source.iterable
        if source.place is None or former is loader or not isinstance(former, DataLoader) or not source.may_train:
            return False
        if not issubclass(type(loader), DataLoader):  # a wrapper with the __class__ of a DataLoader
            return False
        if self._existing is None or loader in self._existing or type(loader.dataset) is not type(former.dataset):
            return False
        self._loaders.pop(id(former), None)
        self._loaders[id(loader)] = source
        source.iterable = loader
        return True

    def select(self, source: Source) -> None:
        """Set the training loop."""
        self.training, self.settled = source, True
        known = [*self._loops.values(), *self._loaders.values()]
        self.stepless = [loop.iterable for loop in known if loop.gives_batches and loop.can_repeat and not loop.steps_between]
        self.trained.update(loader.iterable for loader in self._loaders.values() if loader.steps_between)
        self._loops = {place: loop for place, loop in self._loops.items() if loop is source}
        self._loaders = {key: loop for key, loop in self._loaders.items() if loop is source or loop.iterable is source.loader}
        source.last = None

    def find_training_loop(self) -> bool:
        """Search the loops seen so far; True if the search is over."""
        steps = self.hooks.steps
        if self._existing is None:
            self._existing = weakref.WeakSet(objects_of(DataLoader))
        if steps < MIN_STEPS:
            return False
        candidates = [loop for loop in (*self._loops.values(), *self._loaders.values()) if loop.steps_between >= MIN_STEPS - 1]
        if not candidates:
            self.settled = steps >= STEPS_WITHOUT_LOOP
            return self.settled
        batches = [
            candidate for candidate in candidates if candidate.gives_batches and steps <= MAX_STEPS_PER_BATCH * candidate.nexts
        ]
        if not batches and steps < STEPS_WITHOUT_LOOP:
            return False  # a loop with several steps per batch takes longer to find
        pool = batches or candidates
        best = max(pool, key=lambda candidate: candidate.steps_between)
        for candidate in pool * 2:  # outwards, along the iterables that process its batches
            if candidate.inner is best and not candidate.passes_on and candidate.steps_between >= best.steps_between - 1:
                best = candidate
        while best.passes_on and best.inner in pool:
            best = best.inner
        if best.place is None:  # the user's loop iterates a wrapper of the loader, made by a library
            best.place = next(
                (loader.place for loader in self._loaders.values() if loader.place is not None and not loader.nexts), None
            )
        self.select(best)
        return True


# ---- helpers for loaders ----


def wait_for_workers(iterator: Any) -> None:
    """Wait until the workers of a DataLoader have made all requested batches and are idle, for at most some seconds."""
    queue = getattr(iterator, "_worker_result_queue", None)
    if queue is None:
        return
    begin, pause = now_ns(), threading.Event()
    while now_ns() - begin < PATIENCE_SECONDS * 1e9:
        pinned = getattr(iterator, "_data_queue", queue)
        ready = queue.qsize() + (pinned.qsize() if pinned is not queue else 0)
        early = sum(len(info) > 1 for info in iterator._task_info.values())  # received out of order
        if ready + early >= iterator._tasks_outstanding:
            return
        pause.wait(0.01)


def length_of(iterable: Any) -> int | None:
    """The length of an iterable; None if it has none."""
    try:
        return len(iterable)
    except (TypeError, NotImplementedError):
        return None


WORKER_SECONDS = 20.0  # time limit of a batch from workers that the program does not have: its dataset may hang in a worker


def batches_of_workers(loader: DataLoader[Any], workers: int) -> Iterator[Any]:
    """Endless batches of a loader, made by this number of persistent worker processes; with 0, by this process."""
    if isinstance(loader.dataset, IterableDataset):
        options: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        options = {"batch_sampler": loader.batch_sampler}
    else:
        options = {"batch_size": None, "sampler": loader.sampler}
    same = ("dataset", "collate_fn", "pin_memory", "generator", *(("worker_init_fn", "multiprocessing_context") if workers else ()))
    options |= {name: getattr(loader, name) for name in same}
    if workers:  # torch refuses these options without workers
        options |= {"persistent_workers": True, "timeout": WORKER_SECONDS}
    other: DataLoader[Any] = DataLoader(**options, num_workers=workers)
    while True:
        yield from _original_iter(other)
