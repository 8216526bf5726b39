"""Metrics of torchmetrics in a trainer: the plain formula, with rows that do not count left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.train.training import network, pairs, trainer_of

from stoker.train.metrics import as_metric


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
