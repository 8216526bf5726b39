"""How good representations are: the papers' SVM, nearest neighbours, and a linear probe.

The SVM protocol of TS2Vec: an RBF kernel with gamma "scale". With fewer than 50 training series, or fewer than 5 per class, C is infinite;
otherwise C is chosen by 5-fold cross-validation from 1e-4 to 1e4 and infinity. SoftCLT has 1e4 in place of infinity. At most 10,000 series
are used.

Where classes overlap, infinite C has no solution: libsvm runs for 10 million iterations, some seconds for each pair of classes and fold,
or its values overflow, which scikit-learn refuses. `choose_c` chooses as scikit-learn's grid search does, and leaves out fits that cannot
win any more.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.errors import OptionError
from stoker.extend import Array

CLASSIFIERS = ("svm", "knn", "linear")
MOST_SERIES = 10_000
LARGEST_C = 1e4
"""The largest C but infinity."""
FEW_ITERATIONS, MOST_ITERATIONS = 20_000, 10_000_000
"""Iterations of libsvm: of a first look, and of the papers."""


def fit_classifier(embeddings: Array, labels: Array, *, classifier: str = "svm", method: str = "timehut", seed: int = 0) -> Any:
    """A classifier of scikit-learn on representations.

    Args:
        embeddings: (N, width).
        labels: (N,).
        classifier: "svm" (the papers' protocol), "knn" (one neighbour, scaled) or "linear" (logistic regression, C by 5-fold grid).
        method: "softclt" has C = 1e4 where the others have infinity.
        seed: Of the subset where there are more than 10,000 series.

    Raises:
        OptionError: Fewer than two classes, or an unknown classifier.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if classifier not in CLASSIFIERS:
        raise OptionError.expected("classifier", classifier, f"one of {', '.join(CLASSIFIERS)}")
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise OptionError(f"the labels have {len(classes)} class; a classifier needs two or more.", parameter="labels")
    embeddings, labels = _at_most(MOST_SERIES, embeddings, labels, seed)
    can_search = len(labels) >= 50 and len(labels) // len(classes) >= 5 and counts.min() >= 2
    if classifier == "knn":
        return make_pipeline(StandardScaler(), KNeighborsClassifier(1)).fit(embeddings, labels)
    if classifier == "linear":
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000))
        grid = {"logisticregression__C": [10.0**i for i in range(-3, 4)]}
        return (
            GridSearchCV(model, grid, cv=min(5, counts.min())).fit(embeddings, labels)
            if can_search
            else model.fit(embeddings, labels)
        )
    largest = LARGEST_C if method == "softclt" else math.inf
    if can_search:
        values = [*(10.0**i for i in range(-4, 5)), *([math.inf] if largest == math.inf else [])]
        largest = choose_c(embeddings, labels, values, folds=min(5, counts.min()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            return _svm(largest).fit(embeddings, labels)
        except ValueError:
            if largest < math.inf:
                raise
            return _svm(LARGEST_C).fit(embeddings, labels)  # there is no solution with infinite C


def _svm(c: float, iterations: int = MOST_ITERATIONS) -> Any:
    from sklearn.svm import SVC

    return SVC(C=c, gamma="scale", max_iter=iterations)


def choose_c(embeddings: Array, labels: Array, grid: Sequence[float], *, folds: int) -> float:
    """The C of the SVM with the best mean accuracy in stratified cross-validation, the first of equal ones, as `GridSearchCV` chooses it.

    Every C is left as soon as its folds so far cannot make it the best, as none has an accuracy above 1. A fold whose solution is not
    finite has the accuracy NaN, which never wins. It shows early, so folds get few iterations before one of them gets all: values of
    libsvm that are not finite stay so, and a fit that stops by itself is the same with any larger limit.

    Args:
        embeddings: (N, width).
        labels: (N,).
        grid: Values of C.
        folds: Number of folds.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold

    parts = list(StratifiedKFold(folds).split(embeddings, labels))
    best, chosen = -1.0, grid[0]
    for c in grid:
        scores = np.ones(folds)  # what a fold has at most, until it is known
        known = [False] * folds
        for limit in (FEW_ITERATIONS, MOST_ITERATIONS):
            for i, (inside, outside) in enumerate(parts):
                if known[i] or not np.average(scores) > best:
                    continue
                svm = _svm(c, limit)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    try:
                        svm.fit(embeddings[inside], labels[inside])
                    except ValueError:
                        scores[i] = math.nan
                        continue
                if limit == MOST_ITERATIONS or svm.n_iter_.max() < limit:
                    scores[i], known[i] = svm.score(embeddings[outside], labels[outside]), True
        if np.average(scores) > best:
            best, chosen = float(np.average(scores)), c
    return chosen


def _at_most(most: int, embeddings: Array, labels: Array, seed: int) -> tuple[Array, Array]:
    if len(labels) <= most:
        return embeddings, labels
    from sklearn.model_selection import train_test_split

    some, _, of_some, _ = train_test_split(embeddings, labels, train_size=most, random_state=seed, stratify=labels)
    return some, of_some


def accuracy(
    embeddings: Array, labels: Array, test: Array, test_labels: Array, *, classifier: str = "svm", method: str = "timehut"
) -> float:
    """The share of test series that a classifier of training series gets right."""
    fitted = fit_classifier(embeddings, labels, classifier=classifier, method=method)
    return float((fitted.predict(test) == test_labels).mean())
