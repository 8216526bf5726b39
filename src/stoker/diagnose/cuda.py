"""Measurements that only a GPU needs.

`StepMarks` times steps on the device's timeline, `DeviceOnlyStep` times the device without waits for the host, `SyncFinder` finds the
lines that wait for the device, `copy_seconds` times host-to-device copies.

Nothing here synchronises within a step: events are recorded, and read after the window. Each takes `cuda`, so that a test can pass a
fake of `torch.cuda`.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from stoker._clock import now_ns
from stoker._text import sync_debug_mode
from stoker.diagnose.hooks import NAMES, StepHooks, leaves, own_frame, place_of
from stoker.diagnose.measurements import SourceLine, Sync

MAX_SLEEP_SECONDS = 1.0
CALIBRATION_CYCLES = 20_000_000


def _record_event(cuda: Any) -> Any:
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


class StepMarks:
    """Events at the ends of steps: the time between two is a step, idle time included."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._events = [_record_event(cuda)]
        self._counted: list[bool] = []

    def add(self, *, counted: bool) -> None:
        """Mark the end of a step, and whether its time counts."""
        self._events.append(_record_event(self._cuda))
        self._counted.append(counted)

    def seconds(self, *, counted: bool = True) -> list[float]:
        """Wait for the device, and return the times of the steps that count, or of the others."""
        self._cuda.synchronize()
        pairs = zip(self._events, self._events[1:], self._counted, strict=False)
        return [before.elapsed_time(after) / 1e3 for before, after, one in pairs if one == counted]


class DeviceOnlyStep:
    """One step issued while the device sleeps, so that it then runs without waiting for the host."""

    def __init__(self, hooks: StepHooks, seconds: float, cycles_per_second: float, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._hooks = hooks
        self._cycles = int(min(seconds, MAX_SLEEP_SECONDS) * cycles_per_second)
        self._events: list[tuple[int, Any]] = []
        self.blocked = False  # whether issuing the step took until the sleep was over: the step waited for the device
        self.seconds = 0.0
        self.phases: Counter[str] = Counter()

    def begin(self) -> None:
        """Put the device to sleep. Called when the batch is there."""
        self._cuda.synchronize()
        self._cuda._sleep(self._cycles)
        self._mark(self._hooks.phase)
        self._hooks.on_phase = self._mark

    def end(self) -> None:
        """Wait for the device. Called when the step is issued."""
        self._hooks.on_phase = None
        self._mark(0)
        self.blocked = bool(self._events[0][1].query())
        self._cuda.synchronize()
        for (phase, before), (_, after) in zip(self._events, self._events[1:], strict=False):
            spent = before.elapsed_time(after) / 1e3
            self.phases[NAMES[phase]] += spent
            self.seconds += spent

    def _mark(self, phase: int) -> None:
        self._events.append((phase, _record_event(self._cuda)))


def cycles_per_second(cuda: Any = torch.cuda) -> float:
    """The rate at which the device counts cycles while it sleeps."""
    before, after = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    cuda.synchronize()
    before.record()
    cuda._sleep(CALIBRATION_CYCLES)
    after.record()
    cuda.synchronize()
    return float(CALIBRATION_CYCLES / (before.elapsed_time(after) / 1e3))


class SyncFinder:
    """Finds the lines at which the host waits for the device, from torch's warnings."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._seen: Counter[SourceLine | None] = Counter()
        self._steps = 0
        self._opened = contextlib.ExitStack()

    def begin(self) -> None:
        """Start to listen for the warnings of one step."""
        self._opened.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always")
        shown = warnings.showwarning

        def show(message: Any, *args: Any, **kwargs: Any) -> None:
            if "called a synchronizing" not in str(message):
                shown(message, *args, **kwargs)
                return
            frame = own_frame(sys._getframe(1))
            self._seen[place_of(frame) if frame is not None else None] += 1

        warnings.showwarning = show
        self._opened.enter_context(sync_debug_mode("warn", self._cuda))

    def end(self) -> None:
        """Stop listening: the step has ended."""
        self._opened.close()
        self._steps += 1

    def syncs(self) -> list[Sync]:
        """Synchronisations per step by line, the most frequent first."""
        return [Sync(place=place, count=count / max(1, self._steps)) for place, count in self._seen.most_common()]


def copy_seconds(batches: Sequence[Any], device: Any, cuda: Any = torch.cuda) -> list[float]:
    """Seconds to copy each host batch to the device; empty if the batches are on it already."""
    host = [[one for one in leaves(batch) if isinstance(one, torch.Tensor) and one.device.type == "cpu"] for batch in batches]
    if not any(host):
        return []
    cuda.synchronize()
    spent = []
    for tensors in (*host[:1], *host):  # the first one warms up
        start = now_ns()
        kept = [one.to(device, non_blocking=one.is_pinned()) for one in tensors]
        cuda.synchronize()
        spent.append((now_ns() - start) / 1e9)
        del kept
    return spent[1:]
