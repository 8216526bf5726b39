"""The clock: the one module that reads time for measurements. `Spans` keeps the last ones in a ring of fixed size."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

now_ns = time.perf_counter_ns
busy_ns = time.process_time_ns
"""CPU time of all threads of this process."""
thread_busy_ns = time.thread_time_ns
"""CPU time of the calling thread."""
PROC = Path("/proc")
TASKS = PROC / "self" / "task"


def now_utc() -> str:
    """The date and time for records, like 2026-11-15T16:20:00.123Z. Never for measurements: it may jump."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RunQueueDelay:
    """How long threads of this process wait for a CPU core that another program has, from its creation on."""

    __slots__ = ("_before", "_begin_ns", "_others_ns")

    def __init__(self) -> None:
        self._before = _waited_ns()
        self._others_ns = _others_ns()
        self._begin_ns = now_ns()

    def end(self) -> tuple[int | None, int]:
        """The wait of the thread that waited most (None where the system does not report it), and the time elapsed, in ns."""
        spent, after = now_ns() - self._begin_ns, _waited_ns()
        if not after:
            return None, spent
        waited = max(waited - self._before.get(thread, 0) for thread, waited in after.items())
        others_ns = _others_ns()
        if self._others_ns is not None and others_ns is not None:
            # The rest of the wait was for other threads of this process.
            waited = max(0, min(waited, others_ns - self._others_ns))
        return waited, spent


def _others_ns() -> int | None:
    """Time that the cores of this process have spent on other processes, plus a constant; None where the system does not report it."""
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split() for line in (PROC / "stat").read_text().splitlines() if line.startswith("cpu")]
        cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        # user, nice, system, idle, iowait, irq, softirq
        ticks = [sum(map(int, [*times[:3], *times[5:7]])) for name, *times in lines if name in cores]
        if any(ticks):
            return sum(ticks) * 10**9 // os.sysconf("SC_CLK_TCK") - busy_ns()
    return None


def _waited_ns() -> dict[str, int]:
    """Time in the run queue since its start, by thread."""
    waited = {}
    for thread in TASKS.iterdir() if TASKS.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended meanwhile
            waited[thread.name] = int((thread / "schedstat").read_text().split()[1])
    return waited


def cores_of_children() -> float:
    """Cores that child processes of this process have used since they began, on average; 0 where the system does not report it."""
    cores, own = 0.0, str(os.getpid())
    with contextlib.suppress(OSError, ValueError):
        uptime, ticks = float((PROC / "uptime").read_text().split()[0]), os.sysconf("SC_CLK_TCK")
        for status in PROC.glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # the process has ended meanwhile
                fields = status.read_text().rpartition(")")[2].split()  # a name may have spaces: from the state on
                if fields[1] == own:
                    cores += (int(fields[11]) + int(fields[12])) / max(1.0, uptime * ticks - int(fields[19]))
    return cores


class Spans:
    """The last spans of one kind of work, and the sum of all of them."""

    __slots__ = ("_starts", "_stops", "count", "total_ns")

    def __init__(self, capacity: int = 1024) -> None:
        self._starts = np.zeros(capacity, dtype=np.int64)
        self._stops = np.zeros(capacity, dtype=np.int64)
        self.count = 0
        self.total_ns = 0

    def add(self, start_ns: int, stop_ns: int) -> None:
        """Add one span."""
        place = self.count % len(self._starts)
        self._starts[place] = start_ns
        self._stops[place] = stop_ns
        self.count += 1
        self.total_ns += stop_ns - start_ns

    @property
    def seconds(self) -> float:
        """All spans together."""
        return self.total_ns / 1e9

    def recent_seconds(self) -> npt.NDArray[Any]:
        """Durations of the last spans, oldest first."""
        size = len(self._starts)
        places = np.arange(max(0, self.count - size), self.count) % size
        return np.asarray((self._stops[places] - self._starts[places]) / 1e9)


compiling = Spans(capacity=1)
"""Time that this process has spent compiling kernels; `_kernels` adds to it."""
pacing = Spans(capacity=1)
"""Time that this process has waited for a GPU that has batches enough, with the next one ready; feeds add to it."""
