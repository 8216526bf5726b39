"""The session: from a running training to `Measurements`, one clean stretch of steps after the other.

It stands at the `next` of the training loop. There it decides, step by step, what the loop gets: the true batch (the loop as it
is), a copy of an earlier one (the loop without its data), or nothing yet, while the loader runs alone. The order of the stretches
is one generator, `_plan`, which reads from top to bottom. The law: until the first stretch of the loop as it is has ended, the
program computes what it would have computed alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import torch

from stoker.clock import now_ns
from stoker.diagnose.boundaries import FORWARD, NEXT, PREPARE, REST, Boundaries, Times, compiled
from stoker.diagnose.copies import copied, num_bytes, num_rows
from stoker.diagnose.cuda import Asleep, Marks, Waits, copy_seconds, cycles_a_second
from stoker.diagnose.ledger import Ledger
from stoker.diagnose.measurements import Device
from stoker.diagnose.sampler import Sampler
from stoker.diagnose.stages import profile_loader
from stoker.diagnose.watched import Sources, Watched
from stoker.diagnose.work import Counting, Profiling, main_precision, optimizer_ways, work_of
from stoker.diagnose.workers import queue_length, wait_for_workers
from stoker.errors import TrainError

CPU_SECONDS, CUDA_SECONDS = 22.0, 12.0
"""From the first measured step: what a verdict may take."""
CLEAN_STEPS = 12
MAX_CACHED_BYTES = 256 << 20
MAX_CACHED = 16


class Mode(NamedTuple):
    """What a step gets."""

    cached: bool = False
    before: Callable[[], object] | None = None
    """Called when the batch is there, outside of all times."""


TRUE, CACHED = Mode(), Mode(cached=True)
Plan = Generator[Mode, Times, None]


class Session:
    """One diagnosis of one program."""

    def __init__(
        self, *, on_done: Callable[[], None], every_turn: bool = False, pace: float = 1.0, seconds: float | None = None
    ) -> None:
        self.boundaries = Boundaries()
        self.sources = Sources(self.boundaries)
        self.ledger = Ledger()
        self.done = False
        self.failure: Exception | None = None
        self.device: Device = "cpu"
        self._on_done = on_done
        self._pace = pace
        """How long stretches are, as a share of what they usually are."""
        self._seconds = seconds
        """How long measuring may take; by default what a verdict needs."""
        self._every_turn = every_turn
        """Whether each turn of the loop is a step, whatever happens in it."""
        self._taken = False
        """Whether the loop is ours: its epochs do not end any more."""
        self._mode = TRUE
        self._plan = self._stretches()
        self._watched: Watched | None = None
        self._batches: list[Any] = []
        self._turn_number = 0
        self._nexts = 0
        self._begin_ns = 0

    # ---- until the training loop is known ----

    def install(self) -> None:
        """Begin to listen to the program."""
        self.boundaries.install()
        self.sources.watch_loaders()
        self.boundaries.on_step = self._search

    def remove(self) -> None:
        """Leave the program alone."""
        self.boundaries.on_step = self.boundaries.on_edge = None
        self.boundaries.remove()
        self.sources.remove()

    def _search(self) -> None:
        self.ledger.early.append(self.boundaries.take())
        if self.boundaries.steps == 1:
            self.boundaries.find_roots()
        if self.sources.choose():
            self.take_control()

    def take_control(self) -> None:
        """The training loop is known: measure from here on."""
        self.boundaries.keep_roots()
        optimizer = self.boundaries.optimizer
        if optimizer is not None and optimizer.param_groups[0]["params"][0].device.type == "cuda":
            self.device = "cuda"
        self._begin_ns = now_ns()
        self._mode = next(self._plan)
        self.boundaries.on_step = None if self.sources.found is not None else self._end_step
        self.sources.hand_out = self._hand_out
        self.sources.on_turn = self._begin_turn

    # ---- at every turn of the loop ----

    def _hand_out(self, watched: Watched) -> Any:
        boundaries = self.boundaries
        boundaries.switch(NEXT)
        self._watched = watched
        if boundaries.stepped or (self._every_turn and self._nexts):
            self._advance()
            if self.done:
                raise StopIteration
        mode = self._mode
        value = self._next_cached() if mode.cached else self._next_true(watched)
        self._nexts += 1
        boundaries.switch(PREPARE if boundaries.finds_forward else FORWARD)
        if mode.before is not None:
            self._begin_step(mode)
        return value

    def _begin_turn(self) -> None:
        """A `while` loop begins anew."""
        if self.boundaries.stepped:
            self._advance()
        self.boundaries.switch(PREPARE)
        if self._mode.before is not None:
            self._begin_step(self._mode)

    def _begin_step(self, mode: Mode) -> None:
        if mode.before is not None:
            mode.before()
        self._mode = Mode(cached=mode.cached)  # once a step, also where it has several batches
        self.boundaries.resume()

    def _end_step(self) -> None:
        """An optimizer's step has ended, and there is no loop to be seen."""
        self._begin_turn()

    def _advance(self) -> None:
        times = self.boundaries.take()
        self.ledger.batches_a_step.append(self._nexts)
        self._nexts = 0
        try:
            self._mode = self._plan.send(times)
        except StopIteration:
            self._end(None)
        except Exception as error:  # ours, not the user's: it must not be taken for a fault of the program
            self._end(error)
        self.boundaries.resume()

    def _end(self, failure: Exception | None) -> None:
        self.failure, self.done = failure, True
        self.remove()
        self._on_done()

    def _next_true(self, watched: Watched) -> Any:
        try:
            return next(watched.iterator)
        except StopIteration:
            self.boundaries.broken = True
            if not (self._taken and watched.source.can_repeat):
                self.boundaries.switch(REST)
                raise
            watched.restart()
            return next(watched.iterator)

    def _next_cached(self) -> Any:
        self._turn_number += 1
        # On a GPU the time of a step is that between two marks, so nothing may be copied meanwhile.
        return copied(self._batches[self._turn_number % len(self._batches)], tensors=self.device == "cpu")

    # ---- the stretches ----

    def _stretches(self) -> Plan:
        yield from self._warm_up()
        self._begin_ns = now_ns()
        yield from self._loop(seconds=1.2, least=CLEAN_STEPS)
        self._taken = True
        for _ in range(2):
            if self._can_cache:
                yield from self._cached(seconds=0.7, least=6)
            if self._can_repeat:
                self._loader_alone(seconds=0.6)
            if self._late:
                break
            yield from self._loop(seconds=0.7, least=4)
        yield from self._blame()
        if not self._late and self.device == "cpu":
            yield from self._threads()
        yield from self._work()
        if self.device == "cuda":
            yield from self._device_alone()
            self._copies_alone()
        self._look_into_loader()
        if not self._late:
            yield from self._loop(seconds=0.4, least=4)
        self.ledger.seconds = (now_ns() - self._begin_ns) / 1e9

    def _warm_up(self) -> Plan:
        """Until the queue of a loader is empty and the times of steps have settled."""
        seen: list[float] = []
        least = max(3, self._queue + 1)
        while len(seen) < 60:
            times = yield TRUE
            self.ledger.early.append(times)
            seen.append(times.seconds)
            if len(seen) < least:
                continue
            if sum(seen[1:]) > 4.0:
                break
            if len(seen) >= 6:
                before, after = statistics.median(seen[-6:-3]), statistics.median(seen[-3:])
                if abs(before - after) <= 0.1 * max(before, after):
                    break
        yield TRUE

    def _loop(self, *, seconds: float, least: int) -> Plan:
        """T: the loop as it is."""
        if self._taken:
            yield from self._settle(TRUE, self._queue + 1)
        yield from self._steps(TRUE, seconds, least, self.ledger.loop)

    def _cached(self, *, seconds: float, least: int) -> Plan:
        """C: the loop with its data for nothing."""
        self._collect()
        wait_for_workers(self._loader_iterator)
        yield from self._settle(CACHED, 1)
        yield from self._steps(CACHED, seconds, least, self.ledger.cached)

    def _settle(self, mode: Mode, number: int) -> Plan:
        for _ in range(number):
            yield mode

    def _steps(self, mode: Mode, seconds: float, least: int, into: list[Times]) -> Plan:
        begin, count, tries = now_ns(), 0, 0
        marks = Marks() if self.device == "cuda" else None
        while count < least or now_ns() - begin < seconds * self._pace * 1e9:
            times = yield mode
            tries += 1
            if marks is not None:
                marks.add(whole=not times.broken)
            if not times.broken:
                into.append(times)
                count += 1
            if count >= 600 or tries > 40 + 4 * least + 2 * count:
                break
        if marks is not None:
            self.ledger.on_device.setdefault(id(into), []).extend(marks.seconds())

    def _loader_alone(self, *, seconds: float) -> None:
        """D: batches one after the other, the queue thrown away first."""
        watched = self._watched
        if watched is None:
            return
        for _ in range(self._queue + 1):
            self._pull(watched)
        begin, count = now_ns(), 0
        while count < 200 and (count < 4 or now_ns() - begin < seconds * self._pace * 1e9):
            spent, whole = self._pull(watched)
            if whole:
                self.ledger.loader_alone.append(spent)
            count += 1

    def _pull(self, watched: Watched) -> tuple[float, bool]:
        start = now_ns()
        try:
            next(watched.iterator)
        except StopIteration:
            watched.restart()
            next(watched.iterator)
            return (now_ns() - start) / 1e9, False
        return (now_ns() - start) / 1e9, True

    def _blame(self) -> Plan:
        """The user's lines, by phase."""
        yield from self._settle(TRUE, self._queue + 1 if self._can_cache else 0)
        with Sampler(self.boundaries) as sampler:
            yield from self._steps(TRUE, 1.2, 4, [])
        self.ledger.blames = sampler.blames()

    def _threads(self) -> Plan:
        """The loop without its data, with other numbers of threads."""
        mode = CACHED if self._can_cache else TRUE
        given, cores = torch.get_num_threads(), self.ledger.cores
        wanted = sorted({1, max(1, cores // 2), cores, given})
        if len(wanted) < 2:
            return
        try:
            for number in wanted:
                torch.set_num_threads(number)
                yield from self._settle(mode, 2)
                steps: list[Times] = []
                yield from self._steps(mode, 0.3, 4, steps)
                if steps:
                    self.ledger.by_threads[number] = statistics.median(one.without_data for one in steps)
        finally:
            torch.set_num_threads(given)

    def _work(self) -> Plan:
        """What a step consists of, counted."""
        counting, profiling = Counting(), Profiling(self.device)
        if not compiled():  # such code would be compiled anew for a mode that looks at its operations
            yield Mode(cached=self._can_cache, before=counting.__enter__)
            counting.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        yield from self._settle(CACHED if self._can_cache else TRUE, 1)
        yield Mode(cached=self._can_cache, before=profiling.__enter__)
        profiling.__exit__(None, None, None)
        self.ledger.work = work_of(counting, profiling)
        if counting.flops:
            self.boundaries.precision = main_precision(counting)
        if self.boundaries.optimizer is not None:
            self.ledger.optimizer_ways = optimizer_ways(self.boundaries.optimizer, at_most=0.4 * self._pace)

    def _device_alone(self) -> Plan:
        """H, G and S: issuing a step, running it, and waiting within it."""
        cached, ledger = self._can_cache, self.ledger
        for _ in range(7):
            times = yield Mode(cached=cached, before=torch.cuda.synchronize)
            ledger.host_issue.append(times.without_data)
        sleep = 2.5 * statistics.median(ledger.host_issue)
        speed = cycles_a_second()
        rounds: list[Asleep] = []
        for _ in range(7):
            asleep = Asleep(self.boundaries, sleep, speed)
            yield Mode(cached=cached, before=asleep.begin)
            asleep.end()
            rounds.append(asleep)
        ledger.sleeps = rounds
        waits = Waits()
        for _ in range(3):
            yield Mode(cached=cached, before=waits.begin)
            waits.end()
        ledger.syncs = waits.syncs()

    def _copies_alone(self) -> None:
        """X: several distinct batches, again and again."""
        optimizer = self.boundaries.optimizer
        if optimizer is not None and self._batches:
            self.ledger.copies = copy_seconds(self._batches, optimizer.param_groups[0]["params"][0].device)

    def _look_into_loader(self) -> None:
        """Which part of making a batch takes the time."""
        source = self.sources.found
        if source is None or source.loader is None:
            return
        self.ledger.profile = profile_loader(source.loader, seconds=0.5 * self._pace)

    # ---- what is known ----

    def _collect(self) -> None:
        """Keep copies of several distinct batches."""
        watched = self._watched
        while watched is not None and len(self._batches) < MAX_CACHED:
            self._pull_into(watched)
            if num_bytes(self._batches) > MAX_CACHED_BYTES:
                break

    def _pull_into(self, watched: Watched) -> None:
        try:
            batch = next(watched.iterator)
        except StopIteration:
            if not watched.source.can_repeat:
                raise TrainError("the batches came to an end while they were looked at.") from None
            watched.restart()
            batch = next(watched.iterator)
        self._batches.append(copied(batch))
        self.ledger.batch_bytes.append(num_bytes(batch))
        self.ledger.batch_rows = num_rows(batch)

    @property
    def _can_cache(self) -> bool:
        found = self.sources.found
        return found is not None and found.iterable is not None and found.gives_batches

    @property
    def _can_repeat(self) -> bool:
        found = self.sources.found
        return found is not None and found.gives_batches and found.can_repeat

    @property
    def _loader_iterator(self) -> Any:
        return self._watched.iterator if self._watched is not None else None

    @property
    def _queue(self) -> int:
        found = self.sources.found
        return queue_length(found.loader) if found is not None else 0

    @property
    def _late(self) -> bool:
        limit = CPU_SECONDS if self.device == "cpu" else CUDA_SECONDS
        return now_ns() - self._begin_ns > (limit if self._seconds is None else self._seconds) * 1e9
