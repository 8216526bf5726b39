"""Steps of batches of different sizes are brought to one size."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.diagnose.sizes import SizeLaw, differ, fitted_power


def steps(
    power: float, *, which: int = 0, num: int = 60, noise: float = 0.02, seed: int = 0
) -> tuple[list[tuple[int, int]], list[float]]:
    """Sizes of steps and times that grow with a power of them."""
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(10, 0.5, num + 1).astype(int).tolist()
    both = list(zip(sizes[1:], sizes[:-1], strict=True))
    return both, [1e-7 * float(one[which]) ** power * float(rng.lognormal(0, noise)) for one in both]


def spread(values: list[float]) -> float:
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("power", [0.4, 1.0, 1.8])
def test_steps_of_many_sizes_become_alike(power: float, which: int) -> None:
    sizes, seconds = steps(power, which=which)
    factors = SizeLaw().factors(sizes, seconds, cached=False)
    level = [one * factor for one, factor in zip(seconds, factors, strict=True)]
    assert spread(level) < 0.06 < 0.2 < spread(seconds)
    assert statistics.fmean(level) == pytest.approx(statistics.fmean(seconds), rel=0.05), "rates stay those of the wall clock"


def test_negative_control_times_that_sizes_do_not_explain_stay_as_they_are() -> None:
    sizes, _ = steps(1.0)
    seconds = np.random.default_rng(1).lognormal(0, 0.3, len(sizes)).tolist()
    assert SizeLaw().factors(sizes, seconds, cached=False) == [1.0] * len(sizes)


def test_a_rare_step_stays_slow() -> None:
    sizes, seconds = steps(1.0)
    seconds[::10] = [20 * one for one in seconds[::10]]
    factors = SizeLaw().factors(sizes, seconds, cached=False)
    level = [one * factor for one, factor in zip(seconds, factors, strict=True)]
    rare, usual = level[::10], [one for number, one in enumerate(level) if number % 10]
    assert spread(usual) < 0.06
    assert 18 < statistics.median(rare) / statistics.median(usual) < 22


def test_a_few_cached_batches_are_brought_to_the_same_size_as_the_loop() -> None:
    law = SizeLaw()
    sizes, seconds = steps(1.0)
    law.factors(sizes, seconds, cached=False)
    assert law.usual is not None
    larger = [(2 * int(law.usual), 2 * int(law.usual))] * 5
    assert law.factors(larger, [2.0] * 5, cached=True) == pytest.approx([0.5] * 5, rel=0.05)


def test_a_smaller_last_batch_does_not_count() -> None:
    assert not differ([4096] * 31 + [1024])
    assert not differ([0] * 32)
    assert differ([1000, 2000, 3000, 4000, 1500, 2500])


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(1e-6, 100)), max_size=40))
def test_any_steps_have_finite_factors(pairs: list[tuple[int, float]]) -> None:
    factors = SizeLaw().factors([(size, size) for size, _ in pairs], [spent for _, spent in pairs], cached=False)
    assert len(factors) == len(pairs)
    assert all(0 < one < float("inf") for one in factors)
    power, left = fitted_power([(size + 1, spent) for size, spent in pairs])
    assert power <= 3
    assert left >= 0
