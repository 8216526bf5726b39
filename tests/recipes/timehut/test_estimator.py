"""`Encoder`: scikit-learn's own checks, a pipeline, aeon's arrays, ragged lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aeon.datasets import load_basic_motions
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from stoker_recipes.timehut import Encoder

SMALL: dict[str, Any] = {"updates": 2, "hidden": 4, "depth": 2, "width": 6, "device": "cpu"}


@parametrize_with_checks([Encoder(**SMALL)])
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_pipeline_on_series_of_aeon() -> None:
    x, y = load_basic_motions(split="train")
    pipeline = make_pipeline(
        Encoder("ts2vec", **{**SMALL, "updates": 5, "width": 24, "hidden": 12}), LogisticRegression(max_iter=2000)
    )
    assert pipeline.fit(x, y).score(x, y) > 0.5
    assert clone(pipeline).fit(x, y).score(x, y) == pipeline.score(x, y)
    assert pipeline[0].get_feature_names_out()[0] == "encoder0"


def test_seeds_are_reproducible() -> None:
    x = np.random.default_rng(0).normal(size=(6, 10))
    one, other, third = (Encoder(**SMALL, random_state=seed).fit_transform(x) for seed in (1, 1, 2))
    assert (one == other).all()
    assert (one != third).any()
    drawn = Encoder(**SMALL, random_state=np.random.RandomState(0)).fit(x)
    assert drawn.encoder_.settings.seed != 2002
