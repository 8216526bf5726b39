"""The area under the ROC curve: exact to the last pair."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stoker.train.metrics import AUC


def by_pairs(scores: Tensor, target: Tensor) -> Fraction:
    """Every positive against every negative."""
    positive, negative = scores[target > 0], scores[target == 0]
    above = int((positive[:, None] > negative).sum())
    equal = int((positive[:, None] == negative).sum())
    return Fraction(2 * above + equal, 2 * len(positive) * len(negative))


scores_and_targets = st.lists(
    st.tuples(st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0]), st.booleans()), min_size=2, max_size=60
).filter(lambda rows: len({kind for _, kind in rows}) == 2)


@given(scores_and_targets)
def test_equals_the_count_of_all_pairs(rows: list[tuple[float, bool]]) -> None:
    scores, target = torch.tensor([score for score, _ in rows]), torch.tensor([int(kind) for _, kind in rows])
    metric = AUC()
    for part in torch.split(torch.arange(len(rows)), 7):
        metric.update(prediction=scores[part], target=target[part])
    assert metric.compute() == float(by_pairs(scores, target))


def test_scores_past_the_first_buffer_and_of_a_wider_type_are_kept(rng: np.random.Generator) -> None:
    scores, target = torch.from_numpy(rng.normal(size=5000)), torch.from_numpy(rng.integers(0, 2, 5000))
    scores[:100] = scores[:100].float()
    scores[200] = scores[201] + 1e-12  # only float64 tells them apart
    metric = AUC()
    metric.update(prediction=scores[:100].float(), target=target[:100])
    for part in torch.split(torch.arange(100, 5000), 900):
        metric.update(prediction=scores[part], target=target[part])
    assert metric.compute() == float(by_pairs(scores, target))


@pytest.mark.parametrize("kind", [0, 1])
def test_one_class_has_no_area_and_says_so(kind: int) -> None:
    metric = AUC()
    metric.update(prediction=torch.randn(9), target=torch.full((9,), kind))
    assert math.isnan(metric.compute())
    assert metric.reason == f"metric 'auc' needs both classes, and all 9 samples are of class {kind}"


def test_scores_that_are_nan_have_no_area() -> None:
    metric = AUC()
    metric.update(prediction=torch.tensor([0.1, math.nan, 0.3]), target=torch.tensor([0, 1, 1]))
    assert math.isnan(metric.compute())
    assert metric.reason is not None
    assert "1 scores are nan" in metric.reason
