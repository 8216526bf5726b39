"""The rule that names the cause of a slowdown, by counters that are made up: each cause, and beside it what must not be taken for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.watch.cause import Explanation, explain
from stoker.watch.counters import Counters

pytestmark = pytest.mark.promise("P22")

MS = 1_000_000
START = Counters(
    steps=0,
    wait_ns=0,
    at_ns=0,
    own_cpu_ns=0,
    delays_ns={"1": 0, "2": 0},
    machine_cpu_ns=0,
    steal_ns=0,
    resident_bytes=1 << 30,
    spin_ns=20_000,
    core_mhz=3000.0,
    gpu_mhz=1980.0,
    gpu_programs=1,
    gpu_bytes=1 << 30,
    gpu_retries=0,
)


def later(counters: Counters, *, steps: int, step_ms: float = 10.0, busy: float = 1.0, **more: Any) -> Counters:
    """Counters some steps later: per step the process computes for a share of the time, and what else happens is added."""
    spent = int(steps * step_ms * MS)
    values = {
        "steps": counters.steps + steps,
        "at_ns": counters.at_ns + spent,
        "own_cpu_ns": counters.own_cpu_ns + int(busy * spent),
        "machine_cpu_ns": (counters.machine_cpu_ns or 0) + int(busy * spent),
    }
    for name, value in more.items():
        before = values.get(name, getattr(counters, name))
        if name == "delays_ns":
            values[name] = {thread: before[thread] + value.get(thread, 0) for thread in before}
        elif name in ("spin_ns", "core_mhz", "gpu_mhz", "gpu_programs", "gpu_throttle"):
            values[name] = value
        else:
            values[name] = before + value
    return replace(counters, **values)


EARLIER = [START]
for _ in range(3):
    EARLIER.append(later(EARLIER[-1], steps=1000))


def explained(*, step_ms: float = 12.0, busy: float = 1.0, **more: Any) -> Explanation:
    """The explanation of steps that take 12 ms instead of 10, with what is added over 50 of them."""
    end = later(EARLIER[-1], steps=50, step_ms=step_ms, busy=busy, **more)
    return explain(EARLIER, EARLIER[-1], end, before_seconds=0.010, after_seconds=step_ms / 1e3)


def test_threads_that_wait_for_a_core() -> None:
    found = explained(delays_ns={"2": 50 * 2 * MS}, machine_cpu_ns=600 * MS, busy=0.8)
    assert found.cause == "neighbour"
    assert found.evidence == "threads wait 2 ms longer per step for a core to run on; other programs use 1.0 more cores"
    assert explained(delays_ns={"2": int(50 * 0.9 * MS)}).cause == "step"


def test_a_loader_that_waits_for_a_core_is_not_the_cause() -> None:
    more = {"workers_delay_ns": 100 * MS, "machine_cpu_ns": 600 * MS}
    assert explained(wait_ns=100 * MS, busy=0.8, **more).cause == "neighbour"


def test_own_threads_that_compete_are_not_a_neighbour() -> None:
    found = explained(delays_ns={"2": 100 * MS}, busy=2.0)
    assert found.cause == "step"
    assert "its own threads compete for cores" in found.evidence


def test_another_program_on_the_gpu() -> None:
    found = explained(gpu_programs=2, busy=0.1)
    assert (found.cause, found.evidence) == ("neighbour", "2 programs compute on the GPU, 1 before")
    assert explained(gpu_programs=1).cause == "step"


def test_a_program_that_shares_caches_and_memory() -> None:
    found = explained(machine_cpu_ns=600 * MS)
    assert found.cause == "neighbour"
    assert "1.0 more cores" in found.evidence
    assert explained(machine_cpu_ns=100 * MS).cause == "step", "a little is always going on"
    assert explained(machine_cpu_ns=600 * MS, wait_ns=100 * MS, busy=0.8).cause == "loader", "the step takes no more CPU time"


def test_pages_and_swap() -> None:
    assert explained(page_faults=50 * 4000).evidence == "2 ms more per step go to pages from the system"
    assert explained(disk_faults=50 * 20).evidence == "2 ms more per step go to reads of pages from the disk"
    assert explained(page_faults=50 * 400, disk_faults=50).cause == "step"


def test_a_gpu_that_is_full() -> None:
    assert explained(gpu_retries=5).evidence == "the GPU is full: 5 allocations had to empty the cache of the allocator first"


def test_a_gpu_at_a_lower_clock() -> None:
    found = explained(gpu_mhz=1650.0, gpu_throttle="power limit", busy=0.1)
    assert (found.cause, found.evidence) == ("clock", "the GPU runs at 1,650 MHz, 1,980 before (power limit)")
    assert explained(gpu_mhz=1900.0).cause == "step", "4 % explain no 20 %"


def test_a_system_that_reports_nothing() -> None:
    bare = Counters(steps=100, wait_ns=0, at_ns=MS, own_cpu_ns=MS)
    end = replace(bare, steps=200, at_ns=500 * MS, wait_ns=300 * MS)
    assert explain([bare], bare, end, before_seconds=0.001, after_seconds=0.004).cause == "loader"
    assert explain([bare], bare, replace(end, wait_ns=0), before_seconds=0.001, after_seconds=0.004).cause == "step"
