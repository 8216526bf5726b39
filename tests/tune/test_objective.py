from __future__ import annotations

from collections.abc import Mapping

from stoker.tune.objective import run_group, takes_trial_alone, wanted_by
from stoker.tune.trial import StudyTrial


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
