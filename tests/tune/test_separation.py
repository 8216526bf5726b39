from __future__ import annotations

import numpy as np
import pytest

from stoker.tune.separation import constant_score, f_limit, measure_noise
from stoker.tune.trial import StudyTrial


def trials(values: list[float], *, repeat_of: int | None = None, steps: bool = False, first: int = 0) -> list[StudyTrial]:
    return [
        StudyTrial(
            number=first + i, params={}, state="complete", value=value, repeat_of=repeat_of, steps={1: value} if steps else {}
        )
        for i, value in enumerate(values)
    ]


@pytest.mark.parametrize(("above", "below"), [(1, 1), (3, 9), (19, 3), (30, 3), (120, 40)])
def test_the_limit_is_that_of_scipy(above: int, below: int) -> None:
    from scipy.stats import f

    assert f_limit(above, below) == pytest.approx(f.ppf(0.95, above, below), rel=1e-6)


def test_a_constant_objective_is_found() -> None:
    assert constant_score(trials([1.0] * 10)) == (1.0, 10)
    assert constant_score(trials([1.0] * 9)) is None
    assert constant_score(trials([1.0] * 9 + [0.99])) is None
    pruned = [StudyTrial(number=i, params={}, state="pruned", steps={1: 0.5}) for i in range(20)]
    assert constant_score(pruned) is None  # scores may differ later


def test_noise_is_compared_with_the_spread(rng: np.random.Generator) -> None:
    noisy = measure_noise([*trials(rng.normal(0, 1, 30).tolist()), *trials(rng.normal(0, 1, 4).tolist(), repeat_of=0, first=30)])
    assert noisy is not None
    assert not noisy.separates
    assert "30 configurations differ by" in str(noisy)
    clear = measure_noise([*trials(rng.normal(0, 1, 30).tolist()), *trials(rng.normal(0, 0.01, 4).tolist(), repeat_of=0, first=30)])
    assert clear is not None
    assert clear.separates
    assert measure_noise(trials([1.0, 2.0, 3.0])) is None


def test_pruned_trials_are_compared_where_they_ended() -> None:
    pruned = [StudyTrial(number=i, params={}, state="pruned", steps={1: float(i)}) for i in range(8)]
    repeats = trials([0.1, 0.2, 0.3], repeat_of=0, first=8)
    repeats = [
        StudyTrial(number=one.number, params={}, state="complete", value=one.value, repeat_of=0, steps={1: 5.0}) for one in repeats
    ]
    found = measure_noise([*pruned, *repeats])
    assert found is not None
    assert (found.step, found.noise, found.num_configs) == (1, 0.0, 8)
