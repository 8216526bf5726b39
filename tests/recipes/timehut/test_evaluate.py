"""Classifiers: the papers' rules of C, probes, intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from stoker.errors import OptionError
from stoker.recipes.timehut.evaluate import accuracy, fit_classifier, interval


def points(num: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(num) % 2
    return np.random.default_rng(0).normal(size=(num, 4)) + 3 * labels[:, None], labels


def test_the_c_of_the_svm_follows_the_papers() -> None:
    x, y = points(20)
    assert math.inf == fit_classifier(x, y).C
    assert fit_classifier(x, y, method="softclt").C == 1e4
    x, y = points(60)
    grid = fit_classifier(x, y)
    assert isinstance(grid, GridSearchCV)
    assert grid.param_grid["C"] == [*(10.0**i for i in range(-4, 5)), math.inf]
    assert fit_classifier(x, y, method="softclt").param_grid["C"][-1] == 1e4
    many = np.arange(60) % 20  # 3 series per class
    assert isinstance(fit_classifier(x, many), SVC)


def test_probes_find_what_is_there() -> None:
    x, y = points(60)
    for name in ("svm", "knn", "linear"):
        assert accuracy(x[:40], y[:40], x[40:], y[40:], classifier=name) > 0.9
    shuffled = np.random.default_rng(1).permutation(y[:40])
    assert accuracy(x[:40], shuffled, x[40:], y[40:]) < 0.9  # negative control
    with pytest.raises(OptionError, match="classifier is 'tree'"):
        fit_classifier(x, y, classifier="tree")
    with pytest.raises(OptionError, match="the labels have 1 class"):
        fit_classifier(x, y * 0)


def test_an_interval_covers_the_mean() -> None:
    rng = np.random.default_rng(0)
    covered = [found.low <= 0.5 <= found.high for found in (interval(rng.uniform(size=16), draws=500) for _ in range(100))]
    assert 85 <= sum(covered) <= 99
