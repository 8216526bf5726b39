from __future__ import annotations

from typing import Any

from stoker.tune.pruning import Rungs, best_of_group
from stoker.tune.trial import StudyTrial


def trial(number: int, num_steps: int, score: float, state: str = "pruned", **others: Any) -> StudyTrial:
    return StudyTrial(number=number, params={}, state=state, steps={10 * (i + 1): score for i in range(num_steps)}, **others)


def reports(num_steps: int, score: float) -> dict[int, float]:
    return {10 * (i + 1): score for i in range(num_steps)}


def test_the_better_half_continues_at_each_rung() -> None:
    rungs = Rungs(sign=1.0)
    assert not rungs.stops(reports(1, 9.0))  # nothing to compare with
    for number in range(7):
        rungs.add(trial(number, 4, float(number)))
    rungs.add(trial(0, 1, -5.0))  # counted already
    rungs.add(trial(9, 1, -5.0, "complete", repeat_of=0))  # a repeat
    assert not rungs.stops(reports(1, 2.5))
    assert rungs.stops(reports(1, 3.5))
    assert rungs.stops(reports(2, 4.5))
    assert not rungs.stops(reports(3, 4.5))
    assert not Rungs(sign=1.0, enabled=False, scores=rungs.scores).stops(reports(1, 9.0))
    high = Rungs(sign=-1.0, scores={1: [-1.0, -2.0, -3.0]})
    assert high.stops({1: 0.5})
    assert not high.stops({1: 9.0})


def test_rungs_are_shares_of_a_full_trial_once_one_is_known() -> None:
    rungs = Rungs(sign=1.0)
    assert [count for count in range(1, 40) if rungs.is_rung(count)] == [1, 2, 4, 8, 16, 32]
    rungs.add(trial(0, 48, 1.0, "complete"))
    assert [count for count in range(1, 49) if rungs.is_rung(count)] == [3, 6, 12, 24]
    short = Rungs(sign=1.0, full=3)
    assert [count for count in range(1, 4) if short.is_rung(count)] == [1]


def test_the_best_quarter_of_a_group_continues() -> None:
    scores = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert best_of_group(scores, sign=1.0) == [1, 3]
    assert best_of_group(scores, sign=-1.0) == [0, 4]
    assert best_of_group(scores, sign=1.0, count=1) == [1]
    assert best_of_group([1.0, 1.0], sign=1.0) == [0]  # the first of equals
    assert best_of_group([1.0], sign=1.0) == [0]
