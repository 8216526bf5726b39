"""Weighted order: each sample as often as its weight says, one time more or less; equal weights are a shuffle."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from tests.sampling import twins
from tests.sampling.plans import plan_of, times_seen, whole

from stoker.sampling import orders
from stoker.sampling.orders import Weighted, running_sums
from stoker.sampling.views import Windows

SLACK = 1e-9  # a share is a sum of floats


def assert_shares(times: list[int], shares: list[float]) -> None:
    for sample, (found, share) in enumerate(zip(times, shares, strict=True)):
        assert math.floor(share - SLACK) <= found <= math.ceil(share + SLACK), (sample, found, share)


def test_over_epochs_shares_are_exact() -> None:
    weights = np.array([0.05, 1.0, 2.5, 6.45])
    plan = plan_of(Weighted(weights), 4)
    times = np.sum([times_seen(whole(plan, epoch), 4) for epoch in range(4000)], axis=0)
    shares = weights / weights.sum() * 4 * 4000
    assert (abs(times - shares) < 5 * np.sqrt(4000) / 2).all()


@pytest.mark.parametrize("weight", [1.0, 0.1, 1 / 3, 7e-300, 1e200])
@pytest.mark.parametrize("size", [1, 2, 3, 1000, 50_000])
def test_equal_weights_draw_every_sample_once(weight: float, size: int) -> None:
    plan = plan_of(Weighted(np.full(size, weight), 2), size)
    for epoch in range(3):
        assert times_seen(whole(plan, epoch), size) == [1] * size


def test_draws_are_shuffled() -> None:
    plan = plan_of(Weighted(np.ones(1000)), 1000)
    numbers = whole(plan)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.15
    repeated = whole(plan_of(Weighted([1.0] * 99 + [901.0], 1, 1000), 100))
    places = np.flatnonzero(repeated != 99)
    assert places.max() - places.min() > 800


def test_a_series_passes_its_weight_to_its_samples() -> None:
    lengths = [6, 0, 30, 3, 12]
    view = Windows(4, stride=2, tail="drop")
    samples = view.over(twins.ragged(lengths))
    counts = [2, 0, 14, 0, 5]
    weights = np.array([3.0, 5.0, 1.0, 9.0, 0.0])
    plan = Weighted(weights, 4, 2000).over(samples, batch_size=8)
    total = sum(w * c for w, c in zip(weights, counts, strict=True))
    shares = [w / total * 2000 for w, c in zip(weights, counts, strict=True) for _ in range(c)]
    for epoch in range(5):
        assert_shares(times_seen(whole(plan, epoch), samples.num_samples), shares)


@pytest.mark.parametrize("phase", [0, 2**64 - 1])
def test_cuts_at_the_ends_of_the_line_fall_into_a_sample(monkeypatch: pytest.MonkeyPatch, phase: int) -> None:
    real = orders.epoch_key

    def extreme(seed: int, epoch: int, purpose: int = 0) -> np.uint64:
        return np.uint64(phase) if purpose == 4 else real(seed, epoch, purpose)

    monkeypatch.setattr(orders, "epoch_key", extreme)
    for weights in ([0.0, 1.0, 0.0], [0.1] * 7 + [0.0], [0.0, 3.0, 0.1, 0.0]):
        numbers = whole(plan_of(Weighted(weights, 0, 1000), len(weights)))
        assert (np.array(weights)[numbers] > 0).all()
    samples = Windows(2).over(twins.ragged([5, 9, 0, 3]))
    for series_weights in ([1.0] * 4, [0.0, 1.0, 1.0, 0.0]):
        numbers = whole(Weighted(series_weights, 0, samples.num_samples).over(samples, batch_size=4))
        series = samples.locate(numbers).series
        assert (np.array(series_weights)[series] > 0).all()
    assert times_seen(whole(Weighted([1.0] * 4).over(samples, batch_size=4)), samples.num_samples) == [1] * samples.num_samples


def test_sums_are_rounded_once(rng: np.random.Generator) -> None:
    for values in (np.full(20_000, 0.1), rng.random(5000) * 10.0 ** rng.integers(-12, 12, 5000), np.zeros(3)):
        exact, total = [], Fraction(0)
        for value in values.tolist():
            total += Fraction(value)
            exact.append(float(total))
        sums = running_sums(values)
        assert (np.abs(sums - exact) <= np.spacing(np.array(exact))).all()
        assert (np.diff(sums) >= 0).all()


def test_sums_that_round_at_each_step_would_be_seen() -> None:
    values = np.full(20_000, 0.1)
    exact = np.array([float(Fraction(0.1) * (i + 1)) for i in range(len(values))])
    assert not (np.abs(np.cumsum(values) - exact) <= np.spacing(exact)).all()
