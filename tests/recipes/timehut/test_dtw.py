"""DTW: tslearn's distances bit for bit, ragged and multivariate; SoftCLT's targets; errors."""

from __future__ import annotations

import numpy as np
import pytest

from stoker_recipes.timehut.dtw import dtw_distances, instance_targets


def plain_dtw(a: np.ndarray, b: np.ndarray) -> float:
    table = np.full((len(a) + 1, len(b) + 1), np.inf)
    table[0, 0] = 0
    for i in range(len(a)):
        for j in range(len(b)):
            cost = ((a[i] - b[j]) ** 2).sum()
            table[i + 1, j + 1] = cost + min(table[i, j], table[i, j + 1], table[i + 1, j])
    return float(np.sqrt(table[-1, -1]))


@pytest.mark.promise("P29")
@pytest.mark.parametrize(("num", "steps", "channels"), [(5, 7, 1), (40, 6, 2), (2, 1, 3), (1, 4, 1)])
def test_distances_are_those_of_a_table(num: int, steps: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    series, lengths = rng.normal(size=(num, steps, channels)), rng.integers(1, steps + 1, num)
    found = dtw_distances(series, lengths=lengths, threads=2)
    for i in range(num):
        for j in range(i):
            assert found[i, j] == pytest.approx(plain_dtw(series[i, : lengths[i]], series[j, : lengths[j]]), rel=1e-14)
    assert (found == found.T).all()
    assert (np.diag(found) == 0).all()


@pytest.mark.promise("P29")
@pytest.mark.slow  # the import takes seconds
@pytest.mark.filterwarnings("ignore")
def test_distances_are_those_of_tslearn() -> None:
    metrics = pytest.importorskip("tslearn.metrics")
    series = np.random.default_rng(1).normal(size=(6, 15, 2))
    found = dtw_distances(series)
    assert all(found[i, j] == metrics.dtw(series[i], series[j]) for i in range(6) for j in range(i))


def test_targets_are_those_of_the_paper() -> None:
    data = np.random.default_rng(2).normal(size=(6, 9, 1))
    scaled = (data - data.min(1, keepdims=True)) / np.ptp(data, axis=1, keepdims=True)
    distance = dtw_distances(scaled)
    np.fill_diagonal(distance, distance[distance > 0].min())
    distance = (distance - distance.min(0)) / (distance.max(0) - distance.min(0))
    expected = 1 / (1 + np.exp(0.3 * distance)) + 0.5 * np.eye(6)
    assert np.allclose(instance_targets(data, tau=0.3), expected, rtol=1e-12)
    padded = np.full((6, 14, 1), np.nan)
    padded[:, 2:11] = data
    assert np.allclose(instance_targets(padded, tau=0.3), expected, rtol=1e-12)  # padding at both ends does not count
