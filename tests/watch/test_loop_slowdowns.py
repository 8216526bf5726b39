"""A watch on a loop whose clock and machine are simulated: which slowdowns it reports, when, and with which cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.watch.test_cause_ranks import DictStore

from stoker.watch import loop as watches
from stoker.watch.cause import WatchedRanks
from stoker.watch.counters import Counters
from stoker.watch.detector import BLOCK
from stoker.watch.loop import READ_BLOCKS, Watch

MS = 1_000_000
Change = Callable[["Machine"], None]


class Machine:
    """A machine and a loop on it: a step waits for its batch, computes, and is delayed by other programs."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.now = self.waited = self.busy = self.delayed = self.others = self.collected = 0
        self.wait_ms, self.busy_ms, self.delay_ms, self.collect_ms, self.idle_ms = 1.0, 8.0, 0.0, 0.0, 0.0
        self.spin_ns = 20_000
        self.resident_bytes = 1 << 30
        self.reads = 0

    def __call__(self) -> int:
        return self.now

    def _spend(self, milliseconds: float) -> int:
        spent = int(milliseconds * MS * (1 + 0.03 * self._rng.standard_normal()))
        self.now += spent
        return spent

    def wait(self) -> None:
        self.waited += self._spend(self.wait_ms)

    def compute(self) -> None:
        self.busy += self._spend(self.busy_ms)
        if self.idle_ms:
            self._spend(self.idle_ms)
        if self.delay_ms:
            spent = self._spend(self.delay_ms)
            self.delayed += spent
            self.others += spent
        if self.collect_ms:
            self.collected += self._spend(self.collect_ms)

    def read(self, *, steps: int, wait_ns: int, collector_ns: int) -> Counters:
        self.reads += 1
        return Counters(
            steps=steps,
            wait_ns=wait_ns,
            at_ns=self.now,
            own_cpu_ns=self.busy,
            delays_ns={"1": self.delayed},
            machine_cpu_ns=self.busy + self.others,
            steal_ns=0,
            resident_bytes=self.resident_bytes,
            collector_ns=self.collected,
            spin_ns=self.spin_ns,
        )


@pytest.fixture
def machine(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(rng)
    monkeypatch.setattr(watches, "now_ns", machine)
    monkeypatch.setattr(watches, "thread_busy_ns", machine)
    return machine


def batches(machine: Machine, number: int, at: int, change: Change) -> Iterator[int]:
    for step in range(number):
        if step == at:
            change(machine)
        machine.wait()
        yield step


def run(machine: Machine, change: Change, *, steps: int = 2000, at: int = 1800) -> Watch[int]:
    """A loop that changes at a step."""
    watched = Watch(batches(machine, steps, at, change), None, read=machine.read)
    for _ in watched:
        machine.compute()
    return watched


def set_(**values: Any) -> Change:
    def change(machine: Machine) -> None:
        for name, value in values.items():
            setattr(machine, name, value)

    return change


@pytest.mark.promise("P22")
@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("loader", set_(wait_ms=2.0)),
        ("step", set_(busy_ms=9.0)),
        ("step", set_(idle_ms=1.0)),
        ("neighbour", set_(delay_ms=1.0)),
        ("memory", set_(collect_ms=1.0)),
        ("memory", set_(busy_ms=9.0, resident_bytes=3 << 29)),
        ("clock", set_(busy_ms=9.0, spin_ns=22_500)),
    ],
)
def test_a_slowdown_of_a_tenth_is_named_within_100_steps(machine: Machine, cause: str, change: Change) -> None:
    watched = run(machine, change)
    (slowdown,) = watched.slowdowns
    assert slowdown.cause == cause, slowdown
    assert 1800 < slowdown.step <= 1900
    assert abs(slowdown.since - 1800) <= 16
    assert slowdown.slower == pytest.approx(0.11, abs=0.03)
    assert slowdown.before_seconds == pytest.approx(0.009, rel=0.03)


@pytest.mark.promise("P22", control=True)
def test_negative_control_nothing_is_reported_without_a_slowdown(machine: Machine) -> None:
    watched = run(machine, lambda machine: None, steps=10_000)
    assert list(watched.slowdowns) == []
    assert machine.reads == 3 + 10_000 // BLOCK // READ_BLOCKS
    assert 0.05 < watched.smallest_slowdown < 0.06


def test_a_neighbour_that_takes_whole_time_slices_from_short_steps(machine: Machine) -> None:
    """Most steps are as short as before, and every fourth takes several times as long."""
    watched = Watch[Any](None, None, read=machine.read)
    for step in range(2000):
        machine.delay_ms = 24.0 if step >= 1800 and step % 4 == 0 else 0.0
        machine.compute()
        watched.step()
    (slowdown,) = watched.slowdowns
    assert slowdown.cause == "neighbour"
    assert slowdown.slower == pytest.approx(0.75, abs=0.1)


def test_time_between_steps_and_short_passes(machine: Machine) -> None:
    watched = Watch[Any](None, None, read=machine.read)
    for epoch in range(300):
        machine.now += 500 * MS  # validation
        watched.begin()
        machine.wait_ms = 2.0 if epoch >= 270 else 1.0
        for _ in range(7):
            before = machine.now
            machine.wait()
            waited = machine.now - before
            machine.compute()
            watched.step(waited)
    (slowdown,) = watched.slowdowns
    assert slowdown.cause == "loader"
    assert 1890 < slowdown.step <= 1990
    assert watched.rate == pytest.approx(1 / 0.00915, rel=0.02)


def test_negative_control_the_time_between_steps_would_count(machine: Machine) -> None:
    watched = Watch[Any](None, None, read=machine.read)
    for _ in range(100):
        machine.now += 500 * MS
        for _ in range(7):
            machine.compute()
            watched.step()
    assert watched.rate < 20


@pytest.mark.promise("P22")
def test_counters_are_not_read_too_often(machine: Machine) -> None:
    """A read that takes 10 ms is paid for by 100,000 steps, and by less at first."""

    def slow_read(**values: int) -> Counters:
        machine.now += 10 * MS
        return machine.read(**values)

    watched = Watch(batches(machine, 29_000, -1, lambda machine: None), None, read=slow_read)
    for _ in watched:
        machine.compute()
    assert machine.reads == 1


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[WatchedRanks]:
    store = DictStore()
    return [WatchedRanks(number, 3, store) for number in range(3)]


@pytest.mark.promise("P22")
def test_all_ranks_name_the_one_that_is_slow(
    rng: np.random.Generator, ranks: list[WatchedRanks], monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = [Machine(rng) for _ in ranks]
    watched = [Watch[Any](None, None, read=machine.read) for machine in machines]
    current = [0]
    monkeypatch.setattr(watches, "now_ns", lambda: machines[current[0]].now)
    monkeypatch.setattr(watches, "find_ranks", lambda: ranks[current[0]])
    for one in watched:
        one.begin()
    for step in range(2000):
        machines[1].wait_ms = 3.0 if step >= 1800 else 1.0
        waits = []
        for machine in machines:
            before = machine.now
            machine.wait()
            waits.append(machine.now - before)
            machine.compute()
        latest = max(machine.now for machine in machines)
        for number, machine in enumerate(machines):
            current[0], machine.now = number, latest  # all wait for the last one
            watched[number].step(waits[number])
    for one in watched:
        (slowdown,) = one.slowdowns
        assert slowdown.cause == "rank"
        assert slowdown.evidence.startswith("rank 1 is slow (loader): a step waits 2")
        assert slowdown.step <= 1900


@pytest.mark.promise("P22", control=True)
def test_negative_control_without_the_others_a_rank_blames_its_step(
    machine: Machine, ranks: list[WatchedRanks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "find_ranks", lambda: ranks[0])
    (slowdown,) = run(machine, set_(idle_ms=2.0)).slowdowns
    assert slowdown.cause == "step"
