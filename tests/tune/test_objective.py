from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna

from stoker.tune.objective import run_group, takes_trial_alone, wanted_by
from stoker.tune.storage import Ending


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
    study = optuna.create_study()
    saved: list[tuple[int, Ending]] = []

    def run(keep: list[int], **options: Any) -> list[tuple[int, str]]:
        saved.clear()
        trials = [study.ask(), study.ask()]
        first = trials[0].number
        run_group(
            Broken(),
            trials,
            keep=lambda scores: keep,
            finish=lambda trial, ending: saved.append((trial.number - first, ending)),
            **options,
        )
        return [(number, ending.state.name) for number, ending in saved]

    assert run([0]) == [(1, "PRUNED"), (0, "FAIL")]
    error = saved[1][1].error
    assert error.startswith("RuntimeError: device lost")
    assert run([0, 1], is_over=lambda: True) == [(0, "PRUNED"), (1, "PRUNED")]
    assert run([0, 1], last=1) == [(0, "PRUNED"), (1, "PRUNED")]
