"""The area under the ROC curve: exact to the last pair, and within its stated error where it is binned."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stoker.errors import OptionError, TrainError
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


@given(scores_and_targets, st.sampled_from([10, 13]))
def test_binned_is_within_its_stated_error(rows: list[tuple[float, bool]], bits: int) -> None:
    scores, target = torch.tensor([score for score, _ in rows]), torch.tensor([int(kind) for _, kind in rows])
    metric = AUC(bins=2**bits)
    metric.update(prediction=scores, target=target)
    assert abs(metric.compute() - float(by_pairs(scores, target))) <= metric.error + 1e-15
    assert metric.error <= 0.5


def test_more_bins_make_the_error_small(rng: np.random.Generator) -> None:
    scores, target = torch.from_numpy(rng.normal(size=4000)), torch.from_numpy(rng.integers(0, 2, 4000))
    scores += target  # some skill
    errors = []
    for bits in (10, 16, 20):
        metric = AUC(bins=2**bits)
        metric.update(prediction=scores, target=target)
        assert abs(metric.compute() - float(by_pairs(scores.float(), target))) <= metric.error
        errors.append(metric.error)
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] < 2e-3
    assert errors[2] < 2e-4


def test_scores_past_the_first_buffer_and_of_a_wider_type_are_kept(rng: np.random.Generator) -> None:
    scores, target = torch.from_numpy(rng.normal(size=5000)), torch.from_numpy(rng.integers(0, 2, 5000))
    scores[:100] = scores[:100].float()
    scores[200] = scores[201] + 1e-12  # only float64 tells them apart
    metric = AUC()
    metric.update(prediction=scores[:100].float(), target=target[:100])
    for part in torch.split(torch.arange(100, 5000), 900):
        metric.update(prediction=scores[part], target=target[part])
    assert metric.compute() == float(by_pairs(scores, target))


@pytest.mark.parametrize("bins", [None, 2**16])
@pytest.mark.parametrize("kind", [0, 1])
def test_one_class_has_no_area_and_says_so(bins: int | None, kind: int) -> None:
    metric = AUC(bins=bins)
    metric.update(prediction=torch.randn(9), target=torch.full((9,), kind))
    assert math.isnan(metric.compute())
    assert metric.reason == f"metric 'auc' needs both classes, and all 9 samples are of class {kind}"


@pytest.mark.parametrize("bins", [None, 2**16])
def test_scores_that_are_nan_have_no_area(bins: int | None) -> None:
    metric = AUC(bins=bins)
    metric.update(prediction=torch.tensor([0.1, math.nan, 0.3]), target=torch.tensor([0, 1, 1]))
    assert math.isnan(metric.compute())
    assert metric.reason is not None
    assert "1 scores are nan" in metric.reason


def test_an_exact_area_cannot_be_added_up_and_says_what_can() -> None:
    with pytest.raises(TrainError, match="gather"):
        AUC().sums()


@pytest.mark.parametrize("bins", [1000, 2**9, 2**25, 0])
def test_bins_are_a_power_of_two(bins: int) -> None:
    with pytest.raises(OptionError, match=f"bins is {bins}; expected a power of two"):
        AUC(bins=bins)
