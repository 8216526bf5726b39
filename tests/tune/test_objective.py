from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.tune.objective import Rungs, run_group, takes_trial_alone, wanted_by
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


def test_what_a_function_wants_is_known_from_its_parameters() -> None:
    def both(params: Mapping[str, float], seed: int, trial: object) -> float:
        return 0.0

    assert wanted_by(both) == {"seed", "trial"}
    assert wanted_by(lambda params: 0.0) == set()
    assert wanted_by(lambda seed: 0.0) == set()
    assert takes_trial_alone(lambda trial: 0.0)
    assert not takes_trial_alone(lambda params: 0.0)
    assert not takes_trial_alone(both)


class Broken:
    rungs = (1, 2)

    def start(self, configs: object, seeds: object) -> Broken:
        return self

    def advance(self, updates: int) -> list[float]:
        if updates == 2:
            raise RuntimeError("device lost")
        return [1.0, 2.0]

    def keep(self, indices: object) -> None:
        pass


def test_a_group_that_fails_keeps_what_had_ended() -> None:
    trials = [StudyTrial(number=number, params={}, state="running") for number in range(2)]
    saved: list[StudyTrial] = []
    ended = run_group(Broken(), trials, keep=lambda scores: [0], on_pruned=saved.extend)
    assert [one.state for one in ended] == ["failed", "pruned"]
    assert ended[0].error is not None
    assert ended[0].error.startswith("RuntimeError: device lost")
    assert [one.number for one in saved] == [1, 0]
    over = run_group(Broken(), trials, keep=lambda scores: [0, 1], is_over=lambda: True)
    assert [one.state for one in over] == ["pruned", "pruned"]
