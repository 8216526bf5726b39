"""Prefetch: batches made by background threads before they are asked for, in the order of a cursor.

    FeedRanks        this process among all of a training run
    Cursor           epoch and position: with the seed, all the state of a feed
    Steps            which positions each step of a pass takes
    FeedIterator     what iter(feed) returns: takes batches from a Prefetcher and moves the position of the feed
    Prefetcher       runs make(0), make(1), … in threads, and gives the results in order

A step takes the next `world_size * batch_size` positions of the order. Each rank gets a range of them, of equal sizes or, at the
end of an epoch, of sizes that differ by at most one. End to end the ranges are the order.

With a global batch, the order is cut into updates, and an update into batches, both wherever the ranks are. The ranks take the batches
of an update in turn: batch k belongs to rank k modulo `world_size`. So a batch has the same samples on any number of ranks.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from queue import SimpleQueue
from typing import Annotated, Any, NoReturn, Protocol, TypeVar

import numpy as np
import torch
from msgspec import Meta

from stoker._clock import Spans, now_ns
from stoker._types import Array, CheckedFields, Count
from stoker.errors import FeedError, OptionError
from stoker.feed.padding import Tensors
from stoker.sampling.orders import Plan
from stoker.sampling.permutation import MAX_SEED, derive, draw_below, epoch_key
from stoker.sampling.views import Draw


@dataclass(frozen=True, kw_only=True)
class Distributed(CheckedFields):
    """How the samples of an epoch are dealt out to the processes of a training run.

    Args:
        rank: The rank of this process; by default from the environment variable RANK, as torchrun sets it.
        world_size: The number of ranks; by default from WORLD_SIZE.
        global_batch_size: Samples per update of the weights, over all ranks: a multiple of the batch size. Every update then has the
            same samples in the same batches on any number of ranks; `Trainer` accumulates as many batches as that needs.

    Example:
        >>> Distributed(rank=1, world_size=4).global_batch_size is None
        True
    """

    rank: Annotated[int, Meta(ge=0)] | None = None
    world_size: Count | None = None
    global_batch_size: Count | None = None


@dataclass(frozen=True)
class FeedRanks:
    """This process and how many there are."""

    rank: int
    world_size: int

    @classmethod
    def find(cls, rank: int | None, world_size: int | None) -> FeedRanks:
        """As given, or from RANK and WORLD_SIZE as `torchrun` sets them, or a single process."""
        if (rank is None) != (world_size is None):
            raise OptionError(
                f"rank is {rank} and world_size {world_size}; give both, or none to read RANK and WORLD_SIZE.", parameter="rank"
            )
        if rank is None or world_size is None:
            rank, world_size = integer_from_environment("RANK"), integer_from_environment("WORLD_SIZE") or 1
            if rank is None and world_size > 1:
                raise OptionError(
                    f"WORLD_SIZE is {world_size}, but RANK is not set, so this process cannot know its share. Pass "
                    f"distributed=Distributed(rank=…, world_size=…) (for Lightning: trainer.global_rank and trainer.world_size).",
                    parameter="distributed",
                )
            rank = rank or 0
        if not 0 <= rank < world_size:
            raise OptionError(f"rank {rank!r} of {world_size!r} is invalid; expected 0 <= rank < world_size.", parameter="rank")
        return cls(rank, world_size)

    def share(self, start: int, stop: int) -> tuple[int, int]:
        """The range of the positions `start` to `stop` that this rank gets."""
        count = stop - start
        return start + count * self.rank // self.world_size, start + count * (self.rank + 1) // self.world_size


def integer_from_environment(name: str) -> int | None:
    """The integer in an environment variable, as torchrun sets it; None where it is not set."""
    text = os.environ.get(name)
    if text is None or not text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"the environment variable {name} is {text!r}; expected an integer.", parameter=name) from None


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
    if not isinstance(state, Mapping):
        raise FeedError(f"the state of a feed is a {type(state).__name__}; expected a dict that state_dict() gave.")
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise FeedError(f"the state of a feed lacks {', '.join(missing)}; found {', '.join(map(str, state)) or 'nothing'}.")
    choices = [key for key in state if key not in _KEYS]
    for key in (*_KEYS[:4], *choices):
        if type(state[key]) is not int or not 0 <= state[key] <= MAX_SEED:
            raise FeedError(f"the state of a feed has {key} {state[key]!r}; expected an integer from 0 to 2**63 - 1.")
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


_PLACES, _TRANSFORMS = 20, 21  # what keys are for here; orders and splits have the numbers below


@dataclass(frozen=True)
class Steps:
    """The steps of one pass: which positions each takes, and which of them are this rank's."""

    plan: Plan
    epoch: int
    start: int
    _: KW_ONLY
    batch_size: int
    ranks: FeedRanks
    drops_last: bool
    seed: int = 0
    """Of the order."""
    is_random: bool = False
    """Whether samples lie at random places."""
    per_update: int | None = None
    """Batches of an update, of all ranks, where they are the same on any number of ranks."""

    @property
    def draw(self) -> Draw | None:
        """Where samples at random places lie: a function of seed, epoch and sample."""
        return partial(draw_below, epoch_key(self.seed, self.epoch, _PLACES)) if self.is_random else None

    def seed_of(self, step: int) -> int:
        """The seed of a generator for this rank's batch: a function of the seed of the order, the epoch and the first position."""
        return int(derive(epoch_key(self.seed, self.epoch, _TRANSFORMS), np.uint64(self.range_of(step)[0]))) >> 1

    @property
    def rounds(self) -> int:
        """Steps per update. In the last of them some ranks have no batch where the ranks do not divide the batches of an update."""
        return 1 if self.per_update is None else -(-self.per_update // self.ranks.world_size)

    @property
    def stride(self) -> int:
        """Positions of a step, of all ranks; the last step of an update may have less."""
        return self.batch_size * self.ranks.world_size

    @property
    def _update(self) -> int:
        """Positions of an update, where it has a fixed number of batches; otherwise of a step."""
        return self.batch_size * self.per_update if self.per_update is not None else self.stride

    def __len__(self) -> int:
        left = self.plan.num_positions - self.start
        updates, rest = divmod(left, self._update)
        return updates * self.rounds + (0 if self.drops_last else -(-rest // self.stride))

    def end(self, step: int) -> int:
        """The position after a step."""
        update, number = divmod(step, self.rounds)
        first = self.start + update * self._update
        return min(first + min((number + 1) * self.stride, self._update), self.plan.num_positions)

    def after(self, step: int) -> tuple[int, int]:
        """The epoch and the position after a step: with the last one an epoch is done, and a state saved then begins the next."""
        return (self.epoch + 1, 0) if step + 1 >= len(self) else (self.epoch, self.end(step))

    @property
    def num_whole(self) -> int:
        """Steps from the first one in which each rank has a whole batch: all but perhaps the last, where ranks divide an update."""
        is_even = self._update % self.stride == 0
        return (self.plan.num_positions - self.start) // self.stride if is_even else 0

    def range_of(self, step: int) -> tuple[int, int]:
        """The positions of this rank's batch, which may be none."""
        start, stop = self.end(step - 1), self.end(step)
        if self.per_update is None:
            return self.ranks.share(start, stop)
        return tuple(min(start + place * self.batch_size, stop) for place in (self.ranks.rank, self.ranks.rank + 1))  # type: ignore[return-value]

    def numbers(self, step: int, count: int = 1) -> Array:
        """The samples of this rank in a step, or in `count` steps from there on."""
        if self.ranks.world_size == 1:
            return self.plan.numbers(self.epoch, self.end(step - 1), self.end(step + count - 1))
        return np.concatenate([self.plan.numbers(self.epoch, *self.range_of(place)) for place in range(step, step + count)])


# Background threads refer to the producer (HostProducer in gather.py, DeviceProducer in device.py) and the steps of a pass, never
# to the iterator: when the iterator is closed, forgotten, or the interpreter ends, they end.

T = TypeVar("T")

END_NS = 1_000_000_000


class Prefetcher(Iterator[T]):
    """`make(0)`, `make(1)`, … up to `num_steps`, in order.

    `threads` threads make up to `prefetch` of them ahead; with 0 threads they are made when asked for. Step k is made by thread
    k modulo `threads`. Each thread has a queue in and a queue out, so the order needs no lock. An error takes the place of its
    step and is raised there. `on_close` is called before the threads are ended.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        num_steps: int,
        *,
        threads: int,
        prefetch: int,
        waits: Spans | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._make = make
        self._waits = waits
        self._num_steps = num_steps
        self._next = 0
        self._process = os.getpid()
        self._stopped = threading.Event()
        self._inboxes: list[SimpleQueue[int | None]] = [SimpleQueue() for _ in range(threads)]
        self._outboxes: list[SimpleQueue[tuple[T | None, BaseException | None]]] = [SimpleQueue() for _ in range(threads)]
        workers: list[threading.Thread] = []
        # Also runs when the interpreter ends, before daemon threads are frozen in the middle of what they do.
        self._end = weakref.finalize(self, _end, self._inboxes, self._outboxes, workers, self._stopped, self._process, on_close)
        try:
            for i, boxes in enumerate(zip(self._inboxes, self._outboxes, strict=True)):
                worker = threading.Thread(target=_work, args=(make, *boxes, self._stopped), name=f"stoker-feed-{i}", daemon=True)
                worker.start()
                workers.append(worker)
        except RuntimeError:  # the system gives no more threads
            self._end()
            raise
        self._submitted = 0
        for _ in range(min(prefetch, num_steps) if threads else 0):
            self._submit()

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked process, which has none of the threads."""
        return os.getpid() == self._process

    def refuse_fork(self) -> None:
        """Raise in a forked process, which has none of the threads."""
        if self._inboxes and not self.is_of_this_process:
            raise FeedError(
                f"this feed was started in process {self._process}, and a fork made process {os.getpid()} without its threads. "
                f"Call iter(feed) in the process that uses it."
            )

    def __next__(self) -> T:
        self.refuse_fork()
        if self._next >= self._num_steps or not self._end.alive:
            self.close()
            raise StopIteration
        start = now_ns()
        if self._inboxes:
            result, error = self._outboxes[self._next % len(self._outboxes)].get()
        else:
            result, error = _try(self._make, self._next)
        self._next += 1  # only now: a caller that is interrupted while waiting may ask again
        if self._waits is not None:
            self._waits.add(start, now_ns())
        if error is not None:
            self.close()  # a failed step is the last one: continuing would leave it out
            raise error
        if self._inboxes and not self._end.alive:
            raise StopIteration  # closed by another thread, perhaps before the step was made
        if self._inboxes:
            self._submit()
        return result  # type: ignore[return-value]

    def _submit(self) -> None:
        if self._submitted < self._num_steps:
            self._inboxes[self._submitted % len(self._inboxes)].put(self._submitted)
            self._submitted += 1

    def close(self) -> None:
        """End the threads; waits for the step that each is making, one second at most."""
        self._end()


def _try(make: Callable[[int], T], step: int) -> tuple[T | None, BaseException | None]:
    try:
        return make(step), None
    except StopIteration as error:  # would be taken for the end of the epoch, and the rest of it lost without a word
        replaced = FeedError(
            f"making a batch raised {error!r}, which means the end of an iterator. Catch it where `next` is called."
        )
        replaced.__cause__ = error
        for note in getattr(error, "__notes__", []):
            replaced.add_note(note)
        return None, replaced
    except BaseException as error:  # whatever it is, the consumer must get it
        return None, error


def _work(make: Callable[[int], Any], inbox: SimpleQueue[int | None], outbox: SimpleQueue[Any], stopped: threading.Event) -> None:
    while True:
        step = inbox.get()
        if step is None or stopped.is_set():
            return
        made = _try(make, step)
        outbox.put(made)
        if made[1] is not None:
            return
        del made  # a thread that waits for its next step would keep a slot busy


def _end(
    inboxes: list[SimpleQueue[int | None]], outboxes: list[SimpleQueue[Any]], workers: list[threading.Thread],
    stopped: threading.Event, process: int, on_close: Callable[[], None] | None,
) -> None:  # fmt: skip
    if on_close is not None:
        on_close()
    if os.getpid() != process:
        return  # after a fork the threads are those of the parent
    stopped.set()
    for inbox in inboxes:
        inbox.put(None)
    for outbox in outboxes:
        outbox.put((None, None))  # for a consumer that waits while another thread closes
    deadline = now_ns() + END_NS
    for worker in workers:
        if worker is not threading.current_thread():  # the last reference may go in one of them
            worker.join(max(0, deadline - now_ns()) / 1e9)


class Producer(Protocol):
    """How the batches of a feed are made. Shared by all passes, so it holds nothing of a single one."""

    def start(self, steps: Steps, waits: Spans) -> Prefetcher[Any]:
        """Begin to make the batches of a pass; an item of the prefetcher stands for one batch or several."""

    def unpack(self, made: Any) -> Iterator[Any]:
        """The batches of an item, not yet received; an exception in place of the first one that failed."""

    def receive(self, entry: Any, in_flight: deque[torch.cuda.Event]) -> Tensors:
        """The batch, on the thread and the CUDA stream of the caller. `in_flight` has the events of the batches before."""


_NOTHING = object()


class FeedIterator(Iterator[Tensors]):
    """One pass over the rest of an epoch. Threads may share it: each batch goes to one of them.

    The batches that were handed out are the ones that count as seen: each moves the cursor of the feed.
    """

    def __init__(
        self,
        producer: Producer,
        steps: Steps,
        cursor: Cursor,
        waits: Spans,
        finish: Callable[[Tensors, int], Tensors] | None = None,
        prefetcher: Prefetcher[Any] | None = None,
    ) -> None:
        self._producer = producer
        self._finish = finish
        self._waits = waits
        self._lock, self._process = threading.RLock(), os.getpid()
        self._is_closed = False
        self._begin(steps, cursor, prefetcher)

    def _begin(self, steps: Steps, cursor: Cursor, prefetcher: Prefetcher[Any] | None = None) -> None:
        self._steps = steps
        self.cursor = cursor
        self._step = 0
        self._prefetcher = prefetcher or self._producer.start(steps, self._waits)
        self._entries: Iterator[Any] = iter(())
        self._in_flight: deque[torch.cuda.Event] = deque()
        if not len(steps):
            cursor.epoch, cursor.position = steps.after(-1)

    def begin_elsewhere(self, steps: Steps, cursor: Cursor) -> None:
        """Be a pass over these steps instead; only before the first batch was handed out."""
        self._prefetcher.close()
        self._begin(steps, cursor)
        if self._is_closed:
            self._prefetcher.close()

    def __next__(self) -> Tensors:
        if os.getpid() != self._process:
            self._lock, self._process = threading.RLock(), os.getpid()  # a fork may have come while a thread held it
        with self._lock:
            batch = self._take()
            self.cursor.epoch, self.cursor.position = self._steps.after(self._step)
            self._step += 1
        return batch

    def _take(self) -> Tensors:
        self._prefetcher.refuse_fork()
        entry = next(self._entries, _NOTHING)
        while entry is _NOTHING:
            self._entries = self._producer.unpack(next(self._prefetcher))
            entry = next(self._entries, _NOTHING)
        if isinstance(entry, Exception):
            self.close()
            raise entry
        batch = self._producer.receive(entry, self._in_flight)
        if self._finish is None:
            return batch
        try:
            return self._finish(batch, self._steps.seed_of(self._step))
        except Exception as error:
            self.close()
            error.add_note(f"in device_transform, for batch {self._step:,} of this pass over epoch {self._steps.epoch:,}")
            raise

    def __len__(self) -> int:
        return len(self._steps) - self._step

    def close(self) -> None:
        """End the threads and the pass. Takes no lock, so that it ends the wait of a thread that holds it."""
        self._is_closed = True
        self._entries = iter(())
        self._prefetcher.close()

    def __reduce__(self) -> NoReturn:
        raise FeedError(
            "a pass over a feed cannot be pickled or copied: its threads are those of this process. Make the feed in the "
            "other process and load feed.state_dict() there."
        )
