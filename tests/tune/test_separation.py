from __future__ import annotations

import numpy as np
import pytest
from optuna.trial import FrozenTrial, TrialState
from tests.tune.frozen import frozen

from stoker.tune.separation import constant_score, f_limit, measure_noise, repeats_of


def trials(values: list[float], *, repeat_of: int | None = None, first: int = 0) -> list[FrozenTrial]:
    return [frozen(first + i, value, repeat_of=repeat_of) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("above", "below", "limit"), [(1, 1, 161.45), (3, 9, 3.863), (19, 3, 8.667), (30, 3, 8.617), (120, 40, 1.577)]
)
def test_the_limit_is_that_of_the_tables(above: int, below: int, limit: float) -> None:
    assert f_limit(above, below) == pytest.approx(limit, rel=0.02)


def test_a_constant_objective_is_found() -> None:
    assert constant_score(trials([1.0] * 10)) == (1.0, 10)
    assert constant_score(trials([1.0] * 9)) is None
    assert constant_score(trials([1.0] * 9 + [0.99])) is None
    pruned = [frozen(i, 0.5, state=TrialState.PRUNED, steps={1: 0.5}) for i in range(20)]
    assert constant_score(pruned) is None  # scores may differ later


def test_noise_is_compared_with_the_spread(rng: np.random.Generator) -> None:
    noisy = measure_noise([*trials(rng.normal(0, 1, 30).tolist()), *trials(rng.normal(0, 1, 4).tolist(), repeat_of=0, first=30)])
    assert not noisy.separates
    assert "30 configurations differ by" in str(noisy)
    clear = measure_noise([*trials(rng.normal(0, 1, 30).tolist()), *trials(rng.normal(0, 0.01, 4).tolist(), repeat_of=0, first=30)])
    assert clear.separates
    assert measure_noise(trials([1.0, 2.0, 3.0])) is None


def test_pruned_trials_are_compared_where_they_ended() -> None:
    pruned = [frozen(i, float(i), state=TrialState.PRUNED, steps={1: float(i)}) for i in range(8)]
    repeats = [frozen(8 + i, value, repeat_of=0, steps={1: 5.0}) for i, value in enumerate([0.1, 0.2, 0.3])]
    found = measure_noise([*pruned, *repeats])
    assert (found.step, found.noise, found.num_configs) == (1, 0.0, 8)


def test_repeats_are_of_the_best_and_of_others() -> None:
    found = repeats_of(trials([float(i) for i in range(20)]), sign=1.0, count=4, seed=5)
    assert [seed for _, seed in found] == [6, 7, 6, 6]
    assert [trial.number for trial, _ in found[:2]] == [0, 0]
    assert len({trial.number for trial, _ in found[2:]} & set(range(1, 10))) == 2
    assert [trial.number for trial, _ in repeats_of(trials([3.0]), sign=1.0, count=4, seed=0)] == [0] * 4
    assert repeats_of([], sign=1.0, count=4, seed=0) == []


@pytest.mark.parametrize("best_is_noisy", [False, True])
def test_noise_is_that_of_several_configurations(best_is_noisy: bool) -> None:
    """Configurations without any difference: the squared noise is on average that of the scores, and few pass as separated."""
    rng, squares, separated = np.random.default_rng(0), [], 0
    for seed in range(300):
        firsts = trials(rng.normal(0, 1, 24).tolist())
        again = repeats_of(firsts, sign=1.0, count=4, seed=seed)
        scale = [5.0 if best_is_noisy and i < 2 else 1.0 for i in range(4)]
        repeated = [frozen(24 + i, rng.normal(0, scale[i]), repeat_of=trial.number) for i, (trial, _) in enumerate(again)]
        found = measure_noise([*firsts, *repeated])
        assert (found.num_repeated, found.num_seeds) == (3, 6)
        squares.append(found.noise**2)
        separated += found.separates
    expected = (25 + 1 + 1) / 3 if best_is_noisy else 1.0
    assert np.mean(squares) == pytest.approx(expected, rel=0.2)
    assert separated <= 300 * 0.08


def test_the_first_score_of_the_best_does_not_count() -> None:
    firsts = trials([-100.0, *np.linspace(0, 1, 23).tolist()])
    again = trials([0.5, 0.5], repeat_of=0, first=24)
    found = measure_noise([*firsts, *again])
    assert found.noise == 0.0
    once = measure_noise([*firsts, again[0]])  # of a configuration that was drawn, it does
    assert once.noise == pytest.approx(100.5 / 2**0.5)
