"""Step times of batches of different sizes, made comparable."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.watch.test_loop_slowdowns import Machine

from stoker.watch import loop as watches
from stoker.watch.detector import UsualTimes
from stoker.watch.loop import Watch


def test_steps_are_compared_with_those_of_their_size(rng: np.random.Generator) -> None:
    usual = UsualTimes()
    sizes = rng.integers(20, 2000, 4000).astype(float)
    times = ((1e6 + 5000 * sizes) * (1 + 0.02 * rng.standard_normal(4000))).astype(int)  # of any shape, here with a constant part
    scaled = np.log(usual.scale(times.tolist(), sizes.tolist()))
    assert np.std(np.log(times[1000:])) > 0.5
    assert np.std(scaled[1000:]) < 0.05
    slow = np.log(usual.scale((times[:96] * 1.1).astype(int).tolist(), sizes[:96].tolist()))
    assert np.mean(slow) - np.mean(scaled[1000:]) == pytest.approx(math.log(1.1), abs=0.02)


def run(machine: Machine, monkeypatch: pytest.MonkeyPatch, *, sized: bool, called: bool = False, steps: int = 2000) -> Watch[int]:
    """Batches of two sizes at random, of which the larger take twice as long; from step 1,800 on all take 10 % longer."""
    monkeypatch.setattr(watches, "now_ns", machine)
    monkeypatch.setattr(watches, "thread_busy_ns", machine)
    sizes = np.random.default_rng(1).choice([100, 200], steps).tolist()

    def compute(step: int) -> None:
        machine.busy_ms = 0.04 * sizes[step] * (1.1 if step >= 1800 else 1.0)
        machine.compute()

    if called:
        watched = Watch[int](None, None, read=machine.read)
        for step in range(steps):
            compute(step)
            watched.step(size=sizes[step] if sized else None)
        return watched
    watched = Watch(range(steps), None, read=machine.read, size=(lambda step: sizes[step]) if sized else None)
    for step in watched:
        compute(step)
    return watched


@pytest.mark.promise("P22")
@pytest.mark.parametrize("called", [False, True])
def test_a_slowdown_is_found_in_batches_of_mixed_sizes(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, called: bool
) -> None:
    (slowdown,) = run(Machine(rng), monkeypatch, sized=True, called=called).slowdowns
    assert (slowdown.cause, 1800 < slowdown.step <= 1900) == ("step", True)


@pytest.mark.promise("P22", control=True)
def test_negative_control_without_sizes_it_is_not_found(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run(Machine(rng), monkeypatch, sized=False).slowdowns
