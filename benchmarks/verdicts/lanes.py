"""Lanes: cores that belong to one program at a time, so that programs that run side by side do not take each other's.

A lane is a thread that has pinned itself. What it starts inherits its cores, noisy neighbours included, and a program that asks
what it may use sees no others. Threads of one physical core lie in the same lane. GPU programs have one lane of their own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.verdicts.table import Program

CORES_A_LANE = 2
Run = Callable[[Program], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Cores, and the devices whose programs run on them."""

    cores: frozenset[int]
    devices: frozenset[str]


def make_lanes(number: int, cores: Sequence[int], *, gpu: bool) -> list[Lane]:
    """A number of lanes for programs of the CPU, and one for those of the GPU from what is left. 0: all in one, as it is."""
    if number == 0:
        return [Lane(cores=frozenset(cores), devices=frozenset(("cpu", "cuda")))]
    wanted = CORES_A_LANE * (number + gpu)
    if wanted > len(cores):
        raise SystemExit(f"{number} lanes{' and one for the GPU' if gpu else ''} need {wanted} cores, and there are {len(cores)}.")
    parts = [cores[start : start + CORES_A_LANE] for start in range(0, number * CORES_A_LANE, CORES_A_LANE)]
    lanes = [Lane(cores=frozenset(part), devices=frozenset(("cpu",))) for part in parts]
    if gpu:
        lanes.append(Lane(cores=frozenset(cores[number * CORES_A_LANE :]), devices=frozenset(("cuda",))))
    return lanes


def usable_cores() -> list[int]:
    """The cores that this process may use, those of one physical core next to each other."""
    return sorted(os.sched_getaffinity(0), key=lambda core: (min(_siblings(core)), core))


def _siblings(core: int) -> list[int]:
    with suppress(OSError, ValueError):
        reported = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
        return [int(part.split("-")[0]) for part in reported.split(",")]
    return [core]


def side_by_side(lanes: Sequence[Lane], programs: Sequence[Program], run: Run) -> Iterator[tuple[Program, dict[str, Any]]]:
    """Programs and what `run` says of them, as they get ready. Who stops listening waits for those that run, and for no others."""
    waiting = {device: SimpleQueue[Program]() for device in ("cpu", "cuda")}
    for program in programs:
        waiting[program.device].put(program)
    ready: SimpleQueue[tuple[Program, dict[str, Any]] | BaseException | None] = SimpleQueue()
    stop = threading.Event()

    def drive(lane: Lane) -> None:
        try:
            os.sched_setaffinity(0, lane.cores)  # of this thread alone
            for device in sorted(lane.devices):
                with suppress(Empty):
                    while not stop.is_set():
                        program = waiting[device].get_nowait()
                        ready.put((program, run(program)))
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
