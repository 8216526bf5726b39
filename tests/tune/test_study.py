from __future__ import annotations

import optuna
import pytest
from optuna.trial import TrialState
from tests.tune.frozen import frozen

from stoker.errors import OptionError
from stoker.tune import Study


def study(*values: float | None, direction: str = "minimize") -> Study:
    made = optuna.create_study(direction=direction, study_name="demo")
    for value in values:
        trial = frozen(0, state=TrialState.FAIL, error="boom") if value is None else frozen(0, value)
        made.add_trial(trial)
    return Study(optuna_study=made)


def test_the_best_trial_is_that_of_the_direction() -> None:
    assert study(2.0, 1.0, None).best.number == 1
    assert study(2.0, 1.0, None, direction="maximize").best.number == 0
    text = str(study(2.0, 1.0, None))
    assert text.startswith("3 trials (2 complete, 1 failed)")
    assert "best: trial 1, 1" in text


def test_a_study_without_a_result_says_why() -> None:
    assert not study(None).has_result
    with pytest.raises(OptionError, match=r"none of the 1 trials of the study 'demo' is complete. The first error: boom"):
        _ = study(None).best


def test_a_trial_can_be_run_again_with_an_objective() -> None:
    assert study(2.0).rerun(0, lambda params, seed: seed + 5).value == 5.0
    with pytest.raises(OptionError, match="number is 7"):
        study(2.0).rerun(7)
    with pytest.raises(OptionError, match="its objective is not known"):
        study(2.0).rerun(0)
