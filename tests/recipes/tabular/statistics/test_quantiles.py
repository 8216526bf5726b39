"""Quantiles are NumPy's `closest_observation`, exact as long as no more than so many values are different."""

from __future__ import annotations

import numpy as np
import pytest

from stoker_recipes.tabular.statistics.quantiles import Distribution, KeyRun, closest_positions

SHARES = np.linspace(0, 1, 1001)


@pytest.mark.parametrize("size", [*range(1, 60), 99, 100, 999, 1000, 1001, 2000, 4096, 100_000])
def test_positions_are_those_of_numpy(size: int) -> None:
    expected = np.quantile(np.arange(size), SHARES, method="closest_observation")
    assert closest_positions(size, SHARES).tolist() == expected.tolist()


@pytest.mark.parametrize("piece", [100, 7000, 100_000])
def test_exact_up_to_the_limit_whatever_the_number_of_values(piece: int, rng: np.random.Generator) -> None:
    values = rng.integers(0, 1024, 100_000).astype(np.uint64) ** np.uint64(3)
    distribution = Distribution(1024)
    for start in range(0, len(values), piece):
        distribution.add(KeyRun.of(values[start : start + piece].copy()))
    assert distribution.rank_error == 0
    assert distribution.quantiles().tolist() == np.quantile(values, SHARES, method="closest_observation").tolist()
    distribution.add(KeyRun.of(np.array([5], dtype=np.uint64)))  # one value more than the limit
    assert distribution.rank_error > 0
    assert distribution.num_values == 100_001
