"""The words of a finding: numbers as people read them, whatever they are."""

from __future__ import annotations

import math

import pytest

from stoker.diagnose import wording
from stoker.diagnose.measurements import Advice, Losses, TrialResult


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.714, "71 %"), (0.031, "3.1 %"), (0.0, "0 %"), (1.0, "100 %"), (math.inf, "unknown"), (math.nan, "unknown")],
)
def test_percent(share: float, told: str) -> None:
    assert wording.percent(share) == told


@pytest.mark.parametrize(
    ("number", "low", "high", "told"),
    [(2.168, 2.1, 2.3, "2.17x"), (None, 1.2, 2.3, "1.20-2.30x"), (None, None, 7.27, "at most 7.27x"), (None, None, None, "")],
)
def test_what_is_predicted_may_be_a_range(number: float | None, low: float | None, high: float | None, told: str) -> None:
    assert wording.predicted(Advice(name="a", sentence="a", predicted=number, predicted_low=low, predicted_high=high)) == told


@pytest.mark.parametrize(
    ("losses", "difference", "told"),
    [
        ("equal", 0.0, "losses equal"),
        ("within tolerance", 8.3e-7, "losses equal to 8e-07"),
        ("changed", 0.042, "losses changed by 4.2 %"),
        ("changed", None, "losses changed"),
        ("changed", math.inf, "losses changed"),
        ("not compared", None, "losses not compared"),
    ],
)
def test_losses(losses: Losses, difference: float | None, told: str) -> None:
    tried = TrialResult(speedup=2.11, low=2.02, high=2.2, losses=losses, largest_difference=difference)
    assert wording.outcome(tried) == f"tried 2.11x (2.02-2.20)   {told}"
