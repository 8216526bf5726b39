"""Epochs: what passes between one and the next, and whose it is. Between the raw times of the ledger and what is measured.

A step at whose begin an epoch ended is another kind of step. What it waits longer for its batch than others (workers that start,
the first batch) is the loader's, and each step has its part of it. What else passes there (a validation, a checkpoint) is in none.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import torch

from stoker._clock import Waiting, now_ns
from stoker.diagnose.attribution import Slow, at_one_level, slow_of_windows, split
from stoker.diagnose.cuda import Asleep
from stoker.diagnose.hardware import measure_machine
from stoker.diagnose.hooks import NAMES, NEXT, PREPARE, REST, Boundaries, Times, compiled
from stoker.diagnose.loaders import Source, Sources
from stoker.diagnose.measurements import (
    Blame,
    Device,
    Loader,
    Machine,
    Measurements,
    Phases,
    Rank,
    RareSteps,
    Stretch,
    Sync,
    WhatIf,
    Work,
)
from stoker.diagnose.profilers import MOSTLY, Line, Profile
from stoker.diagnose.render import percent
from stoker.diagnose.thresholds import RULE
from stoker.errors import TrainError

LEAST_EPOCHS = 12
"""So many, and one can be looked at as if it were a step."""


class End(NamedTuple):
    """A step at whose begin an epoch ended."""

    at: int
    """How many steps of its list lie before it."""
    stretch: int
    times: Times
    ours: bool = False
    """Whether the next epoch was begun by the diagnosis, so that nothing of the program lies between."""
    on_device: float | None = None
    """Seconds of it on a GPU's timeline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """Steps that were counted in stretches, and those at which epochs ended."""

    steps: list[Times]
    ends: list[End]
    on_device: list[float] | None
    """Seconds of the steps on a GPU's timeline, as far as there are marks on it; None without a GPU."""

    def extra_waits(self) -> list[float]:
        """Seconds that each end waited longer for its batch than other steps."""
        if not self.steps or self.on_device == []:
            return []
        if self.on_device is not None:  # its host runs ahead of it, and waits while the GPU still works
            usual = statistics.median(self.on_device)
            return [max(0.0, end.on_device - usual) for end in self.ends if end.on_device is not None and end.ours]
        usual = statistics.median(_waited(one) for one in self.steps)
        return [max(0.0, _waited(end.times) - usual) for end in self.ends]

    def extra_rests(self) -> list[float]:
        """Seconds of what else passed there, also within the step itself where it took far longer than others."""
        usual = statistics.median(one.without_data for one in self.steps) if self.steps and self.on_device is None else math.inf
        return [end.times.between_ns / 1e9 + _longer(end.times, usual) for end in self.ends if not end.ours]

    def lengths(self) -> list[int]:
        """Steps of each epoch that was seen from its begin to its end."""
        return [after.at - before.at + 1 for before, after in pairwise(self.ends) if before.stretch == after.stretch]

    def epochs(self, stretches: int) -> list[list[Times]]:
        """The mean step of each such epoch, by stretch, without what else passed at its begin."""
        found = [list[Times]() for _ in range(stretches)]
        for before, after in pairwise(self.ends):
            others = self.steps[before.at : after.at]
            if before.stretch == after.stretch < stretches and others:
                first = list(before.times.phases_ns)
                first[REST] -= before.times.between_ns
                if first[REST] < 0:  # a validation with gradients looks like a step
                    first = [first[NEXT], *mean(others).phases_ns[1:]]
                found[before.stretch].append(mean([Times(tuple(first), False), *others]))
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Between:
    """What passes between two epochs, as seconds of each step."""

    loader: float
    other: float
    steps: float
    """Of an epoch."""


def between(courses: Sequence[Course], length: float | None) -> Between | None:
    """What is known of it; None where no epoch was seen to end, or not how long one is, as `length` may tell in steps."""
    lengths = [one for course in courses for one in course.lengths()]
    waits = [one for course in courses for one in course.extra_waits()]
    rests = [one for course in courses for one in course.extra_rests()]
    steps = statistics.median(lengths) if lengths else length
    if not steps or not (waits or rests):
        return None
    # A validation may come every few epochs only; what a loader takes to begin is the same each time.
    return Between(loader=statistics.median(waits or [0.0]) / steps, other=statistics.fmean(rests or [0.0]) / steps, steps=steps)


def mean(steps: list[Times]) -> Times:
    """Of steps in a row."""
    return Times(tuple(round(statistics.fmean(spent)) for spent in zip(*(one.phases_ns for one in steps), strict=True)), False)


def _longer(times: Times, usual: float) -> float:
    own = times.without_data - times.between_ns / 1e9
    return own - usual if own > RULE.slow_step * usual else 0.0


def _waited(times: Times) -> float:
    return times.phases_ns[NEXT] / 1e9


# The ledger: what a session has written down so far, and the `Measurements` that can be made of it at any time.

LEAST_GROUPS = 16
LEAST_EPOCHS_OF_A_TRIAL = 3
WORTH_TELLING = 0.10
"""Of all time, between epochs."""


@dataclass
class Ledger:
    """Raw times, as they came."""

    early: list[Times] = field(default_factory=list)
    """Steps of the warm-up: all there is of a program that ends in it."""
    phased: list[Times] = field(default_factory=list)
    """Steps whose phases were told apart, where that cannot be done within T."""
    loop: list[Times] = field(default_factory=list)
    cached: list[Times] = field(default_factory=list)
    apart: list[Times] = field(default_factory=list)
    """Steps without the exchange with other processes."""
    exchanged: list[float] = field(default_factory=list)
    """Seconds a step of these in collectives that the program called itself, by stretch."""
    waited_apart: list[float] = field(default_factory=list)
    """Of their time: ready to run, and others had the core; by stretch."""
    exchanges: list[float] = field(default_factory=list)
    """Seconds a step that the exchange adds where all begin it at the same time, by stretch."""
    on_device: dict[int, list[float]] = field(default_factory=dict)
    """Seconds between marks on a GPU's timeline, by the list (its id) that holds the host's times of the same steps."""
    host_issue: list[float] = field(default_factory=list)
    issue_after_profile: list[float] = field(default_factory=list)
    sleeps: list[Asleep] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    """Seconds a batch."""
    loader_alone: list[float] = field(default_factory=list)
    """Seconds a batch."""
    starts: dict[int, list[int]] = field(default_factory=dict)
    """Where stretches begin, by the list (its id) that they are written to."""
    ends: dict[int, list[End]] = field(default_factory=dict)
    """Steps at whose begin an epoch ended, by the list (its id) that those around them are written to."""
    batches_a_step: list[int] = field(default_factory=list)
    batch_bytes: list[int] = field(default_factory=list)
    batch_rows: int | None = None
    by_threads: dict[int, float] = field(default_factory=dict)
    blames: dict[str, list[Blame]] = field(default_factory=dict)
    rare_line: Line | None = None
    """Where rare steps spend their time."""
    epoch_line: Line | None = None
    """Where the time between epochs is spent."""
    syncs: list[Sync] = field(default_factory=list)
    profile: Profile | None = None
    work: Work | None = None
    what_ifs: dict[str, WhatIf] = field(default_factory=dict)
    waited_ns: int = 0
    """Of `looped_ns`, the time of the stretches of T and C: some thread was ready to run, and others had its core."""
    looped_ns: int = 0
    cores_used: dict[str, list[float]] = field(default_factory=dict)
    """By kind of stretch."""
    pages: dict[str, list[float]] = field(default_factory=dict)
    """That a step got from the system, by kind of stretch."""
    notes: list[str] = field(default_factory=list)
    first_ns: int = 0
    """When the first step had ended."""
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def measurements(
        self, sources: Sources, boundaries: Boundaries, device: Device, machine: Machine | None = None
    ) -> Measurements:
        """All that is known; raises where that is nothing. The machine is measured unless one is given."""
        measured = self.loop or self.phased or self.early[1:]  # the first one has the time before it in it
        if not measured:
            raise TrainError(_too_early(boundaries.steps))
        source, batches = sources.found, self._batches
        together = self._steps_together(source, self.loop)
        phased = in_groups(self.phased or measured, together)
        lost = between([self._course(one) for one in (self.early, self.phased, self.loop)], _epoch_length(source, batches))
        starting = lost.loader if lost is not None and not self.apart else 0.0  # what others take longer meanwhile is not known
        epochs = self._epochs(measured, source)
        loop = [[one.seconds for one in piece] for piece in epochs] or self._pieces(measured, together)
        step = statistics.median(one for piece in loop for one in piece) + (0.0 if epochs else starting)
        workers = source.loader.num_workers if source is not None and source.loader is not None else 0
        slow = self.slow_steps(bursts=workers > 0) if not epochs else None
        mean = slow.mean if slow is not None else statistics.fmean(one for piece in loop for one in piece)
        other = lost.other if lost is not None else 0.0
        wall = mean + (0.0 if epochs else starting) + other
        optimizer = boundaries.optimizer
        machine = machine or measure_machine(device)
        return Measurements(
            device=device,
            steps_seen=boundaries.steps,
            loop=_in_pieces(loop if epochs else [[one + starting for one in piece] for piece in loop]),
            wall_seconds=wall,
            rare=self._rare(slow, wall, other, lost.steps if lost is not None else None),
            phases=self._phases(phased, source, starting),
            cached=_in_pieces(at_one_level(self._pieces(self.cached, together, with_data=False), loop)) if self.cached else None,
            copies_alone=_stretch([one * batches for one in self.copies]),
            host_issue=_stretch(self.host_issue),
            device_alone=_stretch([one.seconds for one in self.sleeps]),
            device_phases=_device_phases(self.sleeps),
            blocked_under_sleep=sum(one.blocked for one in self.sleeps) > len(self.sleeps) / 2 if self.sleeps else None,
            loader_alone=self._alone(source, phased, batches, together, loop),
            waited_for_cores=self.waited_ns / self.looped_ns if self.looped_ns else None,
            cores_used=_cores_used(self.cores_used),
            pages=self.pages,
            fewer_threads={str(number): seconds for number, seconds in self.by_threads.items()},
            syncs=self.syncs,
            blames=self.blames,
            loader=self._loader(source, batches),
            work=self.work,
            machine=machine,
            measuring_seconds=(now_ns() - self.first_ns) / 1e9 if self.first_ns else 0.0,
            precision=boundaries.precision or "fp32",
            optimizer=type(optimizer).__name__ if optimizer is not None else None,
            optimizer_fused=bool(optimizer.param_groups[0].get("fused")) if optimizer is not None else None,
            what_ifs=self.what_ifs,
            compiled=compiled(),
            between_epochs=_shares(lost, step),
            slow_steps=_slow(measured),
            notes=[*self.notes, *_not_in_steps(other / wall)],
            losses=[float(one) for one in boundaries.losses],
        )

    def slow_steps(self, *, bursts: bool) -> Slow | None:
        """The slow ones of T that hold some of its time; None where there are none.

        Where batches come in bursts, because worker processes make them, waiting for one is left out.
        """
        waits = bursts and not self.on_device
        seconds = [one.without_data if waits else one.seconds for one in self.loop]
        starts = self.starts.get(id(self.loop), [])
        pieces = split(self.on_device.get(id(self.loop)) or seconds, starts)
        for end in reversed(self.ends.get(id(self.loop), [])):  # steps as well, but what is special about them is told elsewhere
            if end.stretch < len(pieces) and pieces[end.stretch]:
                pieces[end.stretch].insert(end.at - (starts or [0])[end.stretch], statistics.median(pieces[end.stretch]))
        best = slow_of_windows([piece for piece in pieces if piece])
        if best is None or best.share < RULE.rare_min_share:
            return None
        if not waits:
            return best
        waited = statistics.fmean(one.phases_ns[NEXT] for one in self.loop) / 1e9
        return replace(best, share=best.share * best.mean / (best.mean + waited), mean=best.mean + waited)

    def _rare(self, slow: Slow | None, wall: float, other: float, length: float | None) -> RareSteps | None:
        """What holds most of the time of all that is rare."""
        share = slow.share * (wall - other) / wall if slow is not None else 0.0
        if length is not None and other / wall > max(share, RULE.rare_min_share):
            line, seconds, others = self.epoch_line, other * length, wall - other
            rare = RareSteps(share=other / wall, every=length, seconds=seconds, others=others, between_epochs=True)
        elif slow is not None:
            line, rare = self.rare_line, RareSteps(share=share, every=slow.every, seconds=slow.seconds, others=slow.others)
        else:
            return None
        if line is None:
            return rare
        phase = line.phase if line.in_phase >= MOSTLY and not rare.between_epochs else None
        return msgspec.structs.replace(rare, phase=phase, alone=line.alone, place=line.place, called=line.called)

    def add_waiting(self, waiting: Waiting) -> None:
        """Take in what a stretch waited for cores."""
        waited_ns, looped_ns = waiting.end()
        if waited_ns is not None:
            self.waited_ns += waited_ns
            self.looped_ns += looped_ns

    def of_rank(self, rank: int) -> Rank | None:
        """What the steps of this process of several take; None where nothing was measured without the others."""
        loop, apart = self._pieces(self.loop, 1), self._pieces(self.apart, 1)
        if not self.loop or not self.apart:
            return None
        own = [[max(0.0, one - less) for one in piece] for piece, less in zip(apart, self.exchanged, strict=False)]
        exchanges = [[one] for one in self.exchanges] if len(self.exchanges) == len(apart) else []
        return Rank(
            rank=rank,
            step_seconds=statistics.median(one for piece in loop for one in piece),
            apart_seconds=_in_pieces(at_one_level(own, loop)).median,
            exchange_seconds=_in_pieces(at_one_level(exchanges, loop)).median if exchanges else None,
            waited_for_cores=statistics.median(self.waited_apart) if self.waited_apart else None,
        )

    def last_stretch(self, steps: list[Times], source: Source | None) -> list[float]:
        """Seconds of the steps of it, as T is told: each with its part of what its loader takes to begin an epoch."""
        epochs = self._epochs(steps, source, least=LEAST_EPOCHS_OF_A_TRIAL)
        if epochs:
            return [one.seconds for one in epochs[-1]]
        lost = between([self._course(steps)], _epoch_length(source, self._batches))
        starting = lost.loader if lost is not None else 0.0
        together = self._steps_together(source, split(steps, self.starts.get(id(steps), []))[-1])
        return [one + starting for one in self._pieces(steps, together)[-1]]

    def begin(self, into: list[Any]) -> None:
        """What is written to a list from here on is another stretch of the same kind."""
        self.starts.setdefault(id(into), []).append(len(into))

    def add_end(self, into: list[Times], times: Times, *, ours: bool) -> None:
        """A step at whose begin an epoch ended, beside those that are written to a list."""
        stretch = max(0, len(self.starts.get(id(into), [])) - 1)
        self.ends.setdefault(id(into), []).append(End(len(into), stretch, times, ours))

    def time_ends(self, into: list[Times], on_device: list[float]) -> None:
        """The last ones, on a GPU's timeline."""
        ends = self.ends.get(id(into), [])
        for number, seconds in enumerate(reversed(on_device), 1):
            ends[-number] = ends[-number]._replace(on_device=seconds)

    def _course(self, steps: list[Times]) -> Course:
        on_device = self.on_device.get(id(steps), []) if self.on_device else None
        if steps is not self.early:
            return Course(steps=steps, ends=self.ends.get(id(steps), []), on_device=on_device)
        ends = [End(0, number, one) for number, one in enumerate(steps) if one.broken]  # each as it came
        return Course(steps=[one for one in steps[1:] if not one.broken], ends=ends, on_device=on_device)

    def _epochs(self, steps: list[Times], source: Source | None, *, least: int = LEAST_EPOCHS) -> list[list[Times]]:
        """Mean steps of epochs, stretch by stretch, where these are so short that workers never come to work evenly in one."""
        if source is None or source.loader is None or not source.loader.num_workers or self.apart or steps is self.early:
            return []
        found = self._course(steps).epochs(len(split(steps, self.starts.get(id(steps), []))))
        enough = sum(map(len, found)) >= least and all(found) and id(steps) not in self.on_device
        return found if enough else []

    def _phases(self, phased: list[Times], source: Source | None, starting: float) -> Phases:
        """How a step divides; a loader that begins anew in each epoch is waited for."""
        epochs = [one for piece in self._epochs(self.phased or self.loop, source) for one in piece]
        spent = {name: _phase(epochs or phased, number) for number, name in enumerate(NAMES)}
        return Phases(**{**spent, "next": spent["next"] + (0.0 if epochs else starting)})

    def _pieces(self, steps: list[Times], together: int, *, with_data: bool = True) -> list[list[float]]:
        """Seconds of steps, stretch by stretch."""
        seconds = self.on_device.get(id(steps)) or [one.seconds if with_data else one.without_data for one in steps]
        pieces = split(seconds, self.starts.get(id(steps), []))
        return [[statistics.fmean(part) for part in _groups(piece, together)] for piece in pieces]

    def _on_device(self, steps: list[Times], together: int) -> list[float]:
        return [statistics.fmean(part) for part in _groups(self.on_device.get(id(steps), []), together)]

    @property
    def _batches(self) -> float:
        """Of a step."""
        return statistics.median(self.batches_a_step) if any(self.batches_a_step) else 1

    def _steps_together(self, source: Source | None, steps: list[Times]) -> int:
        """How many steps in a row have to be looked at as one, because they differ for a good reason."""
        workers = source.loader.num_workers if source is not None and source.loader is not None else 0
        wanted = max(1, workers)  # their batches come in bursts of as many
        if self.batch_bytes and max(self.batch_bytes) > 1.05 * min(self.batch_bytes):
            wanted *= 4
        return max(1, min(wanted, len(steps) // LEAST_GROUPS))

    def _alone(
        self, source: Source | None, phased: list[Times], batches: float, together: int, loop: list[list[float]]
    ) -> Stretch | None:
        """The loader's own time: alone, or within the loop where that took longer because caches were cold."""
        waits = [one.phases_ns[NEXT] / 1e9 for one in phased]
        if source is None or not source.gives_batches:  # batches are made in the loop itself
            return Stretch(seconds=[one.phases_ns[NEXT] / 1e9 + one.phases_ns[PREPARE] / 1e9 for one in phased])
        if not self.loader_alone:
            return None
        rounds = split(self.loader_alone, self.starts.get(id(self.loader_alone), []))
        size = max(1, min(together, min(map(len, rounds)) // 2))
        alone = at_one_level([[statistics.fmean(part) * batches for part in _groups(one, size)] for one in rounds], loop)
        return max(_in_pieces(alone), Stretch(seconds=waits), key=lambda one: one.median)

    def _loader(self, source: Source | None, batches: float) -> Loader:
        if source is None or not source.gives_batches:
            return Loader(kind="loop", place=source.place if source is not None else None)
        used = statistics.median(self.batch_bytes) * batches if self.batch_bytes else None
        loader, known = source.loader, _profiled(self.profile, batches)
        common = {"place": source.place, "bytes_used": used, "startup_seconds": _seconds(source.startup_ns), **known}
        if loader is None:
            return Loader(kind=type(source.iterable).__name__, batch_size=self.batch_rows, **common)
        return Loader(
            kind=type(loader).__name__,
            workers=loader.num_workers,
            pinned=loader.pin_memory and torch.cuda.is_available(),
            batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
            dataset=type(loader.dataset).__name__,
            persistent=loader.persistent_workers if loader.num_workers else None,
            **common,
        )


def _profiled(profile: Profile | None, batches: float) -> dict[str, Any]:
    """What looking into the loader has told of it."""
    if profile is None:
        return {}
    a_batch = profile.reads.bytes_read
    read = a_batch * batches if a_batch is not None else None
    return {"stages": profile.stages, "functions": profile.functions, "bytes_read": read, "reads": profile.reads}


def in_groups(steps: list[Times], size: int) -> list[Times]:
    """Means of steps in a row."""
    if size == 1:
        return steps
    return [mean(part) for part in _groups(steps, size)]


def _groups(values: list[Any], size: int) -> list[list[Any]]:
    return [values[start : start + size] for start in range(0, len(values) - size + 1, size)]


def _phase(steps: list[Times], number: int) -> float:
    return statistics.median(one.phases_ns[number] for one in steps) / 1e9


def _in_pieces(pieces: list[list[float]]) -> Stretch:
    return Stretch(seconds=[one for piece in pieces for one in piece], pieces=[len(piece) for piece in pieces])


def _stretch(seconds: list[float]) -> Stretch | None:
    return Stretch(seconds=seconds) if seconds else None


def _device_phases(sleeps: list[Asleep]) -> dict[str, float]:
    names = ("forward", "backward", "optimizer")
    return {name: statistics.median(one.phases[name] for one in sleeps) for name in names} if sleeps else {}


def _epoch_length(source: Source | None, batches: float) -> float | None:
    """Steps of an epoch, where what the loop goes through knows."""
    try:
        return len(source.iterable) / batches if source is not None else None
    except (TypeError, NotImplementedError):  # not all have a length
        return None


def _shares(lost: Between | None, step: float) -> dict[str, float]:
    return {} if lost is None else {"loader": lost.loader / (step + lost.other), "other": lost.other / (step + lost.other)}


def _not_in_steps(share: float) -> list[str]:
    told = f"{percent(share)} of the time passes between epochs (validation, checkpoints): it is not in the verdict."
    return [told] if WORTH_TELLING < share <= RULE.rare_verdict_share else []  # with more it is the verdict


def _cores_used(by_kind: dict[str, list[float]]) -> float | None:
    used = by_kind.get("cached") or by_kind.get("loop")
    return statistics.median(used) if used else None


def _slow(steps: list[Times]) -> int:
    seconds = [one.seconds for one in steps]
    return sum(one > 3 * statistics.median(seconds) for one in seconds)


def _seconds(nanoseconds: int | None) -> float | None:
    return nanoseconds / 1e9 if nanoseconds is not None else None


def _too_early(steps: int) -> str:
    if not steps:
        return "no optimizer of torch made a step. Nothing was trained, or not by torch.optim, or in other processes."
    return "the training ended after one step, before anything could be measured. Let it train for at least 30."
