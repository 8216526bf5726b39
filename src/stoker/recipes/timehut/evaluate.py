"""How good representations are: the papers' SVM, nearest neighbours, and a linear probe; and comparisons of methods over seeds.

The SVM protocol of TS2Vec: an RBF kernel with gamma "scale". With fewer than 50 training series, or fewer than 5 per class, C is infinite;
otherwise C is chosen by 5-fold cross-validation from 1e-4 to 1e4 and infinity. SoftCLT has 1e4 in place of infinity. At most 10,000 series
are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker._types import Array
from stoker.errors import OptionError

CLASSIFIERS = ("svm", "knn", "linear")
MOST_SERIES = 10_000


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
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    if classifier not in CLASSIFIERS:
        raise OptionError(f"classifier is {classifier!r}; expected one of {', '.join(CLASSIFIERS)}.")
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise OptionError(f"the labels have {len(classes)} class; a classifier needs two or more.")
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
    largest = 1e4 if method == "softclt" else math.inf
    svm = SVC(C=largest, gamma="scale", max_iter=10_000_000)
    if not can_search:
        return svm.fit(embeddings, labels)
    grid = {"C": [*(10.0**i for i in range(-4, 5)), *([math.inf] if largest == math.inf else [])]}
    return GridSearchCV(svm, grid, cv=min(5, counts.min())).fit(embeddings, labels)


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


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    number: int


def interval(values: Array, *, draws: int = 4000, seed: int = 0) -> Interval:
    """The mean of values with a 95 % bootstrap interval. Pairs of seeds are compared by the interval of their differences.

    Args:
        values: One value per seed.
        draws: Bootstrap samples.
        seed: Of the bootstrap.

    Example:
        >>> found = interval(np.array([0.97, 0.98, 0.99]))
        >>> round(found.mean, 3), found.low <= found.mean <= found.high
        (0.98, True)
    """
    values = np.asarray(values, np.float64)
    chosen = np.random.default_rng(seed).integers(0, len(values), (draws, len(values)))
    low, high = np.quantile(values[chosen].mean(1), [0.025, 0.975])
    return Interval(mean=float(values.mean()), low=float(low), high=float(high), number=len(values))
