from __future__ import annotations

from dataclasses import replace

from stoker.tune.space import as_space
from stoker.tune.trial import StudyTrial, from_optuna, ranked, to_optuna


def test_complete_trials_come_first_then_those_that_went_far() -> None:
    trials = [
        StudyTrial(number=0, params={}, state="pruned", steps={1: 0.1}),
        StudyTrial(number=1, params={}, state="pruned", steps={1: 0.3, 4: 0.9}),
        StudyTrial(number=2, params={}, state="complete", value=2.0),
        StudyTrial(number=3, params={}, state="complete", value=1.0),
        StudyTrial(number=4, params={}, state="failed"),
        StudyTrial(number=5, params={}, state="complete", value=float("inf")),
    ]
    assert [one.number for one in ranked(trials, sign=1.0)] == [3, 2, 1, 0]
    assert [one.number for one in ranked(trials, sign=-1.0)] == [2, 3, 1, 0]


def test_a_trial_survives_the_way_through_optuna() -> None:
    space = as_space({"lr": ("log", 1e-4, 1.0), "kind": ["a", None]}).distributions
    trial = StudyTrial(
        number=0,
        params={"lr": 0.1, "kind": None},
        state="complete",
        value=1.5,
        seed=4,
        steps={1: 2.0},
        seconds=0.25,
        repeat_of=3,
        distributions=space,
    )
    frozen = to_optuna(trial)
    assert frozen is not None
    assert replace(from_optuna(frozen), number=0) == trial  # a study gives it its number
    assert to_optuna(StudyTrial(number=0, params={}, state="running")) is None
