"""Losses of two versions: what rounding explains, and what it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.compare.losses import compare_losses, differences, first_difference, grows, relative

STEPS = 200
BEFORE = [2.0 * 0.99**step + 0.5 for step in range(STEPS)]


def apart(size: float, growth: float = 1.0, *, start: int = 0) -> list[float]:
    """Losses that differ by `size`, relative to BEFORE, times `growth` for each step."""
    signs = np.random.default_rng(0).choice([-1, 1], STEPS)
    return [
        loss if step < start else loss * (1 + sign * min(size * growth ** (step - start), 0.3))
        for step, (loss, sign) in enumerate(zip(BEFORE, signs, strict=True))
    ]


ROUNDING = apart(1e-7, 1.05)  # the yardstick of a program that amplifies rounding


@pytest.mark.promise("P34")
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (BEFORE, "equal"),
        (apart(5e-7, 1.05), "rounding"),
        (apart(1e-7, 1.052), "rounding"),
        (apart(1e-3, 1.05), "changed"),  # bfloat16
        (apart(1e-6, 1.2), "changed"),
        (apart(3e-2, start=150), "changed"),
        ([*BEFORE[:150], *(1.008 * loss for loss in BEFORE[150:])], "changed"),  # small in each step, but of one sign
        ([*BEFORE[:100], math.nan, *BEFORE[101:]], "changed"),
    ],
)
def test_a_difference_is_compared_with_that_of_rounding_at_the_same_step(after: list[float], expected: str) -> None:
    assert compare_losses(BEFORE, after, yardsticks=[ROUNDING]).verdict == expected


@pytest.mark.promise("P34", control=True)
def test_negative_control_without_a_yardstick_little_is_rounding() -> None:
    assert compare_losses(BEFORE, apart(1e-7, 1.05)).verdict == "changed"
    assert compare_losses(BEFORE, apart(1e-6)).verdict == "rounding"


def test_the_step_that_decides_is_named() -> None:
    found = compare_losses(BEFORE, apart(0.01, start=57), yardsticks=[apart(1e-7)])
    assert (found.verdict, found.first, found.at, found.before) == ("changed", 58, 58, BEFORE[57])


def test_a_tolerance_is_for_averages_and_not_for_late_divergence() -> None:
    assert compare_losses(BEFORE, apart(0.02), yardsticks=[ROUNDING], tolerance=0.02).verdict == "tolerance"
    late = [*BEFORE[:100], *(loss + 0.3 for loss in BEFORE[100:])]
    found = compare_losses(BEFORE, late, yardsticks=[ROUNDING], tolerance=0.02)
    assert (found.verdict, found.grows) == ("changed", True)
    assert compare_losses(BEFORE[:64], late[:64], tolerance=0.02).verdict == "equal", "64 steps are not enough to see it"


def test_a_program_that_differs_from_itself_is_its_own_yardstick() -> None:
    again = apart(0.003)
    assert compare_losses(BEFORE, [loss * 1.001 for loss in BEFORE], yardsticks=[again]).verdict == "rounding"
    assert compare_losses(BEFORE, [loss * 1.1 for loss in BEFORE], yardsticks=[again]).verdict == "changed"


def test_without_losses_nothing_is_known() -> None:
    assert compare_losses([], BEFORE).verdict == "unknown"


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_equal_losses_are_equal_whatever_they_are(losses: list[float]) -> None:
    assert compare_losses(losses, list(losses)).verdict == "equal"
    assert first_difference(losses, list(losses)) is None


@given(st.floats(), st.floats())
def test_the_relative_difference_has_no_side(a: float, b: float) -> None:
    assert relative(a, b) == relative(b, a)
    assert relative(a, b) >= 0


def test_runs_of_different_length_are_compared_up_to_the_shorter() -> None:
    assert differences([1.0, 2.0], [1.0]) == [0.0]
    assert compare_losses(BEFORE, BEFORE[:50]).steps == 50


def test_growth_is_that_of_averages() -> None:
    assert grows(BEFORE, [loss * (1 + 0.1 * step / STEPS) for step, loss in enumerate(BEFORE)])
    assert not grows(BEFORE, [loss * 1.05 for loss in BEFORE])
    assert not grows(BEFORE, BEFORE)
