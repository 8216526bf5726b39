"""The ledger: what a session has written down so far, and the `Measurements` that can be made of it at any time."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field

import torch

from stoker.diagnose.boundaries import NAMES, NEXT, PREPARE, Boundaries, Times, compiled
from stoker.diagnose.copies import num_rows
from stoker.diagnose.machine import measure_machine
from stoker.diagnose.measurements import Blame, Device, Loader, Measurements, Phases, Stretch, Sync, Work
from stoker.diagnose.stages import Profile
from stoker.diagnose.watched import Source, Sources
from stoker.errors import TrainError


@dataclass
class Ledger:
    """Raw times, as they came."""

    loop: list[Times] = field(default_factory=list)
    cached: list[Times] = field(default_factory=list)
    loader_alone: list[float] = field(default_factory=list)
    """Seconds a batch."""
    batches_a_step: list[int] = field(default_factory=list)
    batch_bytes: list[int] = field(default_factory=list)
    by_threads: dict[int, float] = field(default_factory=dict)
    blames: dict[str, list[Blame]] = field(default_factory=dict)
    syncs: list[Sync] = field(default_factory=list)
    profile: Profile | None = None
    work: Work | None = None
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def measurements(self, sources: Sources, boundaries: Boundaries, device: Device) -> Measurements:
        """All that is known; raises where that is nothing."""
        if not self.loop:
            raise TrainError(_too_early(boundaries.steps))
        steps = [one.seconds for one in self.loop]
        batches = statistics.median(self.batches_a_step) if any(self.batches_a_step) else 1
        alone = [one * batches for one in self.loader_alone]
        source = sources.found
        in_loop = source is None or not source.gives_batches
        if in_loop:
            alone = [(one.phases_ns[NEXT] + one.phases_ns[PREPARE]) / 1e9 for one in self.loop]
        optimizer = boundaries.optimizer
        return Measurements(
            device=device,
            steps_seen=boundaries.steps,
            loop=Stretch(seconds=steps),
            phases=Phases(**{name: self._phase(number) for number, name in enumerate(NAMES)}),
            cached=Stretch(seconds=[one.without_data for one in self.cached]) if self.cached else None,
            loader_alone=Stretch(seconds=alone) if alone else None,
            fewer_threads={str(number): seconds for number, seconds in self.by_threads.items()},
            syncs=self.syncs,
            blames=self.blames,
            loader=self._loader(source, batches),
            work=self.work,
            machine=measure_machine(device),
            precision=boundaries.precision or "fp32",
            optimizer=type(optimizer).__name__ if optimizer is not None else None,
            optimizer_fused=bool(optimizer.param_groups[0].get("fused")) if optimizer is not None else None,
            compiled=compiled(),
            slow_steps=sum(one > 3 * statistics.median(steps) for one in steps),
            notes=self.notes,
            losses=[float(one) for one in boundaries.losses],
        )

    def _phase(self, number: int) -> float:
        return statistics.median(one.phases_ns[number] for one in self.loop) / 1e9

    def _loader(self, source: Source | None, batches: float) -> Loader:
        if source is None or not source.gives_batches:
            return Loader(kind="loop", place=source.place if source is not None else None)
        profile = self.profile
        used = statistics.median(self.batch_bytes) * batches if self.batch_bytes else None
        loader = source.loader
        common = {"place": source.place, "bytes_used": used, "startup_seconds": _seconds(source.startup_ns)}
        if loader is None:
            return Loader(kind=type(source.iterable).__name__, batch_size=num_rows(source.last), **common)  # type: ignore[arg-type]
        return Loader(
            kind=type(loader).__name__,
            workers=loader.num_workers,
            pinned=loader.pin_memory and torch.cuda.is_available(),
            batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
            dataset=type(loader.dataset).__name__,
            stages=profile.stages if profile is not None else {},
            functions=profile.functions if profile is not None else [],
            bytes_read=profile.bytes_read_a_batch * batches if profile is not None and profile.bytes_read_a_batch is not None else None,
            **common,  # type: ignore[arg-type]
        )


def _seconds(nanoseconds: int | None) -> float | None:
    return nanoseconds / 1e9 if nanoseconds is not None else None


def _too_early(steps: int) -> str:
    if not steps:
        return "no optimizer of torch made a step. Nothing was trained, or not by torch.optim."
    return f"the training ended after {steps} steps, before a single one could be measured. Let it train for at least 30."


