"""Metrics: equal to the plain formula however batches are cut, masked or spread over ranks, and without a wait in `update`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.syncs import Syncs
from torch import Tensor

from stoker.errors import OptionError
from stoker.train.metrics import AUC, Mean, Metric

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
    assert metric.reason is not None
    assert "no valid sample" in metric.reason
    metric.update(prediction=torch.tensor([1.0, -1.0]), target=torch.tensor([1.0, 0.0]))
    assert not math.isnan(metric.compute())
    assert metric.reason is None
    metric.reset()
    assert math.isnan(metric.compute())


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(OptionError, match=r"prediction has the shape \(8, 3, 1\), target \(8,\)"):
        AUC().update(prediction=torch.zeros(8, 3, 1), target=torch.zeros(8))
