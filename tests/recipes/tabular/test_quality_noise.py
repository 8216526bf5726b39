"""Noise: counts in sets of subjects, how noise scales with sizes, and verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.recipes.tabular.quality_noise import (
    NUM_SPLITS,
    ColumnScore,
    Measure,
    count_distances,
    largest_gap,
    make_splits,
    measure,
    sum_distances,
    total_variation,
)


def test_counts_in_halves_are_those_of_a_loop(rng: np.random.Generator) -> None:
    splits = make_splits(50, 60, rng)
    owner, cells = rng.integers(0, 50, 400), rng.integers(0, 7, 400)
    found = count_distances((cells, owner), rng.integers(0, 7, 300), 7, splits)
    for number in range(NUM_SPLITS):
        sets = [{i for i in range(50) if int(splits.masks[i]) >> (part * NUM_SPLITS + number) & 1} for part in range(3)]
        assert len(sets[0]) == 25
        assert len(sets[1]) == len(sets[2]) == 12
        assert not sets[1] & sets[2]
        halves = [np.bincount(cells[[(one in sets[0]) == inside for one in owner]], minlength=7) for inside in (True, False)]
        quarters = [np.bincount(cells[[one in several for one in owner]], minlength=7) for several in sets[1:]]
        for counts, distance in ((halves, found.halves[number]), (quarters, found.quarters[number])):
            a, b = (one / one.sum() for one in counts)
            assert distance == pytest.approx(np.abs(a - b).sum() / 2)


def test_sums_in_halves_are_those_of_a_loop(rng: np.random.Generator) -> None:
    splits = make_splits(40, 40, rng)
    sums = np.column_stack([np.ones(40), rng.normal(size=40)])
    found = sum_distances(sums, sums, splits, lambda one: one[..., 1] / one[..., 0])
    for number in range(NUM_SPLITS):
        inside = np.array([int(mask) >> number & 1 for mask in splits.masks], dtype=bool)
        assert found.halves[number] == pytest.approx(abs(sums[inside, 1].mean() - sums[~inside, 1].mean()))
    assert found.score == 0


@pytest.mark.parametrize("num_cells", [5, 2000])
@pytest.mark.parametrize("sizes", [(1000, 1000), (1000, 250), (400, 4000)])
def test_noise_is_that_of_two_samples_of_these_sizes(num_cells: int, sizes: tuple[int, int]) -> None:
    """Also where most cells are empty, so that a distance falls more slowly than with the square root."""
    real, other = sizes
    ratios = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        splits = make_splits(real, other, rng)
        found = count_distances(
            (rng.integers(0, num_cells, real), np.arange(real)), rng.integers(0, num_cells, other), num_cells, splits
        )
        ratios.append(found.score / found.noise(splits)[0])
    assert 0.8 < np.median(ratios) < 1.2


def test_negative_control_the_square_root_is_wrong_for_sparse_cells() -> None:
    rng = np.random.default_rng(0)
    splits = make_splits(1000, 1000, rng)
    found = count_distances((rng.integers(0, 2000, 1000), np.arange(1000)), rng.integers(0, 2000, 1000), 2000, splits)
    assert found.score > 1.15 * found.noise(splits, smooth=True)[0]


def test_distances() -> None:
    one, other = np.array([1, 1, 0]), np.array([0, 0, 4])
    assert total_variation(one, one) == 0
    assert total_variation(one, other) == 1
    assert largest_gap(np.array([1, 1]), np.array([1, 3])) == pytest.approx(0.25)


def test_verdicts() -> None:
    def verdict(score: float) -> str:
        return Measure(name="x", title="X", score=score, noise=0.01, limit=0.02, tolerance=0.05).verdict

    assert [verdict(one) for one in (0.02, 0.03, 0.06)] == ["same", "close", "differs"]
    columns = {"one": ColumnScore(0.2, 0.01, 0.1), "other": ColumnScore(0.001, 0.01, 0.1)}
    hidden = Measure(name="x", title="X", score=0.01, noise=0.01, limit=0.02, tolerance=0.05, columns=columns)
    assert (hidden.outliers, hidden.verdict) == (["one"], "differs")
    assert measure("x", "X", {}, make_splits(10, 10, np.random.default_rng(0)), tolerance=0.1) is None
