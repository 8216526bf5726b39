"""The session: a state machine that measures a running training loop, one window of steps after another.

1. Search: loops.py finds the training loop, which runs undisturbed.
2. Measure: the session gives the loop its batches. At each `next` it ends a step, sends the step's times to the plan, and gets the
   input of the next step from it: a real batch (baseline) or a copy of an earlier one (no data cost). The plan is a generator:
   `measure_all` of windows.py, or that of a trial or of the gate.
3. Done: the hooks are removed, and `measurements` returns the result.

In a distributed run, all processes make the same number of steps.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import msgspec
import torch
from torch.optim.lr_scheduler import LRScheduler

from stoker._clock import now_ns
from stoker.diagnose.distributed import MeasuredRanks
from stoker.diagnose.frameworks import framework_of
from stoker.diagnose.hooks import (
    FORWARD,
    NAMES,
    NEXT,
    PREPARE,
    REST,
    StepHooks,
    StepMarks,
    StepTimes,
    copied,
    frames,
    has_optimizer,
    leaves,
    num_bytes,
    num_rows,
    replace,
)
from stoker.diagnose.loops import LONGER_EPOCHS, Sources, WatchedIterator, length_of, wait_for_workers
from stoker.diagnose.measurements import Device, Machine, Measurements
from stoker.diagnose.ops import ProgramProfilers
from stoker.diagnose.profilers import Sampler
from stoker.diagnose.recorder import Recorder, StepSeries
from stoker.errors import TrainError

MAX_SECONDS: dict[Device, float] = {"cpu": 20.0, "cuda": 12.0}  # time limit of measuring, from the first measured step
CUDA_PACE = 0.6  # windows of a GPU are shorter: its steps vary less
FIX_TIME = 1.5  # times that limit up to which fixes are measured, unless the user has set it
MAX_STEPS = 600  # per window
MAX_CACHED = 16
MAX_CACHED_BYTES = 256 << 20
MAX_BACKWARDS, MAX_WITHOUT_OPTIMIZER = 200, 12
"""Backward passes without an optimizer step after which each one counts as a step: with an optimizer in the process, and without."""
PROFILED = (
    "the program runs torch.profiler, which recorded nothing while steps were measured, so that its cost is not in them. If the program "
    "ends with the profile, switch the profiler off for the diagnosis."
)

Extend = Callable[[float, Callable[[], list[float]]], bool]
"""Whether a window needs more steps: called with the seconds of the last step, and a function that returns those of all."""


class StepInput(NamedTuple):
    """What a step gets."""

    cached: bool = False  # a copy of an earlier batch instead of a real one
    before: Callable[[], object] | None = None  # called when the batch is there; not timed
    window: StepWindow | None = None  # this step and those after it get the same, until the window is over


REAL, CACHED = StepInput(), StepInput(cached=True)
Plan = Generator[StepInput, StepTimes, None]


@dataclass(kw_only=True, slots=True)
class StepWindow:
    """Steps with the same input, measured until there are enough; only then does the plan continue."""

    series: StepSeries
    seconds: float
    least: int
    most: int = MAX_STEPS
    exactly: int | None = None  # the number of steps, counted or not, where several processes make the same
    ours: bool = False  # whether the diagnosis starts the epochs that begin meanwhile
    marks: StepMarks | None = None  # of steps on a GPU's timeline
    extend: Extend | None = None
    each: Callable[[StepTimes], None] | None = None
    _begin_ns: int = field(default_factory=lambda: now_ns())
    _total: int = 0
    _seconds: list[float] = field(default_factory=list)  # of the steps that count

    def add(self, times: StepTimes) -> bool:
        """Add a step; whether it was the last one."""
        self._total += 1
        count = len(self._seconds)
        # A step that starts an epoch does not count, unless nearly all do.
        counts = not times.new_epoch or (self._total > 2 * self.least and 4 * count < self._total)
        if self.each is not None:
            self.each(times)
        if self.marks is not None:
            self.marks.add()
        if times.new_epoch:
            times = times._replace(new_epoch=not counts, ours=self.ours)
        self.series.add(times)
        if counts:
            self._seconds.append(times.seconds)
            count += 1
        if self.exactly is not None:
            return self._total >= self.exactly
        if count >= self.most or (count >= self.least and now_ns() - self._begin_ns >= self.seconds * 1e9):
            return self.extend is None or not self.extend(times.seconds, lambda: self._seconds)
        return self._total > 40 + 4 * self.least + 2 * count


class Session:
    """One diagnosis of one program. `plan` is called with the session, and decides the input of each step.

    `step_per_batch` counts each iteration as a step, also without an optimizer. `pace` scales the length of all windows, and `seconds`
    limits the time of measuring. Fixes of `avoid` are not measured.
    """

    def __init__(
        self,
        plan: Callable[[Any], Plan],
        *,
        on_done: Callable[[], None],
        step_per_batch: bool = False,
        pace: float = 1.0,
        seconds: float | None = None,
        avoid: Sequence[str] = ("compile",),
    ) -> None:
        self.done = False  # whether everything is measured, or measuring has failed
        self.failure: Exception | None = None
        self.hooks = StepHooks()
        self.sources = Sources(self.hooks)
        self._profilers = ProgramProfilers()
        self.recorder = Recorder()
        self.device: Device = "cpu"
        self.framework: str | None = None  # that runs the loop
        self.ranks: MeasuredRanks | None = None  # the processes that train together, if there are several
        self.step_per_batch = step_per_batch
        self.avoid = avoid
        # Set by the plan.
        self.endless = False  # whether epochs do not end: the session starts another pass instead
        self.lengthens_epochs = False  # whether that was the plan's choice: it may be the cause of an error of the program
        self.short_steps = False  # whether steps are so short that they are timed without hooks
        self.short_cached_steps = False  # the same for steps with cached batches
        self.sized = False  # whether batches differ in size: those of a window are kept, and given again in the windows after it
        self.early_bytes: list[int] = []  # sizes of the batches of the warm-up
        self.last_batches: deque[tuple[int, Any]] = deque(maxlen=MAX_CACHED)  # with their numbers, where batches differ in size
        self.batch_numbers: list[int] = []  # of the cached batches, where batches differ in size
        self._num_real = 0
        self.caching = False  # whether each batch is cached: their iterable cannot be restarted, and may end soon
        self.replacement: Iterator[Any] | None = None  # gives batches instead of the loop's own iterator
        self.device_step: float | None = None  # median step on a GPU's timeline in the last window
        self.fix_on: str | None = None  # the fix that is measured now: it may be the cause of an error of the program
        self.repeats = False  # whether the program is to be run again without that fix if it fails
        # Used by the plan.
        self.batches: list[Any] = []  # the cached batches
        self.watched: WatchedIterator | None = None  # the iterator of the training loop, from its first batch on
        self.on_progress: Callable[[Measurements | None], None] = lambda measured: None
        """Gets None when the first step that is measured begins, and what is known before windows that may end the process."""
        # The progress of the session.
        self._on_done = on_done
        self._pace = pace
        self._max_seconds = seconds
        self.begin_ns = 0  # when the time limit of measuring starts
        self._plan = plan(self)
        self._input = REAL
        self._num_cached = 0
        self._num_batches = 0  # of the current step
        self._backwards = 0
        self._epoch_ended_ns: int | None = None  # until the next epoch begins
        self._epoch_sampler = Sampler(self.hooks, slow_from=0.0)  # runs between two epochs
        self._undo = contextlib.ExitStack()

    def measurements(self, machine: Machine | None = None) -> Measurements:
        """Everything known so far. Measures the machine unless one is given; raises `TrainError` if nothing was measured."""
        if self._profilers.used and PROFILED not in self.recorder.notes:
            self.recorder.notes.append(PROFILED)
        measured = self.recorder.measurements(self.sources, self.hooks, self.device, machine)
        return msgspec.structs.replace(measured, framework=self.framework)

    def install(self) -> None:
        """Install all hooks, and search for the training loop."""
        self.hooks.install()
        self.sources.watch_loaders()
        self.hooks.on_step = self._search
        self.hooks.on_backward = self._count_backward

    def make_endless(self) -> None:
        """Make epochs endless: another pass over the batches begins where one ends, and schedules may come to their end."""
        if LONGER_EPOCHS in self.avoid:
            return
        self.endless = self.lengthens_epochs = True
        original = LRScheduler.step

        @functools.wraps(original)
        def step(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            # A schedule of fixed length (OneCycleLR) raises after its last step. It takes as long as before, so it is still called.
            with contextlib.suppress(ValueError):
                original(scheduler, *args, **kwargs)

        replace(self._undo, LRScheduler, "step", step)

    def remove(self) -> None:
        """Remove all hooks."""
        self._undo.close()
        self._epoch_sampler.stop()
        self._profilers.release()
        self.hooks.on_step = self.hooks.on_phase = self.hooks.on_backward = None
        self.hooks.remove()
        self.sources.remove()

    def _count_backward(self) -> None:
        """Detect that the program updates its weights itself, without an optimizer."""
        self._backwards += 1
        if self._backwards > MAX_BACKWARDS or (self._backwards == MAX_WITHOUT_OPTIMIZER and not has_optimizer()):
            self.hooks.by_hand, self.hooks.on_backward = True, None

    def _search(self) -> None:
        self.hooks.on_backward = None
        self.recorder.early.append(self.hooks.end_step())
        if self.hooks.steps == 1:
            self.recorder.first_ns = now_ns()
            self.hooks.find_roots()
        if self.sources.find_training_loop():
            self.take_control()

    def take_control(self) -> None:
        """Begin to measure: the training loop is known. Its frames are around this call."""
        self.framework = framework_of(frames(sys._getframe()))
        self.hooks.keep_roots()
        self._profilers.hold()
        optimizer = self.hooks.optimizer
        weights = optimizer.param_groups[0]["params"][0].device.type if optimizer is not None else self.hooks.trained_on
        if weights == "cuda":
            self.device = "cuda"
        self._input = next(self._plan)
        self.on_progress(None)
        # Without a loop, a step ends when the optimizer has stepped.
        self.hooks.on_step = None if self.sources.training is not None else self._begin_iteration
        self.sources.next_batch = self._next_batch
        self.sources.on_iteration = self._begin_iteration

    def _next_batch(self, watched: WatchedIterator) -> Any:
        """End a step, and give the next one its batch."""
        hooks = self.hooks
        self._end_epoch_gap()
        hooks.enter(NEXT)
        self.watched = watched
        # Without hooks, each batch is a step; the end of an epoch has requested a batch and got none.
        if hooks.stepped or (self._num_batches and (hooks.paused or self.step_per_batch)):
            self._advance()
            if self.done:
                raise StopIteration
        if self._epoch_ended_ns is not None:
            hooks.between_ns += max(0, watched.started_ns - self._epoch_ended_ns)
            self._epoch_ended_ns = None
        if LONGER_EPOCHS in self.avoid and watched.given == length_of(watched.source.iterable):
            self._end_epoch()
        value = self._cached_batch() if self._input.cached else self._real_batch(watched)
        watched.given += 1
        self._num_batches += 1
        hooks.enter(PREPARE if hooks.roots else FORWARD)
        self._call_before()
        return value

    def _begin_iteration(self) -> None:
        """Called where the session does not give the batches: by a `while` loop, or after an optimizer step without a loop."""
        if self.hooks.stepped or self.hooks.paused:
            self._advance()
        self.hooks.enter(PREPARE)
        self._call_before()

    def _advance(self) -> None:
        """End a step: send its times to the plan, and take the input of the next."""
        times = self.hooks.end_step()
        self.hooks.steps += self.hooks.paused
        self.recorder.batches_per_step.append(self._num_batches)
        self._num_batches = 0
        try:
            if self._input.window is None or self._input.window.add(times):
                self._input = self._plan.send(times)
        except StopIteration:
            self._end(None)
        except Exception as error:  # an error of the diagnosis: it must not be raised in the program
            self._end(error)
        self.hooks.restart_clock()

    def _call_before(self) -> None:
        if self._input.before is not None:
            self._input.before()
            self._input = StepInput(cached=self._input.cached)  # once per step, also if it has several batches
            self.hooks.restart_clock()

    def _end_epoch_gap(self) -> None:
        """Stop sampling lines if the time between two epochs was sampled."""
        if self._epoch_sampler.runs:
            self._epoch_sampler.stop()
            self._epoch_sampler.end_step(StepTimes((0,) * len(NAMES), True))
            self.recorder.epoch_line = self._epoch_sampler.rare_line()

    def _end(self, failure: Exception | None) -> None:
        self.failure, self.done = failure, True
        self.remove()
        self._on_done()

    def _real_batch(self, watched: WatchedIterator) -> Any:
        if self.replacement is not None:
            return next(self.replacement)
        try:
            return self._kept(next(watched.iterator))
        except StopIteration:
            if not (self.endless and watched.source.can_repeat):
                self._end_epoch()
            self.hooks.new_epoch = True
            watched.restart()
            return self._kept(next(watched.iterator))

    def _end_epoch(self) -> NoReturn:
        """End the pass of the loop: it gets no further batch."""
        self.hooks.new_epoch = True
        self.hooks.enter(REST)
        self._epoch_ended_ns = now_ns()
        self._epoch_sampler.start()
        raise StopIteration

    def _kept(self, value: Any) -> Any:
        """A batch of the program, which is kept where batches cannot be made again, or differ in size."""
        if self.caching:
            self.cache_batch(value)
        if self.sized:
            self.hooks.batch = self._num_real = self._num_real + 1
            self.last_batches.append((self._num_real, value))
        elif self.begin_ns == 0:
            self.early_bytes.append(num_bytes(value))
        return value

    def _cached_batch(self) -> Any:
        self._num_cached += 1
        if self.batch_numbers:
            self.hooks.batch = self.batch_numbers[self._num_cached % len(self.batches)]
        # On a GPU a step is timed between two events, so tensors must not be copied within it.
        return copied(self.batches[self._num_cached % len(self.batches)], tensors=self.device == "cpu")

    @property
    def can_cache(self) -> bool:
        """Whether the loop can be given copies of earlier batches."""
        source = self.sources.training
        return source is not None and source.iterable is not None and source.gives_batches

    @property
    def can_repeat(self) -> bool:
        """Whether the iterable of the loop can be iterated again."""
        source = self.sources.training
        return source is not None and source.gives_batches and source.can_repeat

    @property
    def without_data(self) -> StepInput:
        """The input of a step without the cost of its data, where that is possible."""
        return CACHED if self.can_cache else REAL

    @property
    def queue(self) -> int:
        """Batches that workers prefetch."""
        loader = self.sources.training.loader if self.sources.training is not None else None
        return loader.num_workers * (loader.prefetch_factor or 2) if loader is not None else 0

    def cache_batches(self) -> None:
        """Fill the cache, and wait until workers are idle."""
        watched = self.watched
        if self.sized and self.last_batches:
            self.batches[:] = [batch for _, batch in self.last_batches]
            self.batch_numbers[:] = [number for number, _ in self.last_batches]
            self._num_cached = -1
            self._describe(self.batches[-1])
            wait_for_workers(watched.iterator if watched is not None else None)
            return
        while watched is not None and self._has_room and (watched.source.can_repeat or not self.batches):
            try:
                batch = next(watched.iterator)
            except StopIteration:
                if not watched.source.can_repeat:
                    raise TrainError("the batches came to an end while they were measured.") from None
                watched.restart()
                batch = next(watched.iterator)
            self.cache_batch(batch)
        wait_for_workers(watched.iterator if watched is not None else None)

    def cache_batch(self, batch: Any) -> None:
        """Cache a copy of a batch if there is room."""
        if self._has_room:
            self.batches.append(copied(batch))
            self._describe(batch)

    def _describe(self, batch: Any) -> None:
        self.recorder.batch_rows = num_rows(batch)
        self.recorder.batches_on_gpu = any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in leaves(batch))

    @property
    def _has_room(self) -> bool:
        return len(self.batches) < MAX_CACHED and num_bytes(self.batches) <= MAX_CACHED_BYTES

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit is over."""
        return bool(self.agree(now_ns() - self.begin_ns > self.max_seconds * 1e9))

    @property
    def late(self) -> bool:
        """Whether measuring has taken so long that it ends with what is known: steps are long, or wait for another thread."""
        return self.ranks is None and now_ns() - self.begin_ns > 2 * self.max_seconds * 1e9

    @property
    def no_time_for_fixes(self) -> bool:
        """Whether no more fixes are measured. They come last, and may take longer than the time limit."""
        share = FIX_TIME if self._max_seconds is None else 1.0
        return bool(self.agree(now_ns() - self.begin_ns > share * self.max_seconds * 1e9))

    @property
    def max_seconds(self) -> float:
        """The time limit of measuring."""
        return MAX_SECONDS[self.device] if self._max_seconds is None else self._max_seconds

    @property
    def patience(self) -> float:
        """Seconds to wait for rare steps: half of the time limit."""
        return self._pace * self.max_seconds / 2

    def scaled(self, seconds: float) -> float:
        """The length of a window at this pace and on this device."""
        return seconds * (self._pace * CUDA_PACE if self.device == "cuda" else self._pace)

    def agree(self, value: float) -> float:
        """The same value in all processes that train together."""
        return value if self.ranks is None else self.ranks.agree(float(value))

    def has_short_steps(self, step_input: StepInput) -> bool:
        """Whether steps with this input are so short that hooks would cost too much."""
        return self.short_cached_steps if step_input.cached else self.short_steps

    def skip(self, step_input: StepInput, number: int) -> Plan:
        """Run steps that do not count."""
        for _ in range(number):
            yield step_input

    def record(
        self,
        step_input: StepInput,
        seconds: float,
        least: int,
        series: StepSeries,
        *,
        extend: Extend | None = None,
        each: Callable[[StepTimes], None] | None = None,
    ) -> Plan:
        """Run a window of at least `seconds` and `least` steps, and add its steps to a series.

        `each` gets the times of each step. `extend` may request more steps, except in a distributed run.
        """
        window = StepWindow(series=series, seconds=self.scaled(seconds), least=least, extend=extend, each=each)
        window.ours = self.endless and self.can_repeat
        if self.ranks is not None:
            recent = statistics.median(step.seconds for step in (self.recorder.loop.steps or self.recorder.early)[-6:])
            window.least = window.exactly = int(self.agree(max(least, min(MAX_STEPS, window.seconds // max(recent, 1e-6)))))
        if self.device == "cpu":
            yield step_input._replace(window=window)
            return
        marks = window.marks = StepMarks()
        if self.device_step:  # the host runs ahead of the device, so its clock is not used
            window.most = max(least, round(window.seconds / self.device_step))
        yield step_input._replace(window=window)
        series.add_device_seconds(marks.seconds())
        self.recorder.on_gpu, self.device_step = True, StepSeries(series.windows[-1]).device_step
