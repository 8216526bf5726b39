"""Exact statistics: coverage and false alarms by simulation, and laws of the interval."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stoker.compare.intervals import LEAST_FOR_95, effect_of, pairs_needed

DIFFERENCES = st.lists(st.floats(-10, 10).map(lambda value: round(value, 3)), min_size=LEAST_FOR_95, max_size=9)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=9, unique_by=abs))
def test_p_is_the_share_of_signs_with_rank_sums_as_extreme(values: list[float]) -> None:
    assume(all(values))
    ranks = [1 + sum(abs(other) < abs(value) for other in values) for value in values]
    sums = [sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign) for signs in product((0, 1), repeat=len(values))]
    positive = sum(rank for rank, value in zip(ranks, values, strict=True) if value > 0)
    least = min(positive, sum(ranks) - positive)
    expected = min(1.0, 2 * sum(total <= least for total in sums) / len(sums))
    assert effect_of(values).p == pytest.approx(expected)
    assert effect_of([*values, 0.0, 0.0]).p == effect_of(values).p, "differences of zero say nothing"


def test_pairs_that_were_disturbed_move_the_effect_little() -> None:
    values = [0.05 + 0.001 * number for number in range(-7, 8)]
    calm, disturbed = effect_of(values), effect_of([*values, 3.0, -2.0])
    assert disturbed.center == pytest.approx(calm.center, abs=0.002)
    assert disturbed.high - disturbed.low < 0.02
    assert abs(np.mean([*values, 3.0, -2.0]) - 0.05) > 0.05, "negative control: the mean is moved"


@given(DIFFERENCES)
def test_the_interval_holds_the_center_and_excludes_zero_only_where_p_is_small(values: list[float]) -> None:
    effect = effect_of(values)
    assert effect.low <= effect.center <= effect.high
    if effect.low > 0 or effect.high < 0:
        assert effect.p <= 0.05


@given(DIFFERENCES)
def test_the_effect_turns_with_the_sides(values: list[float]) -> None:
    effect, other = effect_of(values), effect_of([-value for value in values])
    assert (other.center, other.p) == (pytest.approx(-effect.center), pytest.approx(effect.p))
    assert (other.low, other.high) == (pytest.approx(-effect.high, abs=1e-6), pytest.approx(-effect.low, abs=1e-6))


@pytest.mark.parametrize("pairs", [6, 8, 16])
def test_the_interval_holds_the_truth_in_95_of_100_cases(pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    effects = [effect_of(rng.standard_t(3, pairs) + 1.0) for _ in range(400)]
    held = np.mean([effect.low <= 1.0 <= effect.high for effect in effects])
    assert held >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 400)
    assert np.mean([effect.low > 0 for effect in effects]) > 0.1, "negative control: true effects are found"


def test_few_pairs_say_nothing() -> None:
    effect = effect_of([1.0] * (LEAST_FOR_95 - 1))
    assert (effect.low, effect.high) == (-math.inf, math.inf)
    assert effect_of([1.0] * LEAST_FOR_95).low > 0


def test_a_value_that_is_not_finite_gives_no_effect() -> None:
    assert effect_of([1.0] * 7 + [math.nan]).p == 1.0
    assert effect_of([]).pairs == 0


def test_more_scatter_and_smaller_effects_need_more_pairs() -> None:
    values = [0.9, 1.1, 1.3, 0.7]
    assert pairs_needed(values, 1.0) == LEAST_FOR_95
    few, many = pairs_needed(values, 0.2), pairs_needed(values, 0.1)
    assert few is not None
    assert many is not None
    assert 6 < few < many
    assert pairs_needed([1.0], 1.0) is None
