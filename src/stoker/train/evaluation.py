"""Evaluation: the mean loss and the metrics of all batches, added up on the device and read once at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from stoker.errors import TrainError
from stoker.train.loss import LossFunction, num_samples, outcome_of
from stoker.train.metrics import Metric

Join = Callable[[torch.Tensor], list[torch.Tensor]]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loss: LossFunction,
    batches: Iterable[Any],
    *,
    metrics: Mapping[str, Metric],
    context: Any,
    place: Callable[[Any], Any],
    gather: Join | None = None,
) -> dict[str, float]:
    """The means over all samples. The model is in evaluation mode meanwhile; a feed begins the same epoch each time."""
    set_epoch = getattr(batches, "set_epoch", None)
    if set_epoch is not None:
        set_epoch(0)  # so that sums come in one order, whatever was evaluated before
    for metric in metrics.values():
        metric.reset()
    sums: dict[str, torch.Tensor] = {}
    weight_sum: torch.Tensor | None = None
    was_training = model.training
    model.eval()
    try:
        for given in batches:
            batch = place(given)
            with context:
                outcome = outcome_of(loss(model, batch))
            weight = torch.as_tensor(num_samples(batch), device=outcome.loss.device).double()
            weight_sum = weight if weight_sum is None else weight_sum + weight
            for name, value in {"loss": outcome.loss, **outcome.scalars}.items():
                # A batch without any sample has no mean; its weight is zero, and 0 * nan would not be.
                part = torch.where(weight > 0, value.double() * weight, 0)
                sums[name] = part if name not in sums else sums[name] + part
            if metrics:
                _update(metrics, outcome.whole, batch)
    finally:
        model.train(was_training)
    if weight_sum is None:
        raise TrainError("there is no batch to evaluate: the iterable is empty.")
    totals = torch.stack([weight_sum, *sums.values()])
    if gather is not None:
        totals = torch.stack(gather(totals)).sum(0)
        for metric in metrics.values():
            metric.gather(gather)
    values: list[float] = totals.tolist()
    means = {name: value / values[0] for name, value in zip(sums, values[1:], strict=True)}
    return means | {name: metric.compute() for name, metric in metrics.items()}


def _update(metrics: Mapping[str, Metric], whole: Mapping[str, torch.Tensor], batch: Any) -> None:
    if "prediction" not in whole or "target" not in whole:
        raise TrainError(
            f"metrics ({', '.join(metrics)}) need what the model predicts: let the loss function return a dict with 'loss', "
            f"'prediction' and 'target'."
        )
    valid = whole.get("valid", batch.get("valid") if isinstance(batch, Mapping) else None)
    for metric in metrics.values():
        metric.update(prediction=whole["prediction"], target=whole["target"], valid=valid)
