"""The clock: the one module that reads time for measurements. `Spans` keeps the last ones in a ring of fixed size."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
import weakref
from collections.abc import Iterator
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
    """How long threads of this process wait for a CPU core that another program has, from its creation on.

    After `end`, `taken_ns` is the CPU time that other programs used on the cores of this process; None where the system does not
    report it.
    """

    __slots__ = ("_before", "_begin_ns", "_others_ns", "taken_ns")

    def __init__(self) -> None:
        self.taken_ns: int | None = None
        self._before = waited_ns(TASKS)
        self._others_ns = _others_ns()
        self._begin_ns = now_ns()

    def end(self) -> tuple[int | None, int]:
        """The wait of the thread that waited most (None where the system does not report it), and the time elapsed, in ns."""
        spent, after = now_ns() - self._begin_ns, waited_ns(TASKS)
        if not after:
            return None, spent
        waited = max(waited - self._before.get(thread, 0) for thread, waited in after.items())
        others_ns = _others_ns()
        if self._others_ns is not None and others_ns is not None:
            self.taken_ns = max(0, others_ns - self._others_ns)
            # The rest of the wait was for threads and processes of this program.
            waited = max(0, min(waited, self.taken_ns))
        return waited, spent


class TimeWithCore:
    """A clock that stands still while the calling thread waits for a core: on a busy machine only differences of it can be compared.

    Where the system does not report these waits, it is `now_ns`.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(TASKS / str(threading.get_native_id()) / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)

    def __call__(self) -> int:
        """Return the time in ns since some moment."""
        now = now_ns()
        return now if self._file is None else now - int(os.pread(self._file, 64, 0).split()[1])


def _others_ns() -> int | None:
    """Time that the cores of this process have spent on other programs, plus a constant; None where the system does not report it."""
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split() for line in (PROC / "stat").read_text().splitlines() if line.startswith("cpu")]
        cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        # user, nice, system, idle, iowait, irq, softirq
        ticks = [sum(map(int, [*times[:3], *times[5:7]])) for name, *times in lines if name in cores]
        if any(ticks):
            return sum(ticks) * 10**9 // os.sysconf("SC_CLK_TCK") - busy_ns() - _descendants_ns()
    return None


def _descendants_ns() -> int:
    """CPU time of all processes that this one has started, directly or not, and of those among them that have ended."""
    children: dict[int, list[tuple[int, int]]] = {}
    for process, fields in _processes():
        children.setdefault(int(fields[1]), []).append((process, sum(map(int, fields[11:15]))))  # own time, and of ended children
    ticks, parents = 0, [os.getpid()]
    while parents:
        for process, spent in children.get(parents.pop(), []):
            ticks += spent
            parents.append(process)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks * 10**9 // os.sysconf("SC_CLK_TCK") + int((ended.ru_utime + ended.ru_stime) * 1e9)


def _processes() -> Iterator[tuple[int, list[str]]]:
    """All processes, with the fields of their `stat` from the state on."""
    for status in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # the process has ended meanwhile
            yield int(status.parent.name), status.read_text().rpartition(")")[2].split()  # a name may have spaces


def read_proc(path: object) -> bytes:
    """The content of a file of the system; nothing if it cannot be read, as of a thread that has ended."""
    try:
        file = os.open(str(path), os.O_RDONLY)  # a quarter of the cost of `open`
    except OSError:
        return b""
    try:
        return os.read(file, 4096)
    except OSError:
        return b""
    finally:
        os.close(file)


def schedstat(folder: object) -> tuple[int, int] | None:
    """CPU time of a thread, and its wait for a core, in ns."""
    words = read_proc(f"{folder}/schedstat").split()
    return (int(words[0]), int(words[1])) if len(words) >= 2 else None


def waited_ns(folder: object, most: int | None = None) -> dict[str, int]:
    """Time in the run queue since its start, by thread; of `most` threads. `folder` is that of the threads of a process."""
    try:
        threads = os.listdir(str(folder))[:most]  # noqa: PTH208
    except OSError:
        return {}
    times = {thread: schedstat(f"{folder}/{thread}") for thread in threads}
    return {thread: both[1] for thread, both in times.items() if both is not None}


def cores_of_children() -> float:
    """Cores that child processes of this process have used since they began, on average; 0 where the system does not report it."""
    with contextlib.suppress(OSError, ValueError):
        uptime, ticks = float((PROC / "uptime").read_text().split()[0]), os.sysconf("SC_CLK_TCK")
        of_children = [fields for _, fields in _processes() if fields[1] == str(os.getpid())]
        return sum((int(child[11]) + int(child[12])) / max(1.0, uptime * ticks - int(child[19])) for child in of_children)
    return 0.0


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
