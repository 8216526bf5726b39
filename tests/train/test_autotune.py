"""The choice between setups: a paired test that noise does not fool, and bits that decide where weights must stay the same."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker._clock import RunQueueDelay
from stoker.train import Setup, Trial, autotune
from stoker.train.autotune import LEAST_GAIN, ROUNDS, SPARED, Chooser, Timed, steps_per_round

BASE, OTHER = Setup(), Setup(fused=True)
FALSE_CHOICES = sum(comb(ROUNDS, k) for k in range(SPARED + 1)) / 2**ROUNDS
"""How often a candidate without a gain may be taken, as choice.py states it: 10 of 512."""


class Watch(RunQueueDelay):
    """Says that threads waited for cores for a given share of the time."""

    share: float | None = 0.0

    def end(self) -> tuple[int | None, int]:
        return None if self.share is None else int(self.share * 1000), 1000


class Timings:
    """Setups whose steps take what a function says; it counts what was asked for."""

    def __init__(self, seconds: Callable[[Setup], float], *, bits: Callable[[Setup], str] = lambda setup: "") -> None:
        self._seconds, self._bits = seconds, bits
        self.calls: list[tuple[Setup, int]] = []

    def __call__(self, setup: Setup, num_steps: int, *, shaken: bool = False, bits: bool = False) -> Timed:
        self.calls.append((setup, num_steps))
        losses = [1.0 + 1e-4 * setup.fused] * num_steps
        return Timed(self._seconds(setup), losses, self._bits(setup) if bits else "")


def compared(seconds: Callable[[Setup], float], *, share: float | None = 0.0, exact: bool = False, **given: Any) -> Trial:
    watch = type("Watched", (Watch,), {"share": share})
    return Chooser(run=Timings(seconds, **given), waiting=watch).compare("fused", BASE, OTHER, num_steps=2, exact=exact)


def noisy(rng: np.random.Generator, gain: float, kind: str) -> Callable[[Setup], float]:
    """Times of a busy machine: a few per cent, sometimes many times more, in bursts, or slower and slower."""
    count = 0

    def seconds(setup: Setup) -> float:
        nonlocal count
        count += 1
        noise = {
            "normal": lambda: 1 + 0.05 * abs(rng.standard_normal()),
            "heavy": lambda: 1 + rng.pareto(1.0),
            "rare": lambda: 20.0 if rng.random() < 0.05 else 1 + 0.01 * rng.random(),
            "drift": lambda: (1 + 0.2 * count) * (1 + 0.01 * rng.random()),
        }[kind]()
        return noise / (gain if setup == OTHER else 1.0)

    return seconds


@pytest.mark.promise("P23")
@pytest.mark.parametrize("trials", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["normal", "heavy", "rare", "drift"])
def test_noise_is_taken_for_a_gain_no_more_often_than_stated(kind: str, trials: int) -> None:
    rng = np.random.default_rng(15)
    taken = sum(compared(noisy(rng, 1.0, kind)).chosen for _ in range(trials))
    assert taken <= trials * FALSE_CHOICES + 4 * (trials * FALSE_CHOICES) ** 0.5


@pytest.mark.promise("P23", control=True)
def test_the_best_of_three_rounds_would_be_fooled() -> None:
    """Negative control: what was done before, over the same noise."""
    rng = np.random.default_rng(15)
    fooled = 0
    for _ in range(200):
        seconds = noisy(rng, 1.0, "heavy")
        before, after = (min(seconds(setup) for _ in range(3)) for setup in (BASE, OTHER))
        fooled += before > LEAST_GAIN * after
    assert fooled > 200 * 5 * FALSE_CHOICES


@pytest.mark.parametrize("kind", ["normal", "rare", "drift"])
def test_a_real_gain_is_found(kind: str) -> None:
    rng = np.random.default_rng(3)
    found = [compared(noisy(rng, 1.5, kind)) for _ in range(60)]
    assert sum(trial.chosen for trial in found) >= 45
    chosen = next(trial for trial in found if trial.chosen)
    assert "1.5x faster (" in chosen.reason or "1.4" in chosen.reason
    assert LEAST_GAIN < chosen.gain_low <= chosen.gain <= chosen.gain_high


@pytest.mark.promise("P23")
def test_nothing_is_taken_while_other_programs_hold_the_cores() -> None:
    def fast(setup: Setup) -> float:
        return 0.1 if setup == OTHER else 1.0

    trial = compared(fast, share=0.48)
    assert not trial.chosen
    assert trial.reason == "not measured: for 48 % of the time threads waited for cores that other programs hold"
    assert compared(fast, share=0.05).chosen
    assert compared(fast, share=None).chosen, "where the system does not say, the interval alone decides"


@pytest.mark.promise("P23")
def test_exact_takes_only_what_gives_the_same_bits() -> None:
    def fast(setup: Setup) -> float:
        return 0.1 if setup == OTHER else 1.0

    assert "bit-equal" in compared(fast, exact=True).reason
    differing = compared(fast, exact=True, bits=lambda setup: str(setup))
    assert not differing.chosen
    assert "weights differ in some bits" in differing.reason
    count = iter(range(100))
    unsteady = compared(fast, exact=True, bits=lambda setup: str(next(count)))
    assert not unsteady.chosen
    assert "other bits each time" in unsteady.reason
    # Negative control: without the check both would be taken.
    assert compared(fast, bits=lambda setup: str(setup)).chosen


def test_losses_that_differ_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(autotune.TOLERANCE, "fused", 1e-5)
    trial = compared(lambda setup: 0.1 if setup == OTHER else 1.0)
    assert not trial.chosen
    assert "losses differ by 0.0001" in trial.reason


@given(st.floats(1e-6, 100.0), st.integers(1, 10**7), st.integers(1, 5), st.booleans())
def test_measuring_stays_within_its_share_of_the_run(seconds: float, total: int, candidates: int, exact: bool) -> None:
    num_steps = steps_per_round(seconds, total_updates=total, num_candidates=candidates, exact=exact)
    if num_steps < 1:
        return  # not measured
    steps = 2 * autotune.WARM_UP

    def run(setup: Setup, count: int, *, shaken: bool = False, bits: bool = False) -> Timed:
        nonlocal steps
        steps += count
        return Timed(0.5 if setup == OTHER else 1.0, [1.0] * count)

    Chooser(run=run, waiting=Watch).compare("fused", BASE, OTHER, num_steps=num_steps, exact=exact)
    assert candidates * steps <= autotune.LARGEST_SHARE * total
