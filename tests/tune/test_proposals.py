from __future__ import annotations

import numpy as np

from stoker.tune import proposals
from stoker.tune.proposals import near_the_best, spread_points


def slow_log_density(kernels: np.ndarray, num_choices: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The density of the mixture, candidate by candidate and kernel by kernel."""
    num_points, num_dims = kernels.shape
    width, keeps = proposals._width(num_points, num_dims), num_points / (num_points + proposals.PRIOR_WEIGHT)
    found = []
    for candidate in candidates:
        total = 1.0  # the prior
        for kernel in kernels:
            density = 1.0
            for i in range(num_dims):
                if num_choices[i]:
                    is_same = int(candidate[i] * num_choices[i]) == int(kernel[i] * num_choices[i])
                    density *= keeps * num_choices[i] * is_same + (1 - keeps)
                else:
                    density *= np.exp(-0.5 * ((candidate[i] - kernel[i]) / width) ** 2) / (width * np.sqrt(2 * np.pi))
            total += density
        found.append(np.log(total / (num_points + 1)))
    return np.array(found)


def test_the_density_is_that_of_its_slow_twin(rng: np.random.Generator) -> None:
    num_choices = np.array([0, 3, 0])
    kernels, candidates = rng.random((12, 3)), rng.random((40, 3))
    assert np.allclose(
        proposals._log_density(kernels, num_choices, candidates), slow_log_density(kernels, num_choices, candidates), atol=1e-4
    )


def test_spread_points_are_a_function_of_seed_and_number() -> None:
    whole = spread_points(3, seed=5, first=0, count=64)
    assert np.array_equal(spread_points(3, seed=5, first=16, count=8), whole[16:24])
    assert not np.array_equal(spread_points(3, seed=6, first=0, count=64), whole)
    # Of 64 points, each eighth of each axis has 8.
    assert all((np.histogram(whole[:, i], bins=8, range=(0, 1))[0] == 8).all() for i in range(3))


def test_proposals_are_near_the_best_and_in_the_good_category(rng: np.random.Generator) -> None:
    points = np.column_stack([rng.random(200), (rng.integers(0, 4, 200) + 0.5) / 4])
    score = np.abs(points[:, 0] - 0.7) + (points[:, 1] > 0.25)
    found = near_the_best(points[np.argsort(score)], np.array([0, 4]), count=100, rng=rng)
    assert found.shape == (100, 2)
    assert found.min() >= 0
    assert found.max() <= 1
    assert np.median(np.abs(found[:, 0] - 0.7)) < 0.1
    assert (found[:, 1] < 0.25).mean() > 0.8
    # The negative control: with the order reversed, they are elsewhere.
    worst = near_the_best(points[np.argsort(-score)], np.array([0, 4]), count=100, rng=rng)
    assert np.median(np.abs(worst[:, 0] - 0.7)) > 0.3
