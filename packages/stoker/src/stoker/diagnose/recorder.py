"""What the measurement windows record (`Recorder`), and the `Measurements` made of it.

`StepSeries` holds the steps of one kind of measurement, from one or more windows. `Recorder` holds all series and everything else that
was measured; `Recorder.measurements` can be called at any time.

The first step of an epoch is in its place among the others, but does not count. The additional time that it waits for its batch
(workers that start, the first batch) is time of the loader, and is divided among all steps of the epoch. The rest of the time between
two epochs (validation, checkpoints) does not count for any step.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import torch

from stoker._clock import RunQueueDelay, cores_of_children, now_ns
from stoker.diagnose.hardware import measure_machine
from stoker.diagnose.hooks import NAMES, NEXT, PREPARE, REST, DeviceOnlyStep, StepHooks, StepTimes, compiled
from stoker.diagnose.loops import Source, Sources, length_of
from stoker.diagnose.measurements import (
    Blame,
    BusyThread,
    Device,
    Loader,
    Machine,
    Measurements,
    Phases,
    Rank,
    RareSteps,
    SourceLine,
    Stretch,
    Sync,
    WhatIf,
    Work,
)
from stoker.diagnose.profilers import MOSTLY, SlowLine
from stoker.diagnose.rare import Slow, slow_of_windows
from stoker.diagnose.sizes import BatchTimes
from stoker.diagnose.thresholds import RULE
from stoker.diagnose.wording import percent
from stoker.errors import TrainError

MIN_EPOCHS = 12  # with this many epochs, the mean step of an epoch can take the place of a step
MIN_GROUPS = 16
MAX_PERIOD = 4  # of steps that alternate; long steps with a longer period are rare steps
PERIODIC = 0.4  # spread of the means of periods, relative to that of single steps, up to which steps alternate
NEW_SIZES = (
    "{} of the time of steps is spent on batches of a new size, because kernels are chosen for each size. It is not in the verdict, as "
    "sizes come again. To have fewer of them, pad to multiples of 64 (`pad_to_multiple_of` of a collator)."
)
WORTH_A_NOTE = 0.10  # share of the time between epochs from which on a note reports it


class StepSeries:
    """Steps of one kind of measurement, from one or more windows. The first step of an epoch is in its place, but counts nowhere."""

    def __init__(self, *windows: Iterable[StepTimes]) -> None:
        self.windows: list[list[StepTimes]] = [list(window) for window in windows]

    def begin_window(self) -> None:
        """Steps added from here on belong to another window."""
        self.windows.append([])

    def add(self, step: StepTimes) -> None:
        """Add a step to the last window."""
        if not self.windows:
            self.begin_window()
        self.windows[-1].append(step)

    def add_device_seconds(self, seconds: Sequence[float]) -> None:
        """Add times on a GPU's timeline to the last steps."""
        window = self.windows[-1]
        for number, spent in enumerate(seconds, len(window) - len(seconds)):
            window[number] = window[number]._replace(device_seconds=spent)

    @property
    def steps(self) -> list[StepTimes]:
        """All steps without those that start an epoch."""
        return [step for window in self.windows for step in window if not step.new_epoch]

    @property
    def epoch_starts(self) -> list[StepTimes]:
        """The first steps of epochs."""
        return [step for window in self.windows for step in window if step.new_epoch]

    def of_usual_batches(self, times: BatchTimes) -> StepSeries:
        """Return the steps brought to the time of a usual batch, without those of batches of which that is not known."""
        scaled = StepSeries(*([step for old in window for step in times.usual_steps(old)] for window in self.windows))
        return scaled if len(scaled.steps) >= RULE.min_steps else self

    def seconds(self, *, with_data: bool = True) -> list[float]:
        """Seconds of each step: on a GPU's timeline where known, else by the host's clock."""
        return [seconds for piece in self.pieces(with_data=with_data) for seconds in piece]

    def pieces(self, *, with_data: bool = True) -> list[list[float]]:
        """Seconds of each step, by window."""
        # A window of a GPU that was cut short has no times on its timeline: its steps do not count.
        on_device = self.device_step is not None
        return [
            [step.spent(with_data=with_data) for step in window if not (step.new_epoch or (on_device and not step.device_seconds))]
            for window in self.windows
        ]

    @property
    def device_step(self) -> float | None:
        """The median step on a GPU's timeline; None without a GPU."""
        known = [step.device_seconds for step in self.steps if step.device_seconds is not None]
        return statistics.median(known) if known else None

    def extra_waits(self, *, on_gpu: bool) -> list[float]:
        """Seconds that each epoch start waited longer for its batch than other steps."""
        device_step, steps = self.device_step, self.steps
        if not steps or (on_gpu and device_step is None):
            return []
        if on_gpu and device_step is not None:  # the host runs ahead, and waits while the GPU still works
            starts = [step.device_seconds for step in self.epoch_starts if step.ours]
            return [max(0.0, seconds - device_step) for seconds in starts if seconds is not None]
        usual = statistics.median(step.phases_ns[NEXT] for step in steps) / 1e9
        return [max(0.0, step.phases_ns[NEXT] / 1e9 - usual) for step in self.epoch_starts]

    def extra_rests(self, *, on_gpu: bool, behind: float) -> list[float]:
        """Seconds between epochs without that wait; with the additional time of an epoch start that took far longer than other steps.

        A line between epochs may wait for a GPU that is `behind` by as many seconds at the end of an epoch: these are its steps.
        """
        device_step, steps = self.device_step, self.steps
        usual = statistics.median(step.without_data for step in steps) if steps and not on_gpu else math.inf
        rests = []
        for start in self.epoch_starts:
            if not start.ours:
                between = start.between_ns / 1e9
                own = start.without_data - between
                if start.device_seconds is not None and device_step is not None:
                    between = min(between, max(0.0, start.device_seconds - device_step))
                else:
                    between = max(0.0, between - behind)
                rests.append(between + (own - usual if own > RULE.slow_step * usual else 0.0))
        return rests

    def epochs(self) -> list[list[list[StepTimes]]]:
        """The steps of each epoch that was measured from start to end, by window."""
        starts = [[number for number, step in enumerate(window) if step.new_epoch] for window in self.windows]
        return [[window[begin:end] for begin, end in pairwise(at)] for window, at in zip(self.windows, starts, strict=True)]


class BetweenEpochs(NamedTuple):
    """Time between two epochs, in seconds per step."""

    loader: float
    other: float
    steps: float | None  # steps of an epoch


def between_epochs(series: Sequence[StepSeries], length: float | None, *, on_gpu: bool = False) -> BetweenEpochs | None:
    """Time between epochs; None if no epoch ended, or if the number of its steps is not known (nor given as `length`)."""
    lengths = [len(epoch) for part in series for window in part.epochs() for epoch in window]
    steps = statistics.median(lengths) if lengths else length
    on_device = [step.device_seconds for part in series for step in part.steps if step.device_seconds is not None]
    by_host = [step.seconds for part in series for step in part.steps]
    ahead = statistics.median(on_device) - statistics.median(by_host) if on_device and by_host else 0.0
    waits = [wait for part in series for wait in part.extra_waits(on_gpu=on_gpu)]
    rests = [rest for part in series for rest in part.extra_rests(on_gpu=on_gpu, behind=max(0.0, ahead) * (steps or 0.0))]
    if not steps or not (waits or rests):
        return None
    # A validation may run only every few epochs; starting a loader takes the same time each time.
    return BetweenEpochs(statistics.median(waits or [0.0]) / steps, statistics.fmean(rests or [0.0]) / steps, steps)


def mean_of_epoch(first: StepTimes, *others: StepTimes) -> StepTimes:
    """The mean step of an epoch without the time between epochs."""
    spent = list(first.phases_ns)
    spent[REST] -= first.between_ns
    if spent[REST] < 0:  # a validation with gradients was taken for a step
        spent = [spent[NEXT], *mean_step(others).phases_ns[1:]]
    return mean_step([StepTimes(tuple(spent), False), *others])


def mean_step(steps: Sequence[StepTimes]) -> StepTimes:
    """The mean of consecutive steps."""
    phases = zip(*(step.phases_ns for step in steps), strict=True)
    return StepTimes(tuple(round(statistics.fmean(spent)) for spent in phases), False)


@dataclass
class Recorder:
    """Raw measurements of one session."""

    early: list[StepTimes] = field(default_factory=list)
    """Steps of the warm-up, epoch starts included: the only ones of a program that ends in it."""
    batch_times: BatchTimes = field(default_factory=BatchTimes)  # where batches differ in size
    phased: StepSeries = field(default_factory=StepSeries)  # baseline steps with their phases, where these cannot be timed within T
    loop: StepSeries = field(default_factory=StepSeries)  # T: baseline steps
    cached: StepSeries = field(default_factory=StepSeries)  # C: steps with cached batches
    apart: StepSeries = field(default_factory=StepSeries)  # steps without the all-reduce
    collective_seconds: list[float] = field(default_factory=list)
    """Seconds per step of `apart` in collectives that the program calls itself, by window."""
    waited_apart: list[float] = field(default_factory=list)
    """Share of the time of `apart` in which a thread was ready to run without a core, by window."""
    on_gpu: bool = False  # whether steps were timed on a GPU's timeline
    device_only: list[DeviceOnlyStep] = field(default_factory=list)
    gpu_taken: float | None = None
    recompiled: int = 0  # functions that torch compiled again during T
    loader_alone: list[list[float]] = field(default_factory=list)  # seconds per batch, by window
    batches_per_step: list[int] = field(default_factory=list)
    batch_rows: int | None = None
    batches_on_gpu: bool = False  # whether batches come from their iterable on the GPU
    by_threads: dict[int, float] = field(default_factory=dict)
    blames: dict[str, list[Blame]] = field(default_factory=dict)
    rare_line: SlowLine | None = None  # where rare steps spend their time
    epoch_line: SlowLine | None = None  # where the time between epochs is spent
    syncs: list[Sync] = field(default_factory=list)
    batch_lines: list[Blame] = field(default_factory=list)  # the lines that make a batch
    batch_seconds: float | None = None  # to make one in this process
    work: Work | None = None
    what_ifs: dict[str, WhatIf] = field(default_factory=dict)
    fix_values: dict[str, int] = field(default_factory=dict)
    removed: dict[str, WhatIf] = field(default_factory=dict)
    phases_alone: Phases | None = None
    unused_fixes: dict[str, str] = field(default_factory=dict)
    before_compile: tuple[bool, float] | None = None  # `compiled` and `own_processes` before steps were measured compiled
    waited_ns: int = 0  # part of `looped_ns` (the time of the windows of T and C) in which a thread was ready to run without a core
    taken_ns: int = 0  # CPU time that other programs used in these windows
    looped_ns: int = 0
    asleep: list[float] = field(default_factory=list)  # share of each window of T that the loop's thread slept
    busy_threads: list[BusyThread] = field(default_factory=list)
    pages: dict[str, list[float]] = field(default_factory=dict)  # memory pages per step from the system, by kind of window
    notes: list[str] = field(default_factory=list)
    first_ns: int = 0  # when the first step had ended
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def add_waiting(self, waiting: RunQueueDelay) -> None:
        """Add the time that a window waited for cores."""
        waited_ns, looped_ns = waiting.end()
        if waited_ns is not None:
            self.waited_ns += waited_ns  # a wait that began before the window is in it, too: it may be longer than the window
            self.looped_ns += looped_ns
            self.taken_ns += waiting.taken_ns or 0

    def keep_before_compile(self) -> None:
        """Keep what is known only before torch compiles, which uses processes of its own."""
        self.before_compile = self.before_compile or (compiled(), cores_of_children())

    def measurements(self, sources: Sources, hooks: StepHooks, device: Device, machine: Machine | None = None) -> Measurements:
        """Everything known so far. Measures the machine unless one is given; raises `TrainError` if nothing was measured."""
        warm_up = StepSeries(step._replace(new_epoch=False) for step in self.early[1:])
        measured = next((series for series in (self.loop, self.phased) if series.steps), warm_up)
        if not measured.steps:  # the first of `early` includes the time before it
            no_step = "no optimizer of torch made a step. Nothing was trained, or not with torch.optim, or in other processes."
            one_step = "the training ended after one step, before anything could be measured. Let it train for at least 30 steps."
            raise TrainError(one_step if hooks.steps else no_step)
        if self.batch_times.usual is not None:
            same = self._of_usual_batches().measurements(sources, hooks, device, machine)
            return msgspec.structs.replace(same, sized=True)
        source, batches = sources.training, self._batches
        together = self._steps_together(source, len(self.loop.steps))
        phased = in_groups(self.phased.steps or measured.steps, together)
        # The time between epochs: what the loader takes to start one, and the rest (validation, checkpoints).
        starts = ([step] for step in self.early if step.new_epoch)  # each alone
        early = StepSeries((step for step in self.early[1:] if not step.new_epoch), *starts)
        known = between_epochs([early, self.phased, self.loop], _epoch_length(source, batches), on_gpu=self.on_gpu)
        between = known or BetweenEpochs(0.0, 0.0, None)
        starting = between.loader if not self.apart.steps else 0.0  # with several ranks, others wait meanwhile
        # T: the steps of the loop, or the mean steps of its epochs, which include the time to start them.
        epochs = self._epochs(measured, source)
        loop = [[step.seconds for step in window] for window in epochs] or _means(measured.pieces(), together)
        added = 0.0 if epochs else starting
        # The mean step by the wall clock, which rare steps make longer.
        slow = self.slow_steps(bursts=_workers(source) > 0) if not epochs else None
        mean = slow.mean if slow is not None else statistics.fmean(seconds for window in loop for seconds in window)
        wall = mean + added + between.other
        rare = self._rare(slow, wall, between, source.place if source is not None else None)
        with_between = statistics.median(seconds for window in loop for seconds in window) + added + between.other
        note = f"{percent(between.other / wall)} of the time passes between epochs (validation, checkpoints): it is not in the verdict."
        notes = [note] if WORTH_A_NOTE < between.other / wall <= RULE.rare_verdict_share else []  # with more it is the verdict
        optimizer, alone = hooks.optimizer, self.device_only
        cached = _means(self.cached.pieces(with_data=False), together) if self.cached.steps else []
        phases = {name: [step.phases[name] for step in alone] for name in ("forward", "backward", "optimizer")} if alone else {}
        is_compiled, own_processes = self.before_compile or (compiled(), cores_of_children())
        return Measurements(
            device=device,
            steps_seen=hooks.steps,
            loop=by_window([[seconds + added for seconds in window] for window in loop]),
            wall_seconds=wall,
            rare=rare[0] if rare else None,
            also_rare=rare[1] if len(rare) > 1 else None,
            phases=self._phases(phased, source, starting),
            cached=by_window(at_one_level(cached, loop)) if self.cached.steps and not self._recompiles else None,
            device_alone=Stretch(seconds=[step.seconds for step in alone]) if alone else None,
            device_phases={name: statistics.median(seconds) for name, seconds in phases.items()},
            loader_alone=self._alone(source, phased, batches, together, loop),
            waited_for_cores=min(1.0, self.waited_ns / self.looped_ns) if self.looped_ns else None,
            cores_taken=min(1.0, self.taken_ns / (self.cores * self.looped_ns)) if self.looped_ns else None,
            own_processes=own_processes,
            pages=self.pages,
            fewer_threads={str(number): seconds for number, seconds in self.by_threads.items()},
            syncs=self.syncs,
            blames=self.blames,
            loader=self._loader(source),
            work=self.work,
            machine=machine or measure_machine(device),
            measuring_seconds=(now_ns() - self.first_ns) / 1e9 if self.first_ns else 0.0,
            precision=hooks.precision or "fp32",
            optimizer=type(optimizer).__name__ if optimizer is not None else None,
            optimizer_fused=bool(optimizer.param_groups[0].get("fused")) if optimizer is not None else None,
            what_ifs=self.what_ifs,
            fix_values=self.fix_values,
            gpu_taken=self.gpu_taken,
            removed=self.removed,
            phases_alone=self.phases_alone,
            unused_fixes=self.unused_fixes,
            busy_thread=max(self.busy_threads, key=lambda thread: thread.share, default=None),
            asleep=statistics.median(self.asleep) if self.asleep else None,
            compiled=is_compiled,
            between_epochs={name: getattr(known, name) / with_between for name in ("loader", "other")} if known else {},
            notes=[*self.notes, *notes],
            losses=[float(loss) for loss in hooks.losses],
        )

    def _of_usual_batches(self) -> Recorder:
        """Return the same with each step brought to the time of a usual batch of a known size."""
        times, known = self.batch_times, self.loop
        if not self.recompiled:  # else that is the cause: torch has compiled for the sizes of cached batches
            known = StepSeries(*([times.of_known_size(step) for step in window] for window in self.loop.windows))
        first = 1 - sum(known.seconds()) / max(1e-9, sum(self.loop.seconds()))
        notes = [*self.notes, NEW_SIZES.format(percent(first))] if first >= RULE.mention else self.notes
        loop, cached = known.of_usual_batches(times), self.cached.of_usual_batches(times)
        return replace(self, batch_times=BatchTimes(), notes=notes, loop=loop, cached=cached)

    def slow_steps(self, *, bursts: bool) -> Slow | None:
        """The slow steps of T that take a share of its time worth reporting; None without any."""
        # The wait for a batch is left out where workers make the batches, because these come in bursts.
        waits = bursts and not self.on_gpu
        windows = self.loop.pieces(with_data=not waits)
        for number, seconds in enumerate(windows):
            if seconds:  # the first step of an epoch counts as a usual one: its additional time is reported separately
                usual, rest = statistics.median(seconds), iter(seconds)
                windows[number] = [usual if step.new_epoch else next(rest, usual) for step in self.loop.windows[number]]
        period = self._period_of_steps()
        best = slow_of_windows([window for window in (_means(windows, period) if period > 1 else windows) if window])
        if best is not None and best.every is not None:
            best = replace(best, every=best.every * period)
        if best is None or best.share < RULE.rare_min_share:
            return None
        if not waits:
            return best
        waited = statistics.fmean(step.phases_ns[NEXT] for step in self.loop.steps) / 1e9
        return replace(best, share=best.share * best.mean / (best.mean + waited), mean=best.mean + waited)

    def of_rank(self, rank: int) -> Rank | None:
        """Step times of this rank; None if steps without the all-reduce were not measured."""
        if not self.loop.steps or not self.apart.steps:
            return None
        loop, apart = self.loop.pieces(), self.apart.pieces()
        without = [
            [max(0.0, seconds - less) for seconds in window] for window, less in zip(apart, self.collective_seconds, strict=False)
        ]
        return Rank(
            rank=rank,
            step_seconds=statistics.median(seconds for window in loop for seconds in window),
            apart_seconds=by_window(at_one_level(without, loop)).median,
            waited_for_cores=min(1.0, statistics.median(self.waited_apart)) if self.waited_apart else None,
        )

    def _rare(self, slow: Slow | None, wall: float, between: BetweenEpochs, place: SourceLine | None) -> list[RareSteps]:
        """Rare steps and the time between epochs, the larger share first. `place` is the line of the training loop."""
        events, other, length = [], between.other, between.steps
        if length is not None and other / wall > RULE.rare_min_share:
            gap = RareSteps(share=other / wall, every=length, seconds=other * length, others=wall - other, between_epochs=True)
            events.append(_with_line(gap, self.epoch_line, place))
        if self._recompiles and self.cached.steps:
            # Cached batches have shapes that torch has compiled for: what they save besides loading is compiling.
            seconds, others = (statistics.median(series.seconds()) for series in (self.loop, self.cached))
            others += statistics.median(step.phases_ns[NEXT] for step in self.loop.steps) / 1e9
            rare = RareSteps(share=max(0.0, 1 - others / seconds), every=1.0, seconds=seconds, others=others, recompiles=True)
            events.append(_with_line(rare, self.rare_line, place))
        elif slow is not None:
            share = slow.share * (wall - other) / wall
            recompiles = self.recompiled >= len(slow.at)
            rare = RareSteps(share=share, every=slow.every, seconds=slow.seconds, others=slow.others, recompiles=recompiles)
            events.append(_with_line(rare, self.rare_line, place))
        return sorted(events, key=lambda event: -event.share)

    @property
    def _recompiles(self) -> bool:
        """Whether torch compiles again in most steps."""
        return 2 * self.recompiled >= len(self.loop.steps) > 0

    def _epochs(self, series: StepSeries, source: Source | None) -> list[list[StepTimes]]:
        """Mean steps of epochs by window, where epochs are so short that workers never reach a steady rate in one."""
        if not _workers(source) or self.apart.steps or series.device_step is not None:
            return []
        means = [[mean_of_epoch(*epoch) for epoch in window if len(epoch) > 1] for window in series.epochs()]
        return means if sum(map(len, means)) >= MIN_EPOCHS and all(means) else []

    def _phases(self, phased: list[StepTimes], source: Source | None, starting: float) -> Phases:
        """How a step divides; the time to start an epoch is a wait for the loader."""
        epochs = [step for window in self._epochs(self.phased if self.phased.steps else self.loop, source) for step in window]
        spent = median_phases(epochs or phased)
        return msgspec.structs.replace(spent, next=spent.next + (0.0 if epochs else starting))

    @property
    def _batches(self) -> float:
        """Batches per step."""
        return statistics.median(self.batches_per_step) if any(self.batches_per_step) else 1

    def _steps_together(self, source: Source | None, num_steps: int) -> int:
        """Number of consecutive steps whose mean counts as one step, because single steps differ for a known reason."""
        wanted = max(1, _workers(source), self._period_of_steps())  # batches come in bursts of one per worker
        return max(1, min(wanted, num_steps // MIN_GROUPS))

    def _period_of_steps(self) -> int:
        """Period of steps that alternate, such as a long and a short one; 1 if they do not, or if long ones are a cause of their own."""
        windows = [window for window in self.loop.pieces() if window]
        slow = slow_of_windows(windows)
        if slow is not None and slow.share <= RULE.rare_verdict_share:
            slow = None
        if slow is not None and slow.every is not None and slow.every > MAX_PERIOD:
            return 1
        limit = (slow.others + slow.seconds) / 2 if slow is not None else math.inf
        spread, of_others = (by_window(part).spread for part in (windows, [[s for s in w if s <= limit] for w in windows]))
        if self.on_gpu or not RULE.max_spread_cpu < min(spread, of_others) < math.inf:
            return 1
        spreads = {size: by_window(_means(windows, size)).spread for size in range(2, MAX_PERIOD + 1)}
        return next((size for size, of_groups in spreads.items() if of_groups <= PERIODIC * spread), 1)

    def _alone(
        self, source: Source | None, phased: list[StepTimes], batches: float, together: int, loop: list[list[float]]
    ) -> Stretch | None:
        """D, the loader's own time: alone, or within the loop where that took longer because caches were cold."""
        if source is None or not source.gives_batches:  # batches are made in the loop itself
            return Stretch(seconds=[(step.phases_ns[NEXT] + step.phases_ns[PREPARE]) / 1e9 for step in phased])
        if not any(self.loader_alone):
            return None
        size = max(1, min(together, min(map(len, self.loader_alone)) // 2))
        windows = [[seconds * batches for seconds in window] for window in _means(self.loader_alone, size)]
        waits = Stretch(seconds=[step.phases_ns[NEXT] / 1e9 for step in phased])
        return max(by_window(at_one_level(windows, loop)), waits, key=lambda stretch: stretch.median)

    def _loader(self, source: Source | None) -> Loader:
        if source is None or not source.gives_batches:
            return Loader(kind="loop", place=source.place if source is not None else None)
        loader, on_gpu = source.loader, self.batches_on_gpu
        if loader is None:
            kind = type(source.iterable).__name__
            return Loader(kind=kind, place=source.place, functions=self.batch_lines, on_gpu=on_gpu)
        return Loader(
            kind=type(loader).__name__,
            workers=loader.num_workers,
            pinned=loader.pin_memory and torch.cuda.is_available(),
            dataset=type(loader.dataset).__name__,
            persistent=loader.persistent_workers if loader.num_workers else None,
            place=source.place,
            functions=self.batch_lines,
            on_gpu=on_gpu,
        )


def _with_line(rare: RareSteps, line: SlowLine | None, loop: SourceLine | None) -> RareSteps:
    if line is None:
        return rare
    phase = line.phase if line.in_phase >= MOSTLY and not rare.between_epochs else None
    outer, fields = line.iterated, {"phase": phase, "alone": line.alone, "place": line.place, "called": line.called}
    if outer is not None and loop is not None and (outer.file, outer.function) == (loop.file, loop.function):
        fields["in_outer_loop"] = outer.line < loop.line
    return msgspec.structs.replace(rare, **fields)


def median_phases(steps: list[StepTimes]) -> Phases:
    """Return the median time of each phase."""
    return Phases(**{name: statistics.median(step.phases_ns[number] for step in steps) / 1e9 for number, name in enumerate(NAMES)})


def in_groups(steps: list[StepTimes], size: int) -> list[StepTimes]:
    """Means of `size` consecutive steps."""
    return steps if size == 1 else [mean_step(group) for group in _groups(steps, size)]


def _groups(values: list[Any], size: int) -> list[list[Any]]:
    return [values[start : start + size] for start in range(0, len(values) - size + 1, size)]


def _means(windows: list[list[float]], size: int) -> list[list[float]]:
    return [[statistics.fmean(group) for group in _groups(window, size)] for window in windows]


def _workers(source: Source | None) -> int:
    return source.loader.num_workers if source is not None and source.loader is not None else 0


def by_window(windows: list[list[float]]) -> Stretch:
    """The steps of all windows, and the number in each."""
    return Stretch(seconds=[seconds for window in windows for seconds in window], pieces=[len(window) for window in windows])


def at_one_level(rounds: Sequence[Sequence[float]], loop: Sequence[Sequence[float]]) -> list[list[float]]:
    """Scale the values of rounds to one speed of the machine; round i lies between the windows i and i + 1 of the loop."""
    # Processors change their speed for seconds at a time. A window between two baseline windows ran at their speed.
    medians = [statistics.median(piece) for piece in loop if piece]
    common = statistics.median([seconds for piece in loop for seconds in piece]) if medians else 0.0
    if not common or min(medians) <= 0:
        return [list(values) for values in rounds]
    factors, steady = [], []
    for number in range(len(rounds)):
        before, after = medians[min(number, len(medians) - 1)], medians[min(number + 1, len(medians) - 1)]
        factors.append(2 * common / (before + after))
        steady.append(abs(before - after) <= RULE.level_max_change * (before + after) / 2 and bool(rounds[number]))
    if sum(steady) < RULE.level_min_windows:
        steady = [True] * len(rounds)
    return [[value * factor for value in values] for values, factor, keep in zip(rounds, factors, steady, strict=True) if keep]


def _epoch_length(source: Source | None, batches: float) -> float | None:
    """Steps of an epoch, if the iterable of the loop has a length."""
    length = length_of(source.iterable) if source is not None else None
    return length / batches if length is not None else None
