"""Metrics of torchmetrics in a trainer: the numbers of ours, with rows that do not count left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.train.training import network, pairs, trainer_of

from stoker.errors import OptionError
from stoker.train.metrics import MSE, Accuracy, Adapted, as_metric


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


def evaluated(metrics: dict[str, Any]) -> dict[str, float]:
    return trainer_of(network(), metrics=metrics).evaluate([*pairs(4), *pairs(1, rows=5, seed=3)])


def test_any_object_with_update_compute_and_reset_is_a_metric() -> None:
    trainer = trainer_of(network(), metrics={"ours": MSE(), "theirs": SquaredError()})
    for _ in range(2):  # the second time after a reset
        found = trainer.evaluate(pairs(4))
        assert found["theirs"] == pytest.approx(found["ours"], rel=1e-6)


def test_mse_of_torchmetrics_is_ours() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    found = evaluated({"ours": MSE(), "theirs": torchmetrics.MeanSquaredError()})
    assert found["theirs"] == pytest.approx(found["ours"], rel=1e-6)


def test_accuracy_of_torchmetrics_is_ours_without_rows_that_do_not_count() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    generator = torch.Generator().manual_seed(0)
    ours = Accuracy()
    theirs = as_metric("theirs", torchmetrics.classification.MulticlassAccuracy(num_classes=3, average="micro"))
    for rows in (64, 7):
        prediction = torch.randn(rows, 3, generator=generator)
        target = torch.randint(0, 3, (rows,), generator=generator)
        valid = torch.rand(rows, generator=generator) < 0.8
        for metric in (ours, theirs):
            metric.update(prediction=prediction, target=target, valid=valid)
    assert theirs.compute() == pytest.approx(ours.compute(), rel=1e-6)


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
