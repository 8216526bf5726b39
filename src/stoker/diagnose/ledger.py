"""The ledger: what a session has written down so far, and the `Measurements` that can be made of it at any time."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field
from typing import Any

import torch

from stoker.diagnose.boundaries import NAMES, NEXT, PREPARE, Boundaries, Times, compiled
from stoker.diagnose.cuda import Asleep
from stoker.diagnose.machine import measure_machine
from stoker.diagnose.measurements import Blame, Device, Loader, Measurements, Phases, Stretch, Sync, Work
from stoker.diagnose.stages import Profile
from stoker.diagnose.watched import Source, Sources
from stoker.errors import TrainError

LEAST_GROUPS = 16


@dataclass
class Ledger:
    """Raw times, as they came."""

    early: list[Times] = field(default_factory=list)
    """Steps of the warm-up: all there is of a program that ends in it."""
    loop: list[Times] = field(default_factory=list)
    cached: list[Times] = field(default_factory=list)
    on_device: dict[int, list[float]] = field(default_factory=dict)
    """Seconds between marks on a GPU's timeline, by the list (its id) that holds the host's times of the same steps."""
    host_issue: list[float] = field(default_factory=list)
    sleeps: list[Asleep] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    """Seconds a batch."""
    loader_alone: list[float] = field(default_factory=list)
    """Seconds a batch."""
    batches_a_step: list[int] = field(default_factory=list)
    batch_bytes: list[int] = field(default_factory=list)
    batch_rows: int | None = None
    by_threads: dict[int, float] = field(default_factory=dict)
    blames: dict[str, list[Blame]] = field(default_factory=dict)
    syncs: list[Sync] = field(default_factory=list)
    profile: Profile | None = None
    work: Work | None = None
    optimizer_ways: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def measurements(self, sources: Sources, boundaries: Boundaries, device: Device) -> Measurements:
        """All that is known; raises where that is nothing."""
        measured = self.loop or self.early[1:]  # the first one has the time before it in it
        if not measured:
            raise TrainError(_too_early(boundaries.steps))
        source = sources.found
        together = self._steps_together(source)
        loop = in_groups(measured, together)
        batches = statistics.median(self.batches_a_step) if any(self.batches_a_step) else 1
        optimizer = boundaries.optimizer
        return Measurements(
            device=device,
            steps_seen=boundaries.steps,
            loop=Stretch(seconds=self._on_device(self.loop, together) or [one.seconds for one in loop]),
            phases=Phases(**{name: _phase(loop, number) for number, name in enumerate(NAMES)}),
            cached=_stretch(
                self._on_device(self.cached, together) or [one.without_data for one in in_groups(self.cached, together)]
            ),
            copies_alone=_stretch([one * batches for one in self.copies]),
            host_issue=_stretch(self.host_issue),
            device_alone=_stretch([one.seconds for one in self.sleeps]),
            device_phases=_device_phases(self.sleeps),
            blocked_under_sleep=sum(one.blocked for one in self.sleeps) > len(self.sleeps) / 2 if self.sleeps else None,
            loader_alone=self._alone(source, loop, batches, together),
            fewer_threads={str(number): seconds for number, seconds in self.by_threads.items()},
            syncs=self.syncs,
            blames=self.blames,
            loader=self._loader(source, batches),
            work=self.work,
            machine=measure_machine(device),
            precision=boundaries.precision or "fp32",
            optimizer=type(optimizer).__name__ if optimizer is not None else None,
            optimizer_fused=bool(optimizer.param_groups[0].get("fused")) if optimizer is not None else None,
            optimizer_ways=self.optimizer_ways,
            compiled=compiled(),
            slow_steps=_slow(measured),
            notes=self.notes,
            losses=[float(one) for one in boundaries.losses],
        )

    def _on_device(self, steps: list[Times], together: int) -> list[float]:
        return [statistics.fmean(part) for part in _groups(self.on_device.get(id(steps), []), together)]

    def _steps_together(self, source: Source | None) -> int:
        """How many steps in a row have to be looked at as one, because they differ for a good reason."""
        workers = source.loader.num_workers if source is not None and source.loader is not None else 0
        wanted = max(1, workers)  # their batches come in bursts of as many
        if self.batch_bytes and max(self.batch_bytes) > 1.05 * min(self.batch_bytes):
            wanted *= 4
        return max(1, min(wanted, len(self.loop) // LEAST_GROUPS))

    def _alone(self, source: Source | None, loop: list[Times], batches: float, together: int) -> Stretch | None:
        """The loader's own time: alone, or within the loop where that took longer because caches were cold."""
        waits = [one.phases_ns[NEXT] / 1e9 for one in loop]
        if source is None or not source.gives_batches:  # batches are made in the loop itself
            return Stretch(seconds=[one.phases_ns[NEXT] / 1e9 + one.phases_ns[PREPARE] / 1e9 for one in loop])
        if not self.loader_alone:
            return None
        size = max(1, min(together, len(self.loader_alone) // 4))
        alone = [statistics.fmean(part) * batches for part in _groups(self.loader_alone, size)]
        return Stretch(seconds=max(alone, waits, key=statistics.median))

    def _loader(self, source: Source | None, batches: float) -> Loader:
        if source is None or not source.gives_batches:
            return Loader(kind="loop", place=source.place if source is not None else None)
        profile = self.profile
        used = statistics.median(self.batch_bytes) * batches if self.batch_bytes else None
        loader = source.loader
        common = {"place": source.place, "bytes_used": used, "startup_seconds": _seconds(source.startup_ns)}
        if loader is None:
            return Loader(kind=type(source.iterable).__name__, batch_size=self.batch_rows, **common)  # type: ignore[arg-type]
        return Loader(
            kind=type(loader).__name__,
            workers=loader.num_workers,
            pinned=loader.pin_memory and torch.cuda.is_available(),
            batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
            dataset=type(loader.dataset).__name__,
            stages=profile.stages if profile is not None else {},
            functions=profile.functions if profile is not None else [],
            bytes_read=profile.bytes_read_a_batch * batches
            if profile is not None and profile.bytes_read_a_batch is not None
            else None,
            **common,  # type: ignore[arg-type]
        )


def in_groups(steps: list[Times], size: int) -> list[Times]:
    """Means of steps in a row."""
    if size == 1:
        return steps
    return [
        Times(tuple(round(statistics.fmean(spent)) for spent in zip(*(one.phases_ns for one in part), strict=True)), False)
        for part in _groups(steps, size)
    ]


def _groups(values: list[Any], size: int) -> list[list[Any]]:
    return [values[start : start + size] for start in range(0, len(values) - size + 1, size)]


def _phase(steps: list[Times], number: int) -> float:
    return statistics.median(one.phases_ns[number] for one in steps) / 1e9


def _stretch(seconds: list[float]) -> Stretch | None:
    return Stretch(seconds=seconds) if seconds else None


def _device_phases(sleeps: list[Asleep]) -> dict[str, float]:
    names = ("forward", "backward", "optimizer")
    return {name: statistics.median(one.phases[name] for one in sleeps) for name in names} if sleeps else {}


def _slow(steps: list[Times]) -> int:
    seconds = [one.seconds for one in steps]
    return sum(one > 3 * statistics.median(seconds) for one in seconds)


def _seconds(nanoseconds: int | None) -> float | None:
    return nanoseconds / 1e9 if nanoseconds is not None else None


def _too_early(steps: int) -> str:
    if not steps:
        return "no optimizer of torch made a step. Nothing was trained, or not by torch.optim."
    return "the training ended after one step, before anything could be measured. Let it train for at least 30."
