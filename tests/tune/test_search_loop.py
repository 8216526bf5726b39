from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from stoker.errors import OptionError, SearchError
from stoker.tune import Study, budget, search
from stoker.tune.search_loop import best_of_group
from stoker.tune.trial import repeat_of, seed_of

SPACE = {"x": ("uniform", 0, 1), "y": ("log", 1e-3, 1.0)}


def bowl(params: Mapping[str, Any]) -> float:
    return float((params["x"] - 0.3) ** 2 + (math.log10(params["y"]) + 1) ** 2)


def quiet(objective: Any, space: Any = SPACE, **options: Any) -> Study:
    return search(objective, space, **{"progress": False, "budget": 40, **options})


def test_a_search_comes_near_the_optimum_and_repeats_itself() -> None:
    study = quiet(bowl, budget=120)
    assert [one.number for one in study.trials] == list(range(120))
    assert study.best.value < 0.02
    assert study.best.value == min(one.value for one in study.trials if one.value is not None)
    first = quiet(bowl, budget=12)
    assert [one.params for one in quiet(bowl, budget=12).trials] == [one.params for one in first.trials]
    assert [one.params for one in quiet(bowl, budget=12, seed=1).trials] != [one.params for one in first.trials]


def test_more_is_better_with_maximize() -> None:
    study = quiet(lambda params: -bowl(params), direction="maximize", budget=60)
    assert study.best.value == max(one.value for one in study.trials if one.value is not None)


@pytest.mark.promise("P28")
def test_reported_scores_prune_trials_and_every_trial_repeats_alone() -> None:
    calls: list[int] = []

    def objective(params: Mapping[str, Any], trial: Any, seed: int) -> float:
        score = math.nan
        for step in range(1, 17):
            score = bowl(params) + 1 / step + 1e-3 * np.random.default_rng([seed, step]).random()
            calls.append(step)
            trial.report(score, step)
            if trial.should_prune():
                return score
        return score

    study = quiet(objective, budget=48)
    counts = study.counts()
    assert counts["pruned"] > 10
    assert counts["complete"] > 4
    assert len(calls) < 0.8 * 16 * 48
    repeats = [one for one in study.trials if repeat_of(one) is not None]
    assert [seed_of(one) for one in repeats] == [1, 2, 1, 1]  # twice the best, and two others
    assert len({repeat_of(one) for one in repeats}) == 3
    assert study.noise.separates
    for number in (0, next(one.number for one in study.trials if one.state == TrialState.PRUNED), repeats[0].number):
        assert same(study.rerun(number), study.trials[number])
    # The negative control: without pruning every trial has its full length.
    calls.clear()
    assert quiet(objective, budget=20, pruner=optuna.pruners.NopPruner()).counts()["complete"] == 20
    assert len(calls) == 16 * 20


def same(again: FrozenTrial, trial: FrozenTrial) -> bool:
    return (again.state, again.params, again.values, again.intermediate_values) == (
        trial.state,
        trial.params,
        trial.values,
        trial.intermediate_values,
    )


class Ladder:
    """Trains many configurations at once: a score is the bowl plus what is left to learn."""

    rungs: Sequence[int] = (10, 40, 160)

    def __init__(self, *, seed_noise: float = 0.0, nan_above: float = 2.0) -> None:
        self.seed_noise, self.nan_above = seed_noise, nan_above
        self.trained = 0

    def start(self, configs: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> Members:
        return Members(self, [dict(one) for one in configs], list(seeds))


class Members:
    def __init__(self, owner: Ladder, configs: list[dict[str, Any]], seeds: list[int]) -> None:
        self.owner, self.configs, self.seeds, self.done = owner, configs, seeds, 0

    def advance(self, updates: int) -> list[float]:
        self.owner.trained += (updates - self.done) * len(self.configs)
        self.done = updates
        return [
            math.nan
            if one["x"] > self.owner.nan_above
            else bowl(one) + 1 / updates + self.owner.seed_noise * np.random.default_rng(seed).random()
            for one, seed in zip(self.configs, self.seeds, strict=True)
        ]

    def keep(self, indices: Sequence[int]) -> None:
        self.configs, self.seeds = [self.configs[i] for i in indices], [self.seeds[i] for i in indices]


class Falling(Ladder):
    rungs = (3, 2)


def test_groups_climb_the_rungs_and_failed_members_are_dropped() -> None:
    ladder = Ladder(seed_noise=1e-3, nan_above=0.9)
    study = quiet(ladder, budget=3 * 32 + 4, group_size=32)
    assert len(study.trials) == 100
    complete = [one for one in study.trials if one.state == TrialState.COMPLETE]
    assert len(complete) == 3 * 2 + 4 + 1  # of each 32, 8 reach 40 updates and 2 reach 160; 4 repeats, and the best of the last 4
    assert sum(repeat_of(one) is not None for one in complete) == 4
    assert {tuple(one.intermediate_values) for one in study.trials if one.state == TrialState.PRUNED} == {(10,), (10, 40)}
    failed = [one for one in study.trials if one.state == TrialState.FAIL]
    assert failed
    assert all(one.user_attrs["error"] == "its score after 10 updates is NaN" for one in failed)
    assert ladder.trained < 0.35 * 160 * 100
    assert study.noise.step == 10
    for one in (study.trials[0], study.best):
        assert same(study.rerun(one.number), one)


def test_the_best_quarter_of_a_group_continues() -> None:
    scores = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert best_of_group(scores, sign=1.0) == [1, 3]
    assert best_of_group(scores, sign=-1.0) == [0, 4]
    assert best_of_group(scores, sign=1.0, count=1) == [1]
    assert best_of_group([1.0, 1.0], sign=1.0) == [0]  # the first of equals


def test_an_objective_of_optuna_asks_for_its_own_parameters(tmp_path: Path) -> None:
    def objective(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        x = trial.suggest_float("x", 0, 1)
        if kind == "b":
            x += trial.suggest_float("extra", 0, 1)
        trial.report(x, 1)
        if trial.should_prune():
            raise optuna.TrialPruned
        return x

    study = quiet(objective, None, budget=25, storage=tmp_path / "s.journal")
    assert any("extra" in one.params for one in study.trials)
    assert any("extra" not in one.params for one in study.trials)
    assert {one.state for one in study.trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert same(study.rerun(study.best.number), study.best)


def test_any_sampler_of_optuna_can_be_used() -> None:
    study = quiet(bowl, sampler=optuna.samplers.RandomSampler(seed=3), budget=12)
    assert len({one.params["x"] for one in study.trials}) == 12


@pytest.mark.promise("P28")
def test_a_constant_objective_is_refused_with_the_numbers() -> None:
    with pytest.raises(SearchError, match=r"the objective is 1 in each of the first \d+ trials"):
        quiet(lambda params: 1.0)
    lines: list[str] = []
    study = quiet(lambda params: 1.0, on_constant="warn", report=lines.append)
    assert len(study.trials) == 40
    assert sum("cannot separate configurations" in line for line in lines) == 1


def test_differences_below_the_noise_of_seeds_are_a_warning() -> None:
    def noise(params: Mapping[str, Any], seed: int) -> float:
        return float(np.random.default_rng([seed, int(params["x"] * 1e9)]).normal())

    [warning] = [line for line in quiet(noise).notes if "warning" in line]
    assert "those of the same configuration with other seeds by" in warning
    assert "(6 scores of 3 configurations)" in warning
    assert "cannot separate configurations from luck" in warning
    assert not quiet(lambda params, seed: bowl(params) + 1e-6 * noise(params, seed)).notes  # the negative control


def test_an_objective_that_fails_costs_a_trial_and_not_the_search() -> None:
    def objective(params: Mapping[str, Any]) -> float:
        if params["x"] < 0.2:
            raise ValueError("too\nsmall")
        return math.nan if params["x"] > 0.8 else bowl(params)

    study = quiet(objective)
    errors = {one.user_attrs["error"] for one in study.trials if one.state == TrialState.FAIL}
    assert any(error.startswith("ValueError: too small (") for error in errors)
    assert "the objective returned NaN" in errors
    assert study.best.value is not None
    with pytest.raises(SearchError, match=r"all of the first 1[0-9]* trials failed. The last error: the objective returned None"):
        quiet(lambda params: None)


def test_ctrl_c_keeps_what_was_found(tmp_path: Path) -> None:
    def objective(params: Mapping[str, Any]) -> float:
        if len(seen) == 5:
            raise KeyboardInterrupt
        seen.append(params)
        return bowl(params)

    seen: list[Any] = []
    study = quiet(objective, storage=tmp_path / "s.journal")
    assert study.stopped == "interrupted"
    assert [one.params for one in study.trials] == seen
    whole = quiet(bowl, storage=tmp_path / "s.journal")
    assert whole.stopped == "finished"
    assert len(whole.trials) == 40
    uninterrupted = [one.params for one in quiet(bowl).trials[:10]]
    assert [one.params for one in whole.trials[:6]] == uninterrupted[:6]  # the interrupted one too


def test_the_budget_in_seconds_is_of_the_whole_study(tmp_path: Path) -> None:
    def objective(params: Mapping[str, Any]) -> float:
        time.sleep(0.02)
        return bowl(params)

    def count(seconds: str) -> int:
        return len(quiet(objective, budget=seconds, storage=tmp_path / "s.journal").trials)

    first = count("0.5s")
    assert 1 <= first <= 26
    assert count("0.5s") <= first + 3  # apart from the time between trials
    assert count("1.5s") > first + 10


def test_the_default_budget_is_printed_with_its_reason() -> None:
    lines: list[str] = []

    def objective(params: Mapping[str, Any]) -> float:
        if len(lines) > 1:
            raise KeyboardInterrupt
        return bowl(params)

    search(objective, SPACE, report=lines.append)
    assert any(line.startswith("budget: 10 s (40 full trials for 2 parameters, ") for line in lines), lines


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": 3}, "objective is 3; expected a function"),
        ({"space": None}, "space is missing"),
        ({"objective": Ladder(), "space": None}, "space is missing"),
        ({"direction": "up"}, "direction is 'up'"),
        ({"group_size": 0}, "group_size is 0"),
        ({"objective": Falling()}, "the rungs of the objective are [3, 2]"),
        ({"storage": "mysterious://x"}, "cannot be opened"),
    ],
)
def test_invalid_options_are_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as error:
        quiet(**{"objective": bowl, **options})
    assert words in str(error.value)


@pytest.mark.parametrize(("seconds", "rungs", "num_complete"), [(0.8, [32, 8, 1], 1), (1.5, [32, 1], 0)])
def test_groups_exceed_the_budget_by_one_member_and_at_most_twofold(
    seconds: float, rungs: list[int], num_complete: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, spent, sizes = budget.now_ns(), [0.0], list[int]()

    class Slow(Ladder):
        def start(self, configs: Any, seeds: Any) -> Any:
            group = super().start(configs, seeds)
            honest = group.advance

            def advance(updates: int) -> Any:
                spent[0] += seconds
                scores = honest(updates)
                sizes.append(len(scores))
                return scores

            group.advance = advance
            return group

    monkeypatch.setattr(budget, "now_ns", lambda: began + int(spent[0] * 1e9))
    study = quiet(Slow(), budget=1.0, group_size=32)
    assert sizes == rungs
    assert study.counts() == {"complete": num_complete, "pruned": 32 - num_complete, "failed": 0}


@pytest.mark.promise("P28")
def test_a_study_of_another_space_or_metric_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    quiet(lambda params: 0.5, {"kind": ["a", "b"]}, budget=2, storage=path, metric="loss")
    with pytest.raises(OptionError, match=r"space\['kind'\] is .*but the study 'search' has Cat.*Choose another name"):
        quiet(lambda params: 0.5, {"kind": ["a", "c"]}, budget=3, storage=path, metric="loss")
    with pytest.raises(OptionError, match=r"metric is 'accuracy', but the study 'search' in .*s.journal has 'loss'"):
        quiet(lambda params: 0.5, {"kind": ["a", "b"]}, budget=3, storage=path, metric="accuracy")
    with pytest.raises(OptionError, match=r"direction is 'maximize', but .* has 'minimize'"):
        quiet(lambda params: 0.5, {"kind": ["a", "b"]}, budget=3, storage=path, direction="maximize")
    assert len(quiet(lambda params: 0.5, {"kind": ["a", "b"]}, budget=3, storage=path, metric="loss").trials) == 3
