"""Lanes: cores that belong to one program at a time, so that programs that run side by side do not take each other's.

A lane is a thread that has pinned itself. What it starts inherits its cores, noisy neighbours included, and a program that asks
what it may use sees no others. Threads of one physical core lie in the same lane. GPU programs have one lane of their own.

`Deadline` lets a run end in time: a program that would take longer than what is left is not started.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

CORES_A_LANE = 2


class Job(Protocol):
    """What a lane can run: it has a name and needs a device."""

    @property
    def name(self) -> str:
        """Unique among the jobs of a run."""

    @property
    def device(self) -> str:
        """Either cpu or cuda."""


J = TypeVar("J", bound=Job)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Cores, and the devices whose programs run on them."""

    cores: frozenset[int]
    devices: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """How long each job is known to take, and when the last one must have ended."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """By name, of an earlier run."""
    usual: float
    """Of a job that is not known."""
    end: float = float("inf")
    """By `time.monotonic`."""

    def of(self, job: Job) -> float:
        """How long a job is expected to take."""
        return self.seconds.get(job.name, self.usual)

    def allows(self, job: Job) -> bool:
        """Whether the job would end in time if it started now."""
        return time.monotonic() + self.of(job) <= self.end

    def longest_first(self, jobs: Sequence[J]) -> list[J]:
        """The order in which lanes end at nearly the same time; jobs of the same length by name."""
        return sorted(jobs, key=lambda job: (-self.of(job), job.name))


def make_lanes(number: int, cores: Sequence[int], *, gpu: int) -> list[Lane]:
    """A number of lanes for programs of the CPU, and `gpu` lanes for those of the GPU from what is left. 0: all in one, as it is."""
    if number == 0:
        return [Lane(cores=frozenset(cores), devices=frozenset(("cpu", "cuda")))]
    wanted = CORES_A_LANE * (number + gpu)
    if wanted > len(cores):
        raise SystemExit(
            f"{number} lanes{f' and {gpu} for the GPU' if gpu else ''} need {wanted} cores, and there are {len(cores)}."
        )
    parts = [cores[start : start + CORES_A_LANE] for start in range(0, number * CORES_A_LANE, CORES_A_LANE)]
    lanes = [Lane(cores=frozenset(part), devices=frozenset(("cpu",))) for part in parts]
    left = cores[number * CORES_A_LANE :]
    for lane in range(gpu):
        lanes.append(
            Lane(cores=frozenset(left[lane * len(left) // gpu : (lane + 1) * len(left) // gpu]), devices=frozenset(("cuda",)))
        )
    return lanes


def usable_cores() -> list[int]:
    """The cores that this process may use, those of one physical core next to each other."""
    return sorted(os.sched_getaffinity(0), key=lambda core: (min(_siblings(core)), core))


def _siblings(core: int) -> list[int]:
    with suppress(OSError, ValueError):
        reported = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
        return [int(part.split("-")[0]) for part in reported.split(",")]
    return [core]


def side_by_side(
    lanes: Sequence[Lane],
    jobs: Sequence[J],
    run: Callable[[J], dict[str, Any]],
    *,
    may_start: Callable[[J], bool] = lambda _: True,
) -> Iterator[tuple[J, dict[str, Any]]]:
    """Jobs and what `run` says of them, as they get ready. Who stops listening waits for those that run, and for no others.

    Jobs start in the given order. One that `may_start` refuses is left out.
    """
    waiting = {device: SimpleQueue[J]() for device in ("cpu", "cuda")}
    for job in jobs:
        waiting[job.device].put(job)
    ready: SimpleQueue[tuple[J, dict[str, Any]] | BaseException | None] = SimpleQueue()
    stop = threading.Event()

    def drive(lane: Lane) -> None:
        try:
            os.sched_setaffinity(0, lane.cores)  # of this thread alone
            for device in sorted(lane.devices):
                with suppress(Empty):
                    while not stop.is_set():
                        job = waiting[device].get_nowait()
                        if may_start(job):
                            ready.put((job, run(job)))
        except BaseException as error:  # reported where it can be seen
            ready.put(error)
        finally:
            ready.put(None)

    threads = [threading.Thread(target=drive, args=(lane,), name="lane") for lane in lanes]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            found = ready.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                running -= 1
            else:
                yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join()
