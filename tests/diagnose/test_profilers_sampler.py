"""Blame: lines of the user's, whatever they call."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from stoker.diagnose import profilers as module
from stoker.diagnose.hooks import BACKWARD, NAMES, NEXT, StepHooks, StepTimes
from stoker.diagnose.profilers import OtherThreads, Sampler


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def test_time_goes_to_the_line_that_runs_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, hooks = Clock(), StepHooks()
    monkeypatch.setattr(module, "now_ns", clock)
    sampler = Sampler(hooks)
    hooks.phase = NEXT
    clock.now += 30
    sampler.sample(sys._getframe())
    clock.now += 10
    sampler.sample(sys._getframe())
    hooks.phase = BACKWARD
    clock.now += 1000
    sampler.sample(None)
    blames = sampler.blames()
    assert list(blames) == ["next"]
    assert [one.share for one in blames["next"]] == [0.75, 0.25]
    assert blames["next"][0].place.function == "test_time_goes_to_the_line_that_runs_by_phase"


@pytest.fixture
def free_timer() -> Iterator[None]:
    """The timer that limits the time of tests is put away meanwhile."""
    handler, (left, interval) = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left, interval)


def test_a_sample_does_not_interrupt_another(free_timer: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a thread that holds the interpreter a sample takes longer than the time between two."""
    sampler, depths = Sampler(), [0]

    def slow(frame: object) -> None:
        depths.append(depths[-1] + 1)
        time.sleep(0.005)
        depths.append(depths[-1] - 1)

    monkeypatch.setattr(sampler, "sample", slow)
    with sampler:
        while len(depths) < 9:
            time.sleep(0.001)
    assert set(depths) == {0, 1}


def test_a_timer_of_the_programs_own_is_not_touched(free_timer: None) -> None:
    def own(*_: object) -> None:
        pass

    signal.signal(signal.SIGALRM, own)
    with Sampler():
        assert signal.getitimer(signal.ITIMER_REAL)[1] == 0
        assert any(one.name == "stoker-sampler" for one in threading.enumerate())
    assert signal.getsignal(signal.SIGALRM) is own


def test_a_thread_that_computes_and_the_sleep_of_this_one_are_seen() -> None:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin, name="spinner", daemon=True)
    thread.start()
    try:
        watched = OtherThreads()
        time.sleep(0.1)
        asleep, busiest = watched.end()
    finally:
        stop.set()
        thread.join()
    assert asleep > 0.5
    assert busiest is not None
    assert (busiest.name, busiest.share > 0) == ("spinner", True)
    assert busiest.place is None or "spin" in busiest.place.function
    quiet = OtherThreads()
    assert all(one.name != "spinner" for one in [quiet.end()[1]] if one is not None)


def test_a_loop_that_waits_for_its_next_item_is_seen() -> None:
    def chunks(sampler: Sampler) -> Iterator[int]:
        sampler.sample(sys._getframe())
        yield 1

    def validate(sampler: Sampler) -> None:
        sampler.sample(sys._getframe())

    found = []
    for work in (lambda sampler: list(chunks(sampler)), validate):
        sampler = Sampler(slow_from=0.0)
        work(sampler)
        sampler.end_step(StepTimes((0,) * len(NAMES), True))
        found.append(sampler.rare_line())
    assert found[0] is not None
    assert found[0].iterated is not None
    assert found[0].iterated.function.endswith("<lambda>"), "the line that asks for the items"
    assert found[1] is not None
    assert found[1].iterated is None, "the control: a function that is called gives no items"
