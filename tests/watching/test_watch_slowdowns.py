"""A watch on a loop whose clock and machine are simulated: which slowdowns it reports, when, and with which cause."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.watching.test_cause_ranks import DictStore

from stoker.watching import watch as watches
from stoker.watching.cause import WatchedRanks
from stoker.watching.counters import Counters
from stoker.watching.detector import BLOCK
from stoker.watching.watch import READ_BLOCKS, Watch, watch

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


def test_two_causes_one_after_the_other(machine: Machine) -> None:
    def change(machine: Machine) -> None:
        machine.wait_ms = 4.0

    watched = Watch(batches(machine, 6000, 1800, change), None, read=machine.read)
    for number in watched:
        machine.delay_ms = 2.0 if number >= 5800 else 0.0
        machine.compute()
    assert [(one.cause, one.step // 100) for one in watched.slowdowns] == [("loader", 18), ("neighbour", 58)]


def test_memory_that_grows_over_the_whole_run(machine: Machine) -> None:
    watched = Watch[Any](None, None, read=machine.read)
    for step in range(32_000):
        machine.busy_ms = 8.0 + 3.0 * step / 32_000
        machine.resident_bytes += 1 << 14
        machine.compute()
        watched.step()
    assert watched.slowdowns[0].cause == "memory"
    assert "the process has grown by" in watched.slowdowns[0].evidence
    assert len(watched._counters) <= 8


def test_lines_go_to_report(machine: Machine) -> None:
    lines: list[str] = []
    watched = Watch(None, lines.append, read=machine.read)
    for step in range(2600):
        machine.busy_ms = 10.0 if 1800 <= step < 2200 else 8.0
        machine.compute()
        watched.step()
    assert len(lines) == 2
    assert lines[0].startswith("step 1,8")
    assert "Cause: step." in lines[0]
    assert lines[1].startswith("step 2,")
    assert lines[1].endswith(": steps are as fast as before the slowdown.")


def test_a_listener_hears_all_watches(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(watches, "listener", lines.append)
    run(machine, set_(wait_ms=3.0))
    assert len(lines) == 1


def test_steps_without_a_loader(machine: Machine) -> None:
    watched = Watch[Any](None, None, read=machine.read)
    for step in range(2000):
        if step == 1800:
            machine.wait_ms = 2.0
        before = machine.now
        machine.wait()
        waited = machine.now - before
        machine.compute()
        watched.step(waited)
    (slowdown,) = watched.slowdowns
    assert (slowdown.cause, watched.steps) == ("loader", 2000)
    with pytest.raises(TypeError, match=r"without batches; call its step\(\)"):
        next(iter(watched))


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


def test_reading_the_numbers_changes_nothing(machine: Machine) -> None:
    watched = Watch(batches(machine, 2000, 1800, set_(wait_ms=2.0)), None, read=machine.read)
    for number in watched:
        machine.compute()
        if number % 25 == 0:
            assert watched.steps == number + 1
            assert str(watched)
    (slowdown,) = watched.slowdowns
    assert slowdown.step <= 1900


def test_counters_are_not_read_too_often(machine: Machine) -> None:
    """A read that takes 10 ms is paid for by 100,000 steps, and by less at first."""

    def slow_read(**values: int) -> Counters:
        machine.now += 10 * MS
        return machine.read(**values)

    watched = Watch(batches(machine, 29_000, -1, lambda machine: None), None, read=slow_read)
    for _ in watched:
        machine.compute()
    assert machine.reads == 1


def test_a_slow_loader_is_named_where_counters_may_not_be_read_again(machine: Machine) -> None:
    """The watch itself knows the waits. Counters from long before the slowdown would spread them over all steps since then."""

    def slow_read(**values: int) -> Counters:
        machine.now += 10 * MS
        return machine.read(**values)

    watched = Watch(batches(machine, 2000, 1800, set_(wait_ms=2.0)), None, read=slow_read)
    for _ in watched:
        machine.compute()
    (slowdown,) = watched.slowdowns
    assert slowdown.cause == "loader"
    assert machine.reads == 2, "the first, and the one that names the cause"


def test_a_watch_that_is_gone_hears_no_collections(machine: Machine) -> None:
    before = len(gc.callbacks)
    with watch([1]):
        assert len(gc.callbacks) == before + 1
    assert len(gc.callbacks) == before
    gone = weakref.ref(watch([1]))
    assert gone() is None
    assert len(gc.callbacks) == before


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[WatchedRanks]:
    store = DictStore()
    return [WatchedRanks(number, 3, store) for number in range(3)]


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


def test_negative_control_without_the_others_a_rank_blames_its_step(
    machine: Machine, ranks: list[WatchedRanks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "find_ranks", lambda: ranks[0])
    (slowdown,) = run(machine, set_(idle_ms=2.0)).slowdowns
    assert slowdown.cause == "step"


def test_a_store_that_is_gone_is_accepted(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Connection was likely closed")

    monkeypatch.setattr(watches, "find_ranks", lambda: WatchedRanks(0, 2, Gone()))
    (slowdown,) = run(machine, set_(wait_ms=3.0)).slowdowns
    assert slowdown.cause == "loader"
