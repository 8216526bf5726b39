from __future__ import annotations

import optuna
import pytest

from stoker.tune.proposals import SeededTpe


def ask(study: optuna.Study) -> float:
    trial = study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
    study.tell(trial, trial.params["x"])
    return float(trial.params["x"])


def run(sampler: optuna.samplers.BaseSampler, *, restarts: bool) -> list[float]:
    """The proposals of a search that is stopped and continued after 15 of 30 trials, or not."""
    study = optuna.create_study(sampler=sampler)
    first = [ask(study) for _ in range(15)]
    if restarts:
        study.sampler = SeededTpe(5) if isinstance(sampler, SeededTpe) else optuna.samplers.TPESampler(seed=5)
    return [*first, *[ask(study) for _ in range(15)]]


def test_a_search_that_continues_proposes_what_it_would_have_proposed() -> None:
    assert run(SeededTpe(5), restarts=True) == run(SeededTpe(5), restarts=False)
    assert run(SeededTpe(6), restarts=False) != run(SeededTpe(5), restarts=False)
    # The negative control: TPE with a fixed seed begins its random numbers again.
    plain = optuna.samplers.TPESampler(seed=5)
    assert run(plain, restarts=True) != run(optuna.samplers.TPESampler(seed=5), restarts=False)


@pytest.mark.parametrize("count", [2, 30])
def test_trials_that_are_asked_together_differ(count: int) -> None:
    study = optuna.create_study(sampler=SeededTpe(0))
    space = {"x": optuna.distributions.FloatDistribution(0, 1)}
    assert len({study.ask(space).params["x"] for _ in range(count)}) == count
