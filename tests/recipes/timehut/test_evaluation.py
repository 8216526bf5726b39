"""Classifiers: the papers' rules of C, and probes."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from stoker.errors import OptionError
from stoker_recipes.timehut import evaluation
from stoker_recipes.timehut.evaluation import accuracy, choose_c, fit_classifier


def points(num: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(num) % 2
    return np.random.default_rng(0).normal(size=(num, 4)) + 3 * labels[:, None], labels


def test_the_c_of_the_svm_follows_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = points(20)
    assert math.inf == fit_classifier(x, y).C
    assert fit_classifier(x, y, method="softclt").C == 1e4
    x, y = points(60)
    seen: list[Any] = []
    monkeypatch.setattr(evaluation, "choose_c", lambda x, y, grid, *, folds: seen.append((grid, folds)) or 7.0)
    assert fit_classifier(x, y).C == 7.0
    assert fit_classifier(x, y, method="softclt").C == 7.0
    assert seen[0] == ([*(10.0**i for i in range(-4, 5)), math.inf], 5)
    assert seen[1][0][-1] == 1e4
    many = np.arange(60) % 20  # 3 series per class
    assert math.inf == fit_classifier(x, many).C


@pytest.mark.promise("P29")
@pytest.mark.parametrize(
    ("seed", "grid", "has_solution"), [(1, [0.01, 1.0, 1e4, math.inf], True), (2, [math.inf, 1e4, 1.0], False)]
)
def test_c_is_that_of_a_grid_search(seed: int, grid: list[float], has_solution: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.random.default_rng(seed).normal(size=(48, 6)).astype(np.float32), np.arange(48) % 3
    x += y[:, None]  # the classes overlap, and some points of different classes are almost the same
    x[[1, 4]] = x[[0, 3]] + np.float32(1e-9 if has_solution else 1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = GridSearchCV(SVC(max_iter=2000), {"C": grid}, cv=5, refit=False).fit(x, y)
    means = expected.cv_results_["mean_test_score"]
    assert np.isnan(means).any() == (not has_solution)
    assert not has_solution or means[1] == means[2]  # of equal ones the first is wanted
    fits: list[tuple[float, int]] = []
    monkeypatch.setattr(evaluation, "FEW_ITERATIONS", 1000)
    monkeypatch.setattr(evaluation, "MOST_ITERATIONS", 2000)
    monkeypatch.setattr(evaluation, "_svm", lambda c, limit: fits.append((c, limit)) or SVC(C=c, max_iter=limit))
    assert choose_c(x, y, grid, folds=5) == expected.best_params_["C"]
    assert fits.count((math.inf, 2000)) <= (3 if has_solution else 0)  # of 5


def test_infinite_c_without_a_solution_is_replaced() -> None:
    x, y = np.random.default_rng(2).normal(size=(20, 6)).astype(np.float32), np.arange(20) % 2
    x[1] = x[0] + np.float32(1e-4)
    with pytest.raises(ValueError, match="not finite"):
        SVC(C=math.inf, max_iter=20_000).fit(x, y)
    assert fit_classifier(x, y).C == 1e4


@pytest.mark.promise("P29", control=True)
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
