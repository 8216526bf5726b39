"""Metrics: equal to the plain formula however batches are cut, masked or spread over ranks, and without a wait in `update`."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.syncs import Syncs
from tests.train.training import network, pairs, trainer_of
from torch import Tensor

from stoker.errors import OptionError
from stoker.train import AUC, Mean, Metric
from stoker.train.metrics import as_metric

METRICS: dict[str, Callable[[], Any]] = {"mean": Mean, "auc": AUC}
every_metric = pytest.mark.parametrize("make", METRICS.values(), ids=METRICS)


def samples(rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(rng.normal(size=count).round(1)).float(), torch.from_numpy(rng.integers(0, 2, count)).float()


def test_a_mean_equals_the_plain_formula_for_batches_of_any_size(rng: np.random.Generator) -> None:
    prediction, target = samples(rng, 1000)
    metric = Mean()
    for size in torch.split(torch.arange(1000), [1, 600, 7, 392]):
        metric.update(prediction=prediction[size], target=target[size])
    assert metric.compute() == pytest.approx(prediction.double().mean().item(), rel=1e-6)
    assert metric.reason is None


@every_metric
def test_update_never_waits(rng: np.random.Generator, make: Callable[[], Metric]) -> None:
    prediction, target = samples(rng, 5000)
    metric = make()
    with Syncs() as syncs:
        for start in range(0, 5000, 700):
            part = slice(start, start + 700)
            metric.update(prediction=prediction[part], target=target[part])
            metric.update(prediction=prediction[part], target=target[part], valid=target[part] > 0)
        metric.reset()
    assert syncs.seen == []


def test_negative_control_a_wait_is_counted(rng: np.random.Generator) -> None:
    prediction, target = samples(rng, 10)
    for waits in (lambda: prediction.sum().item(), lambda: prediction[target > 0], lambda: bool(prediction.sum() > 0)):
        with Syncs() as syncs:
            waits()
        assert syncs.seen


@every_metric
def test_rows_that_are_not_valid_count_for_nothing_even_if_nan(rng: np.random.Generator, make: Callable[[], Metric]) -> None:
    prediction, target = samples(rng, 300)
    valid = torch.from_numpy(rng.random(300) < 0.7)
    alone, masked = make(), make()
    alone.update(prediction=prediction[valid], target=target[valid])
    spoilt = torch.where(valid, prediction, math.nan)
    masked.update(prediction=spoilt, target=target, valid=valid)
    masked.update(prediction=spoilt, target=target, valid=torch.zeros(300, dtype=torch.bool))
    assert masked.compute() == alone.compute()


def test_negative_control_a_mask_that_multiplies_lets_nan_through() -> None:
    values, valid = torch.tensor([1.0, math.nan]), torch.tensor([True, False])
    assert math.isnan(float((values * valid).sum()))
    mean = Mean()
    mean.update(value=values, valid=valid)
    assert mean.compute() == 1.0


@every_metric
def test_ranks_merge_to_the_number_of_all(rng: np.random.Generator, make: Callable[[], Metric]) -> None:
    prediction, target = samples(rng, 500)
    whole, *ranks = [make() for _ in range(4)]
    whole.update(prediction=prediction, target=target)
    for rank, rows in zip(ranks, torch.split(torch.arange(500), [100, 399, 1]), strict=True):
        rank.update(prediction=prediction[rows], target=target[rows])
    gather_all(ranks)
    assert [rank.compute() for rank in ranks] == pytest.approx([whole.compute()] * 3, rel=1e-12)


def gather_all(ranks: list[Metric]) -> None:
    """Each rank in lock step: calls are answered with the tensors that all ranks gave to their call of the same number."""
    calls: list[list[Tensor]] = [[] for _ in ranks]

    class Short(Exception):
        pass

    done = [False] * len(ranks)
    while not all(done):
        for number, rank in enumerate(ranks):
            asked = iter(range(10**6))

            def all_gather(tensor: Tensor, number: int = number, asked: Any = asked) -> list[Tensor]:
                k = next(asked)
                if k == len(calls[number]):
                    calls[number].append(tensor.clone())
                if any(len(other) <= k for other in calls):
                    raise Short
                assert len({(tuple(other[k].shape), other[k].dtype) for other in calls}) == 1
                return [other[k].clone() for other in calls]

            if not done[number]:
                try:
                    rank.gather(all_gather)
                    done[number] = True
                except Short:
                    continue


@every_metric
def test_without_samples_it_is_nan_with_a_reason_and_reset_comes_back_to_that(make: Callable[[], Metric]) -> None:
    metric = make()
    assert math.isnan(metric.compute())
    assert "no valid sample" in metric.reason
    metric.update(prediction=torch.tensor([1.0, -1.0]), target=torch.tensor([1.0, 0.0]))
    assert not math.isnan(metric.compute())
    assert metric.reason is None
    metric.reset()
    assert math.isnan(metric.compute())


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(OptionError, match=r"prediction has the shape \(8, 3, 1\), target \(8,\)"):
        AUC().update(prediction=torch.zeros(8, 3, 1), target=torch.zeros(8))


# The area under the ROC curve: exact to the last pair


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
def test_the_area_equals_the_count_of_all_pairs(rows: list[tuple[float, bool]]) -> None:
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
    assert "1 scores are nan" in metric.reason


# Metrics of torchmetrics in a trainer: the plain formula, with rows that do not count left out


class SquaredError:
    """The least that a metric needs to have."""

    def __init__(self) -> None:
        self.reset()

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        self.sum += float((preds - target).square().sum())
        self.count += target.numel()

    def compute(self) -> float:
        return self.sum / self.count

    def reset(self) -> None:
        self.sum, self.count = 0.0, 0


def test_any_object_with_update_compute_and_reset_is_a_metric() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    trainer = trainer_of(network(), metrics={"plain": SquaredError(), "theirs": torchmetrics.MeanSquaredError()})
    for _ in range(2):  # the second time after a reset
        values = trainer.evaluate([*pairs(4), *pairs(1, rows=5, seed=3)])
        assert values["theirs"] == pytest.approx(values["plain"], rel=1e-6)


@pytest.mark.parametrize("mask", ["values", "rows", None])
def test_accuracy_of_many_classes_also_along_sequences(rng: np.random.Generator, mask: str | None) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = as_metric("x", torchmetrics.classification.MulticlassAccuracy(num_classes=5, average="micro"))
    scores, target = torch.from_numpy(rng.normal(size=(20, 7, 5))), torch.from_numpy(rng.integers(0, 5, (20, 7)))
    valid = torch.from_numpy(rng.random((20, 7) if mask == "values" else 20) < 0.5)
    for part in (slice(0, 13), slice(13, 20)):
        metric.update(prediction=scores[part], target=target[part], valid=None if mask is None else valid[part])
    rows = torch.ones(20, 7, dtype=torch.bool) if mask is None else valid.reshape(20, -1).expand(20, 7)
    assert metric.compute() == pytest.approx((scores.argmax(-1) == target)[rows].double().mean().item(), abs=1e-6)


def test_half_precision_errors_are_not_rounded_to_half_precision() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = as_metric("x", torchmetrics.MeanSquaredError())
    metric.update(prediction=torch.tensor([256.0], dtype=torch.bfloat16), target=torch.tensor([1.0]))  # 255 needs more than 8 bits
    assert metric.compute() == 255.0**2
