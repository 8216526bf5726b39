"""What only a GPU has: marks on its timeline, the device alone by sleep-ahead, places that wait for it, copies to it.

Nothing here synchronises within a step of the user's: events are recorded, and read when the stretch is over. Each class takes the
module that speaks to the device, so that a test can give it another.
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
from stoker.diagnose.hooks import NAMES, Boundaries, leaves, own_frame, place_of
from stoker.diagnose.measurements import SourceLine, Sync

LONGEST_SLEEP_SECONDS = 1.0
CALIBRATION_CYCLES = 20_000_000


class Marks:
    """Ends of steps on the timeline of the device: their distances are the steps, idle time included."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._events: list[Any] = []
        self._whole: list[bool] = []
        self.add(whole=False)

    def add(self, *, whole: bool) -> None:
        """A step has ended; `whole` if its time counts."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)
        self._whole.append(whole)

    def seconds(self, *, whole: bool = True) -> list[float]:
        """Waits for the device, once, and tells the times of the steps that count, or of the others."""
        self._cuda.synchronize()
        pairs = zip(self._events, self._events[1:], self._whole[1:], strict=False)
        return [before.elapsed_time(after) / 1e3 for before, after, counts in pairs if counts == whole]


class Asleep:
    """One step that is issued while the device sleeps: afterwards it runs without ever waiting for the host."""

    def __init__(self, boundaries: Boundaries, seconds: float, cycles_a_second: float, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._boundaries = boundaries
        self._cycles = int(min(seconds, LONGEST_SLEEP_SECONDS) * cycles_a_second)
        self._edges: list[tuple[int, Any]] = []
        self.blocked = False
        """Whether issuing it took until the sleep was over: it waited for the device."""
        self.seconds = 0.0
        self.phases: Counter[str] = Counter()

    def begin(self) -> None:
        """The batch is there."""
        self._cuda.synchronize()
        self._cuda._sleep(self._cycles)
        self._edge(self._boundaries.phase)
        self._boundaries.on_edge = self._edge

    def end(self) -> None:
        """The step is issued."""
        self._boundaries.on_edge = None
        self._edge(0)
        self.blocked = bool(self._edges[0][1].query())
        self._cuda.synchronize()
        for (phase, before), (_, after) in zip(self._edges, self._edges[1:], strict=False):
            spent = before.elapsed_time(after) / 1e3
            self.phases[NAMES[phase]] += spent
            self.seconds += spent

    def _edge(self, phase: int) -> None:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        self._edges.append((phase, event))


def cycles_a_second(cuda: Any = torch.cuda) -> float:
    """How fast the device counts while it sleeps."""
    before, after = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    cuda.synchronize()
    before.record()
    cuda._sleep(CALIBRATION_CYCLES)
    after.record()
    cuda.synchronize()
    return float(CALIBRATION_CYCLES / (before.elapsed_time(after) / 1e3))


class Waits:
    """The lines at which the host waits for the device, from torch's own warnings."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._seen: Counter[SourceLine | None] = Counter()
        self._steps = 0
        self._opened = contextlib.ExitStack()

    def begin(self) -> None:
        """A step begins."""
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
        """It has ended."""
        self._opened.close()
        self._steps += 1

    def syncs(self) -> list[Sync]:
        """Times a step by line, the most first."""
        return [Sync(place=place, count=count / max(1, self._steps)) for place, count in self._seen.most_common()]


def copy_seconds(batches: Sequence[Any], device: Any, cuda: Any = torch.cuda) -> list[float]:
    """Seconds of copying each of several distinct host batches to the device; empty where they are there already."""
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
