"""The stopwatch: batches pass through as they are, and what is told of them is what the clock said."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from tests.diagnose.clock import MS, Clock
from torch.utils.data import DataLoader, TensorDataset

from stoker import watch
from stoker.watch import loop as stopwatch
from stoker.watch.detector import BLOCK
from stoker.watch.loop import Watch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopwatch, "now_ns", clock)
    return clock


def watched(clock: Clock, *, waits: list[int], bodies: list[int]) -> Watch[int]:
    """A pass whose waits and steps take given milliseconds."""

    def batches() -> Iterator[int]:
        for number, wait in enumerate(waits):
            clock.now += wait * MS
            yield number

    found = watch(batches())
    for number in found:
        clock.now += bodies[number] * MS
    return found


@pytest.mark.promise("P22")
def test_batches_pass_through() -> None:
    batches = [object() for _ in range(5)]
    with watch(batches) as seen:
        assert all(one is other for one, other in zip(seen, batches, strict=True))
    assert len(seen) == 5
    assert seen.steps == 5
    assert str(seen) == "5 steps say too little"


def test_a_training_run_that_waits_is_data_bound(clock: Clock) -> None:
    found = watched(clock, waits=[500] + [6] * 99, bodies=[2] * 100)
    assert found.wait_share == pytest.approx(6 * 99 / (6 * 99 + 200))
    assert found.startup_seconds == 0.5
    assert found.rate == pytest.approx(100 / 0.794)
    assert found.hint == "data-bound: 75 % of the time waits for batches, up to 3.97x to win there"
    assert str(found) == f"100 steps, 126 it/s, spread 0 %; {found.hint}"


def test_a_training_run_that_does_not_wait_is_not_data_bound(clock: Clock) -> None:
    found = watched(clock, waits=[0] * 50, bodies=[3] * 49 + [30])
    assert found.hint == "not data-bound: 0 % of the time waits for batches"
    assert found.slow_steps == 1
    assert "1 slow of the last 50 (the longest 30 ms)" in str(found)


def test_passes_add_up_and_each_is_reported(clock: Clock) -> None:
    told: list[str] = []
    found = watch([1, 2, 3], report=told.append)
    for _ in range(3):
        for _ in found:
            clock.now += MS
    assert found.steps == 9
    assert [line.split(",")[0] for line in told] == ["3 steps say too little", "6 steps say too little", "9 steps"]


def test_a_loop_that_is_left_has_its_last_step_too(clock: Clock) -> None:
    told: list[str] = []
    found = watch(itertools.count(), report=told.append)
    for number in found:
        clock.now += MS
        if number == 9:
            break
    assert found.steps == 10
    assert len(told) == 1


@pytest.mark.promise("P22")
def test_an_error_of_the_loop_is_its_own(clock: Clock) -> None:
    def fail() -> None:
        for _ in watch([1]):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()


@pytest.mark.promise("P22")
def test_a_step_costs_two_clock_reads_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    monkeypatch.setattr(stopwatch, "now_ns", lambda: next(looks))
    seen = watch(range(5000))
    assert sum(seen) == sum(range(5000))
    assert 2 * 5000 < next(looks) <= 2 * 5000 + 5000 // BLOCK + 4, "one more after each block, so that no step has its time"
    assert len(seen.recent_seconds) == stopwatch.KEPT_STEPS


@pytest.mark.promise("P22", control=True)
def test_negative_control_a_pass_that_is_watched_twice_costs_twice_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    monkeypatch.setattr(stopwatch, "now_ns", lambda: next(looks))
    monkeypatch.setattr(stopwatch, "KEPT_STEPS", 10**6)
    seen = watch(watch(range(5000)))
    assert sum(seen) == sum(range(5000))
    assert next(looks) > 4 * 5000
    assert len(seen.recent_seconds) == 5000, "kept for each step: memory that grows"


def test_a_loader_keeps_its_attributes() -> None:
    loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=4)
    found = watch(loader)
    assert found.batch_size == 4
    assert found.dataset is loader.dataset
    assert [batch[0].tolist() for batch in found][-1] == [8, 9, 10, 11]
    with pytest.raises(AttributeError):
        _ = found.nothing
