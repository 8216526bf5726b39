"""The verdict: every combination of speed, results and quality, and the requirements of the user."""

from __future__ import annotations

import pytest

from stoker.compare.facts import Fact
from stoker.compare.losses import LossComparison
from stoker.compare.quality import Quality
from stoker.compare.rounds import Speed, speed_of
from stoker.compare.verdict import BETTER, CHANGED, UNKNOWN, WORSE, check_requirements, decide, status_of
from stoker.errors import OptionError

FASTER, SLOWER, SAME = (speed_of([1.0] * 8, [1 / ratio] * 8) for ratio in (1.5, 0.5, 1.0))
EQUAL, ROUNDING = (
    LossComparison(verdict="equal", steps=9),
    LossComparison(verdict="rounding", steps=9, first=1, at=1, before=1.0, after=1.0),
)
OTHER = LossComparison(verdict="changed", steps=9, first=1, at=1, before=1.0, after=2.0, start=0.5)
UNSEEN = LossComparison(verdict="unknown", why="no loss was seen")
LEAK, EPOCH = Fact(name="leak", same=False, text="leak"), Fact(name="epoch", same=False, text="epoch")


def quality(difference: float, p: float = 0.01, **changes: object) -> Quality:
    options = {
        "name": "loss",
        "higher": False,
        "before": 1.0,
        "after": 1.0 + difference,
        "low": difference,
        "high": difference,
        "pairs": 8,
    }
    return Quality(difference=difference, p=p, **{**options, **changes})  # type: ignore[arg-type]


@pytest.mark.promise("P34")
@pytest.mark.parametrize(
    ("losses", "facts", "speed", "metric", "status"),
    [
        (EQUAL, [], FASTER, None, BETTER),
        (ROUNDING, [], FASTER, None, BETTER),
        (EQUAL, [], SLOWER, None, WORSE),
        (EQUAL, [], SAME, None, UNKNOWN),
        (EQUAL, [], None, None, UNKNOWN),
        (OTHER, [], FASTER, None, CHANGED),
        (OTHER, [], SAME, None, CHANGED),
        (OTHER, [], SLOWER, None, WORSE),
        (UNSEEN, [], FASTER, None, UNKNOWN),
        (EQUAL, [EPOCH], FASTER, None, CHANGED),
        (OTHER, [], SAME, quality(-0.1), BETTER),
        (OTHER, [], FASTER, quality(+0.1), WORSE),
        (OTHER, [], FASTER, quality(-0.1, 0.3), CHANGED),
        (OTHER, [], FASTER, quality(0.001, 0.3, margin=0.01), BETTER),
        (OTHER, [LEAK], FASTER, quality(-0.1), CHANGED),
        (EQUAL, [], FASTER, quality(-0.1, unexplained=3), CHANGED),
        (OTHER, [Fact(name="weights", same=True, text=""), Fact(name="samples", same=True, text="")], FASTER,
         quality(-0.1, of_losses=True), CHANGED),
        (OTHER, [Fact(name="weights", same=False, text="")], FASTER, quality(-0.1, of_losses=True), BETTER),
    ],
)  # fmt: skip
def test_the_verdict(losses: LossComparison, facts: list[Fact], speed: Speed | None, metric: Quality | None, status: int) -> None:
    assert decide(losses, facts, speed, metric).status == status


@pytest.mark.parametrize(
    ("text", "losses", "speed", "status"),
    [
        ("speed>=1.2,loss=equal", EQUAL, FASTER, BETTER),
        ("speed>=1.2", EQUAL, SAME, WORSE),
        ("speed>=1.2", EQUAL, None, UNKNOWN),
        ("speed>=1.2", EQUAL, speed_of([1.0] * 3, [0.5] * 3), UNKNOWN),
        ("loss=equal", ROUNDING, FASTER, CHANGED),
        ("loss=rounding", ROUNDING, FASTER, BETTER),
        ("loss=rounding", UNSEEN, FASTER, UNKNOWN),
        ("memory<=1.1", EQUAL, FASTER, BETTER),
        ("memory<=0.9", EQUAL, FASTER, WORSE),
        ("quality=better", EQUAL, FASTER, UNKNOWN),
    ],
)
def test_requirements(text: str, losses: LossComparison, speed: Speed | None, status: int) -> None:
    assert status_of(check_requirements(text, losses, [], speed, None, 1.0)) == status


@pytest.mark.parametrize(
    ("scatter", "words"), [(0.002, "NO DIFFERENCE in speed above 0.2%"), (0.04, "NO DIFFERENCE in speed above 4.0%"),
                           (0.2, "UNDECIDED whether it is faster; equal results: a difference above 20% is excluded")],
)  # fmt: skip
def test_which_difference_of_equal_programs_is_excluded(scatter: float, words: str) -> None:
    speed = speed_of([1 + scatter, 1, 1 - scatter, 1] * 4, [1, 1 + scatter, 1, 1 - scatter] * 4)
    decision = decide(EQUAL, [], speed, None)
    assert (decision.status, f"{decision.title}: {decision.why}"[: len(words)]) == (UNKNOWN, words)


def test_a_difference_that_is_seen_but_small_is_not_called_none() -> None:
    speed = speed_of([1.014 + 0.012 * (number % 4) for number in range(8)], [1.01] * 8)
    assert 1 < speed.low < 1.01 < speed.high
    assert speed.verdict == "unknown"


def test_equal_losses_do_not_hide_another_epoch() -> None:
    assert status_of(check_requirements("loss=equal", EQUAL, [EPOCH], FASTER, None, None)) == CHANGED


@pytest.mark.parametrize("text", ["speed>1.2", "loss=good", "quality=fine", "samples=other", "fast"])
def test_a_requirement_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(OptionError) as error:
        check_requirements(text, EQUAL, [], None, None, None)
    assert error.value.parameter == "require"
