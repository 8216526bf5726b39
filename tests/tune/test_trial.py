from __future__ import annotations

from datetime import datetime, timedelta

from optuna.trial import TrialState
from tests.tune.frozen import frozen

from stoker.tune.trial import busy_seconds, ended, ranked


def test_complete_trials_come_first_then_those_that_went_far() -> None:
    trials = [
        frozen(0, 0.1, state=TrialState.PRUNED, steps={1: 0.1}),
        frozen(1, 0.9, state=TrialState.PRUNED, steps={1: 0.3, 4: 0.9}),
        frozen(2, 2.0),
        frozen(3, 1.0),
        frozen(4, state=TrialState.FAIL),
        frozen(5, float("inf")),
        frozen(6, 0.0, repeat_of=3),
    ]
    assert [trial.number for trial in ranked(trials, sign=1.0)] == [3, 2, 1, 0]
    assert [trial.number for trial in ranked(trials, sign=-1.0)] == [2, 3, 1, 0]


def test_a_trial_that_lost_its_process_has_no_result_and_one_that_failed_has() -> None:
    lost, failed = frozen(0, state=TrialState.FAIL), frozen(1, state=TrialState.FAIL, error="boom")
    running = frozen(2, 1.0)
    running.state = TrialState.RUNNING
    assert ended([lost, failed, running]) == [failed]


def test_time_in_which_several_trials_ran_counts_once() -> None:
    begin = datetime(2026, 1, 1)
    trials = [frozen(i, 1.0) for i in range(3)]
    for trial, (start, end) in zip(trials, [(0, 4), (1, 3), (10, 11)], strict=True):
        trial.datetime_start, trial.datetime_complete = begin + timedelta(seconds=start), begin + timedelta(seconds=end)
    assert busy_seconds(trials) == 5.0
    assert busy_seconds([]) == 0.0
