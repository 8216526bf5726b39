"""Metrics of torchmetrics in a trainer: the plain formula, with rows that do not count left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.train.training import network, pairs, trainer_of

from stoker.errors import OptionError, TrainError
from stoker.train.metrics import Adapted, as_metric


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


def test_shapes_that_would_broadcast_are_refused() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    with pytest.raises(TrainError, match=r"prediction \(8, 3, 1\), target \(8,\)"):
        as_metric("x", torchmetrics.MeanSquaredError()).update(prediction=torch.zeros(8, 3, 1), target=torch.zeros(8))


def test_what_is_not_a_metric_is_refused() -> None:
    with pytest.raises(OptionError, match=r"metric 'x' is 3; expected one of stoker\.train"):
        trainer_of(network(), metrics={"x": 3})
    with pytest.raises(OptionError, match=r"expected one of stoker\.train"):
        as_metric("x", SquaredError)  # type: ignore[arg-type]
    wide = Adapted("x", SquaredError())
    wide.metric.compute = lambda: torch.ones(2)  # type: ignore[method-assign]
    with pytest.raises(OptionError, match=r"metric 'x' has the shape \(2,\); expected one number"):
        wide.compute()
    with pytest.raises(OptionError, match="cannot be added up over ranks"):
        wide.gather(lambda tensor: [tensor])
