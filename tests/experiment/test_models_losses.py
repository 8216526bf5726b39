"""Losses: the mean over targets that count, twins of a loop over samples; what does not count may be anything."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.experiment.tasks import model, task_and_batch
from torch.nn import functional

from stoker.experiment import models
from stoker.experiment.models import Task


def slow_mean(task: Task, batch: dict[str, torch.Tensor], prediction: torch.Tensor, each: Any) -> float:
    """Sample by sample, target by target."""
    total, samples = 0.0, 0
    target = task.target(batch)
    for row in range(len(target)):
        if not batch["valid"][row]:
            continue
        samples += 1
        values = []
        for step in range(target.shape[1]):
            if "target_mask" in batch and not batch["target_mask"][row, step]:
                continue
            values += [each(prediction[row, step, k], target[row, step, k]).item() for k in range(target.shape[2])]
        total += sum(values) / len(values) if values else 0.0
    return total / samples


CRITERIA: dict[str, Any] = {
    "mse": (models.mse, lambda p, y: (p - y) ** 2),
    "mae": (models.mae, lambda p, y: (p - y).abs()),
    "huber": (models.huber, functional.huber_loss),
    "bce": (models.bce, functional.binary_cross_entropy_with_logits),
}


@pytest.mark.parametrize("kind", ["horizon", "shift", "last"])
@pytest.mark.parametrize("name", CRITERIA)
def test_a_loss_is_the_mean_over_what_counts(kind: str, name: str) -> None:
    task, batch = task_and_batch(kind)
    make, each = CRITERIA[name]
    if name == "bce":
        batch = {key: (values > 0).float() if values.is_floating_point() else values for key, values in batch.items()}
    trained = model("linear", task)
    found = make(task)(trained, batch)
    assert found["loss"].item() == pytest.approx(slow_mean(task, batch, trained(batch), each), rel=1e-5)
    assert found["prediction"].shape == found["target"].shape
    assert not found["prediction"].requires_grad


def test_the_target_of_a_last_step_is_that_of_the_sample() -> None:
    task, batch = task_and_batch("last")
    target = task.target(batch)
    for row in range(len(target)):
        count = int(batch["mask"][row].sum())
        if count:
            assert target[row, 0, 0] == batch["a"][row, count - 1]


@pytest.mark.parametrize("kind", ["horizon", "shift"])
def test_what_does_not_count_may_be_nan(kind: str) -> None:
    task, batch = task_and_batch(kind)
    spoilt = {**batch}
    for name in ("a_target", "b_target"):
        values = batch[name].clone()
        values[~batch["target_mask"]] = math.nan
        spoilt[name] = values
    assert spoilt["a_target"].isnan().any()
    trained = model("linear", task)
    found = models.mse(task)(trained, spoilt)["loss"]
    found.backward()
    assert found.item() == models.mse(task)(trained, batch)["loss"].item()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in trained.parameters())


def test_classes_that_are_missing_do_not_count() -> None:
    task, batch = task_and_batch("series")
    task = replace(task, outputs_each=3)
    trained = model("gru", task)
    found = models.cross_entropy(task)(trained, batch)
    logits, label = trained(batch)[:3, 0], batch["label"][:3]
    assert batch["label"].tolist()[:4] == [0, 1, 2, -1]
    assert found["loss"].item() == pytest.approx(functional.cross_entropy(logits, label, reduction="sum").item() / 4, rel=1e-5)


def test_quantiles_are_the_pinball_loss() -> None:
    task, batch = task_and_batch("horizon")
    levels = (0.1, 0.5, 0.9)
    task = replace(task, outputs_each=3)
    trained = model("linear", task)

    def pinball(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        error = y - p.reshape(3)
        return torch.stack([max(q * e, (q - 1) * e) for q, e in zip(levels, error, strict=True)]).mean()

    shaped = trained(batch).reshape(32, 3, 1, 3)
    found = models.quantile(task, quantiles=levels)(trained, batch)["loss"].item()
    assert found == pytest.approx(slow_mean(task, batch, shaped, pinball), rel=1e-5)


def test_batches_join_by_their_number_of_samples() -> None:
    """Two halves, weighted by their samples, are the whole: what accumulation and ranks rely on."""
    task, batch = task_and_batch("horizon")
    trained = model("linear", task)
    whole = models.mse(task)(trained, batch)["loss"]
    halves = [{name: values[part] for name, values in batch.items()} for part in (slice(0, 10), slice(10, None))]
    counts = [half["valid"].sum() for half in halves]
    joined = sum(models.mse(task)(trained, half)["loss"] * count for half, count in zip(halves, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(joined, whole)


def test_metrics_see_only_what_counts() -> None:
    from contextlib import nullcontext

    from torchmetrics import MeanAbsoluteError

    from stoker.train.fit import evaluate
    from stoker.train.metrics import as_metric
    from stoker.train.stream import Stream

    task, batch = task_and_batch("horizon")
    assert not batch["target_mask"][batch["valid"]].all()
    trained = model("linear", task)
    found = evaluate(
        trained,
        models.mae(task),
        Stream([batch]),
        metrics={"mae": as_metric("mae", MeanAbsoluteError())},
        context=nullcontext(),
    )
    errors = (trained(batch) - batch["a_target"][..., None]).abs()[batch["target_mask"]]
    assert found["mae"] == pytest.approx(errors.mean().item(), rel=1e-6)
