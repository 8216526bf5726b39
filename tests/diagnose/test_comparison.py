"""Ratios with intervals, and losses step by step; errors are in the result, not raised."""

from __future__ import annotations

import math

import pytest
from tests.diagnose.fake_process import LOSSES

from stoker.diagnose.comparison import BaselineRuns, Comparison, compare_losses, judge, ratio_of
from stoker.diagnose.measurements import Stretch


def steps(seconds: float, spread: float = 0.02) -> Stretch:
    return Stretch(seconds=[seconds * (1 + spread * (number % 5 - 2)) for number in range(40)])


def test_a_ratio_is_that_of_pairs_whatever_the_machine_does_meanwhile() -> None:
    base = [steps(1.0), steps(2.0), steps(4.0), steps(1.5)]
    ratio, deviation = ratio_of(base, [steps(window.median / 3) for window in base])
    assert ratio == pytest.approx(3.0)
    assert deviation < 0.01
    shifted = ratio_of(base, [steps(1 / 3)] * 4)[1]
    assert shifted > 0.2  # the program differs from itself, and the interval says so
    assert ratio_of([steps(2.0)] * 4, [steps(1.0)] * 2)[0] == pytest.approx(2.0)


def test_the_interval_holds_what_steps_differ_by() -> None:
    narrow = ratio_of([steps(2.0)], [steps(1.0)])[1]
    wide = ratio_of([steps(2.0, 0.2)], [steps(1.0, 0.2)])[1]
    assert 0 < narrow < 0.025 < wide


def test_the_interval_holds_what_two_processes_of_the_program_differ_by() -> None:
    compared = Comparison(base=[steps(2.0)] * 4, tried=[steps(1.0)] * 4, losses=LOSSES)
    unsure = judge(BaselineRuns(difference=0.3, losses=[LOSSES]), compared, tolerance=None)
    assert "vary too much for one number" in str(unsure.error)
    narrow, wide = (judge(BaselineRuns(difference=own, losses=[LOSSES]), compared, tolerance=None) for own in (0.0, 0.1))
    assert narrow.low > 1.93
    assert wide.low == pytest.approx(2 * math.exp(-0.2), rel=0.02)


@pytest.mark.parametrize(
    ("tried", "tolerance", "expected"),
    [
        (LOSSES, 1e-3, "equal"),
        ([1.0, 0.5, 0.25, 9.0], 1e-3, "equal"),
        ([1.0, 0.5001, 0.25], 1e-3, "within tolerance"),
        ([1.0, 0.51, 0.25], 1e-3, "changed"),
        ([1.0, math.nan, 0.25], 5e-2, "changed"),
        (LOSSES, None, "not compared"),
        ([], 1e-3, "not compared"),
    ],
)
def test_losses_are_compared_step_by_step(tried: list[float], tolerance: float | None, expected: str) -> None:
    assert compare_losses([LOSSES, LOSSES], tried, tolerance)[0] == expected


def test_a_program_that_differs_from_itself_proves_nothing() -> None:
    assert compare_losses([LOSSES, [1.0, 0.7, 0.3]], [1.0, 0.7, 0.3], 1e-3) == ("not compared", None)


def test_more_samples_per_step_count() -> None:
    compared = Comparison(base=[steps(1.0)] * 6, tried=[steps(1.25)] * 6, losses=LOSSES)
    result = judge(BaselineRuns(losses=[LOSSES]), compared, tolerance=None, samples_per_step=2.0)
    assert result.speedup == pytest.approx(1.6)
    assert result.losses == "not compared"


@pytest.mark.parametrize(("error", "told"), [("no compiler", "no compiler"), (None, "ended before it could be compared")])
def test_what_could_not_be_compared_says_why(error: str | None, told: str) -> None:
    result = judge(BaselineRuns(losses=[LOSSES]), Comparison(error=error), tolerance=1e-3)
    assert told in str(result.error)
    assert math.isnan(result.speedup)
