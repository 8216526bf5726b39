"""Rounds: the order of runs, when they end, and how often equal programs are called faster."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stoker.compare import WIDTH
from stoker.compare.rounds import LEAST_PAIRS, Pairs, Speed, alternate, is_narrow, shows_no_gain, speed_of


def simulated(
    rng: np.random.Generator, *, effect: float, noise: float, drift: float = 0.0, width: float = WIDTH, most: int = 24
) -> Speed:
    """Rounds of two programs whose runs scatter by `noise`; the machine becomes slower by `drift` from run to run."""
    runs = iter(range(1000))

    def run(step: float) -> float:
        return float(step * math.exp(noise * rng.standard_normal() + drift * next(runs)))

    def enough(pairs: Pairs[float]) -> bool:
        return is_narrow(speed_of(pairs.before, pairs.after), width)

    pairs = alternate(lambda: run(1.0), lambda: run(1.0 / effect), enough=enough, most=most)
    return speed_of(pairs.before, pairs.after)


def test_each_side_runs_first_as_often_as_the_other() -> None:
    order: list[str] = []
    alternate(lambda: order.append("A"), lambda: order.append("B"), enough=lambda pairs: len(pairs.before) == 4)
    assert "".join(order) == "ABBAABBA"


def test_no_round_starts_that_would_end_after_the_budget() -> None:
    clock = iter(range(0, 10**12, 10**10))  # each look takes 10 s
    pairs = alternate(lambda: 1, lambda: 1, enough=lambda pairs: False, seconds=35, clock=lambda: next(clock))
    assert 1 <= len(pairs.before) <= 3


@pytest.mark.promise("P34")
@pytest.mark.parametrize(("noise", "drift"), [(0.002, 0.0), (0.01, 0.0), (0.05, 0.0), (0.3, 0.0), (0.02, 0.03)])
def test_equal_programs_are_called_faster_in_at_most_one_of_a_hundred_cases(noise: float, drift: float) -> None:
    rng = np.random.default_rng(int(noise * 1000))
    verdicts = [simulated(rng, effect=1.0, noise=noise, drift=drift).verdict for _ in range(300)]
    assert verdicts.count("faster") <= 0.01 * 300 + 3 * math.sqrt(300 * 0.01)


@pytest.mark.promise("P34", control=True)
@pytest.mark.parametrize(("effect", "noise", "least"), [(1.05, 0.01, 0.95), (1.5, 0.1, 0.95), (2.0, 0.3, 0.6)])
def test_true_changes_are_found(effect: float, noise: float, least: float) -> None:
    rng = np.random.default_rng(1)
    faster = [simulated(rng, effect=effect, noise=noise).verdict == "faster" for _ in range(100)]
    slower = [simulated(rng, effect=1 / effect, noise=noise).verdict == "slower" for _ in range(100)]
    assert np.mean(faster) >= least
    assert np.mean(slower) >= least


@pytest.mark.promise("P34", control=True)
def test_rounds_do_not_end_because_one_side_seems_faster() -> None:
    """Negative control: who stops at the first p below 0.02 finds a difference in many equal programs."""
    rng = np.random.default_rng(2)

    def significant(pairs: Pairs[float]) -> bool:
        return speed_of(pairs.before, pairs.after).p <= 0.02

    hasty = 0
    for _ in range(200):
        pairs = alternate(lambda: float(rng.lognormal(0, 0.1)), lambda: float(rng.lognormal(0, 0.1)), enough=significant)
        hasty += speed_of(pairs.before, pairs.after).p <= 0.02
    assert hasty > 0.03 * 200


def test_a_small_gain_does_not_count() -> None:
    assert speed_of([1.005] * 8, [1.0] * 8).verdict == "same"
    assert speed_of([1.2] * 8, [1.0] * 8).verdict == "faster"
    assert speed_of([1.2] * (LEAST_PAIRS - 1), [1.0] * (LEAST_PAIRS - 1)).verdict == "unknown"
    assert speed_of([1.2] * 3, [1.0] * 3).high == math.inf


def test_larger_batches_are_compared_by_samples() -> None:
    speed = speed_of([1.0] * 8, [1.5] * 8, samples=(32, 64))
    assert (speed.unit, speed.before, speed.after) == ("samples", 32.0, pytest.approx(64 / 1.5))
    assert speed.speedup == pytest.approx(2 / 1.5)


@pytest.mark.parametrize(("pairs", "ratio", "ends"), [(2, 0.5, False), (3, 0.9, True), (3, 1.005, True), (3, 1.1, False)])
def test_a_version_that_is_not_faster_is_given_up_after_three_pairs(pairs: int, ratio: float, ends: bool) -> None:
    assert shows_no_gain(speed_of([ratio] * pairs, [1.0] * pairs)) == ends
