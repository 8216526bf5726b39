"""Which configurations to try next: points that cover the space evenly, then points near the good ones.

    spread_points   a scrambled Sobol sequence: point `number` is a function of the seed and the number
    near_the_best   a tree-structured Parzen estimator (TPE): draws from the density of the good points, and of each draw keeps the
                    candidate that is most likely good rather than bad

TPE is the one of Optuna (multivariate, with its constants), computed for a whole batch of proposals at once. The cost of Optuna's sampler
grows with the number of trials, and soon is more than a short trial takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker._types import Array

NUM_CANDIDATES = 24
"""Per proposal, as in Optuna."""
GOOD_SHARE, MOST_GOOD, MOST_BAD = 0.1, 25, 250
"""Bad points beyond the limit are left out at random: the density hardly changes, and the cost stays bounded."""
PRIOR_WEIGHT = 1.0


def spread_points(num_dims: int, *, seed: int, first: int, count: int) -> Array:
    """Points `first` to `first + count` of the sequence of a seed, one row each."""
    from torch.quasirandom import SobolEngine

    make: Any = SobolEngine  # torch has no types for it
    engine = make(num_dims, scramble=True, seed=seed)
    return np.asarray(engine.fast_forward(first).draw(count).double().numpy()) if count else np.zeros((0, num_dims))


def near_the_best(points: Array, num_choices: Array, *, count: int, rng: np.random.Generator) -> Array:
    """New points, of points that are sorted from best to worst.

    Args:
        points: One row per trial, the best first.
        num_choices: For each column the number of categories, or 0 for a number.
        count: Rows to return.
        rng: Random numbers.
    """
    num_good = min(MOST_GOOD, max(1, int(np.ceil(GOOD_SHARE * len(points)))))
    bad = points[num_good:]
    if len(bad) > MOST_BAD:
        bad = bad[rng.choice(len(bad), MOST_BAD, replace=False)]
    good = points[:num_good]
    candidates = _draw(good, num_choices, count * NUM_CANDIDATES, rng)
    gain = _log_density(good, num_choices, candidates) - _log_density(bad, num_choices, candidates)
    chosen = gain.reshape(count, NUM_CANDIDATES).argmax(axis=1) + np.arange(count) * NUM_CANDIDATES
    return np.asarray(candidates[chosen])


def _width(num_points: int, num_dims: int) -> float:
    """The standard deviation of the kernels, which shrinks with the number of points."""
    return float(max(0.2 * max(num_points, 1) ** (-1.0 / (num_dims + 4)), 1.0 / min(100, num_points + 2)))


def _draw(kernels: Array, num_choices: Array, count: int, rng: np.random.Generator) -> Array:
    """Samples of the mixture of all kernels and one uniform prior."""
    num_points, num_dims = kernels.shape
    which = rng.integers(0, num_points + 1, size=count)
    is_prior = which == num_points
    centres = kernels[np.minimum(which, num_points - 1)]
    width = _width(num_points, num_dims)
    drawn = rng.normal(centres, width)
    outside = (drawn < 0) | (drawn > 1)
    drawn = np.where(outside, np.clip(2 * np.clip(drawn, 0, 1) - drawn, 0, 1), drawn)  # reflected at the ends
    uniform = rng.random((count, num_dims))
    # A categorical parameter keeps its value, except with the weight of the prior.
    keeps = rng.random((count, num_dims)) < num_points / (num_points + PRIOR_WEIGHT)
    drawn = np.where(num_choices > 0, np.where(keeps, centres, uniform), drawn)
    return np.where(is_prior[:, None], uniform, drawn)


def _log_density(kernels: Array, num_choices: Array, candidates: Array) -> Array:
    """Of the mixture at each candidate, up to a constant that is the same for good and bad points."""
    num_points, num_dims = kernels.shape
    if not num_points:
        return np.zeros(len(candidates))
    width, is_number = _width(num_points, num_dims), num_choices == 0
    keeps = num_points / (num_points + PRIOR_WEIGHT)
    # The exponents of all pairs are one matmul: -|a - b|²/2 = ab - |a|²/2 - |b|²/2, and equal categories are products of indicators.
    # Densities are over 0..1, in which a category is 1 / num_choices wide.
    constant = -is_number.sum() * np.log(width * np.sqrt(2 * np.pi)) + (~is_number).sum() * np.log(1 - keeps)
    a, b = (_features(values, num_choices, width, keeps) for values in (candidates, kernels))
    a[:, -2] += constant
    b[:, [-2, -1]] = b[:, [-1, -2]]  # the squares of one side meet the ones of the other
    logs = a @ b.T
    top = np.maximum(logs.max(axis=1), 0.0)  # the prior has the density 1
    logs -= top[:, None]
    return np.asarray(top + np.log(np.exp(logs, out=logs).sum(axis=1) + np.exp(-top)) - np.log(num_points + 1))


def _features(values: Array, num_choices: Array, width: float, keeps: float) -> Array:
    """Rows whose products are the exponents; the last two columns are -|values|²/2 and 1."""
    numbers = values[:, num_choices == 0] / width
    columns = [numbers]
    for i in np.flatnonzero(num_choices):
        weight = np.log(keeps * num_choices[i] + 1 - keeps) - np.log(1 - keeps)
        category = np.minimum(np.floor(values[:, i, None] * num_choices[i]), num_choices[i] - 1)
        columns.append(np.sqrt(weight) * (category == np.arange(num_choices[i])))
    return np.hstack(
        [*columns, -0.5 * (numbers**2).sum(axis=1)[:, None], np.ones((len(values), 1))], dtype=np.float32, casting="same_kind"
    )
