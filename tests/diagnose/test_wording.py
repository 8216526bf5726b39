"""The words of a finding: numbers as people read them, whatever they are."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import pytest

from stoker.diagnose import wording
from stoker.diagnose.measurements import Advice, Losses, TrialResult, Verdict


def test_every_verdict_has_a_title() -> None:
    assert set(wording.TITLES) == set(get_args(Verdict))
    assert len(set(wording.TITLES.values())) == len(wording.TITLES)


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.714, "71 %"), (0.031, "3.1 %"), (0.0, "0 %"), (1.0, "100 %"), (math.inf, "unknown"), (math.nan, "unknown")],
)
def test_percent(share: float, told: str) -> None:
    assert wording.percent(share) == told


@pytest.mark.parametrize(("ratio", "told"), [(2.168, "2.17x"), (0.97, "0.97x"), (14.26, "14.3x"), (1875.0, "1,875x")])
def test_times(ratio: float, told: str) -> None:
    assert wording.times(ratio) == told


@pytest.mark.parametrize(
    ("number", "low", "high", "told"),
    [(2.168, 2.1, 2.3, "2.17x"), (None, 1.2, 2.3, "1.20-2.30x"), (None, None, 7.27, "at most 7.27x"), (None, None, None, "")],
)
def test_what_is_predicted_may_be_a_range(number: float | None, low: float | None, high: float | None, told: str) -> None:
    assert wording.predicted(Advice(name="a", sentence="a", predicted=number, predicted_low=low, predicted_high=high)) == told


def test_counts() -> None:
    assert [wording.count(number) for number in (218.0, 12.5, 1840.25)] == ["218", "12.5", "1,840"]


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


def test_both_ends_of_a_range_have_as_many_digits() -> None:
    step = Advice(name="cached", sentence="", predicted=None, predicted_low=52.561, predicted_high=64.92)
    assert wording.predicted(step) == "52.6-64.9x"
    assert wording.predicted(msgspec.structs.replace(step, predicted=58.4)) == "58.4x (52.6-64.9)"
