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
from stoker.train.metrics import AUC, MAE, MSE, Accuracy, Mean, Metric, QuantileLoss

METRICS: dict[str, Callable[[], Any]] = {
    "mean": Mean,
    "accuracy": Accuracy,
    "mae": MAE,
    "mse": MSE,
    "quantile": lambda: QuantileLoss(0.9),
    "auc": AUC,
    "auc_binned": lambda: AUC(bins=2**12),
}
every_metric = pytest.mark.parametrize("make", METRICS.values(), ids=METRICS)


def samples(rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(rng.normal(size=count).round(1)).float(), torch.from_numpy(rng.integers(0, 2, count)).float()


def pinball(p: Any, y: Any, q: float) -> Any:
    return np.where(y >= p, q * (y - p), (1 - q) * (p - y))


TWINS: dict[str, Callable[[Any, Any], Any]] = {
    "mean": lambda p, y: p.mean(),
    "accuracy": lambda p, y: ((p > 0) == (y > 0.5)).mean(),
    "mae": lambda p, y: np.abs(p - y).mean(),
    "mse": lambda p, y: ((p - y) ** 2).mean(),
    "quantile": lambda p, y: pinball(p, y, 0.9).mean(),
}


@pytest.mark.parametrize("name", TWINS)
def test_equals_the_plain_formula_for_batches_of_any_size(rng: np.random.Generator, name: str) -> None:
    prediction, target = samples(rng, 1000)
    metric = METRICS[name]()
    for size in torch.split(torch.arange(1000), [1, 600, 7, 392]):
        metric.update(prediction=prediction[size], target=target[size])
    expected = TWINS[name](prediction.double().numpy(), target.double().numpy())
    assert metric.compute() == pytest.approx(expected, rel=1e-6)
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


@pytest.mark.parametrize("name", [name for name in METRICS if name != "auc"])
def test_sums_of_ranks_can_be_added_in_place_also_by_a_rank_without_batches(rng: np.random.Generator, name: str) -> None:
    prediction, target = samples(rng, 500)
    whole, first, second, idle = (METRICS[name]().to("cpu") for _ in range(4))
    whole.update(prediction=prediction, target=target)
    first.update(prediction=prediction[:123], target=target[:123])
    second.update(prediction=prediction[123:], target=target[123:])
    for metric in (first, second):
        for total, part in zip(idle.sums(), metric.sums(), strict=True):
            total += part
    assert idle.compute() == pytest.approx(whole.compute(), rel=1e-12)


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


@every_metric
def test_updates_within_and_outside_of_inference_mode_add_up(rng: np.random.Generator, make: Callable[[], Metric]) -> None:
    prediction, target = samples(rng, 3000)
    whole, mixed = make(), make()
    whole.update(prediction=prediction, target=target)
    with torch.inference_mode():
        mixed.update(prediction=prediction[:1000], target=target[:1000])
        mixed.update(prediction=prediction[1000:2000], target=target[1000:2000])
    mixed.update(prediction=prediction[2000:], target=target[2000:])
    assert mixed.compute() == pytest.approx(whole.compute(), rel=1e-12)


def test_the_mean_of_batch_means_is_weighted_by_their_samples() -> None:
    mean = Mean(name="loss")
    for value, size in ((1.0, 512), (4.0, 3)):
        mean.update(value=torch.tensor(value), weight=torch.tensor(size))
    assert mean.compute() == (512 * 1.0 + 3 * 4.0) / 515


def test_a_large_sum_still_sees_small_numbers_as_float32_would_not() -> None:
    mean, plain = Mean(), torch.zeros(())
    for value in [2.0**24, *[1.0] * 10]:
        mean.update(value=torch.tensor(value))
        plain += value
    assert mean.compute() == (2**24 + 10) / 11
    assert float(plain) == 2**24


def test_half_precision_errors_are_not_rounded_to_half_precision() -> None:
    prediction = torch.tensor([256.0], dtype=torch.bfloat16)
    target = torch.tensor([1.0], dtype=torch.bfloat16)  # 255 needs more than 8 bits
    metric = MSE()
    metric.update(prediction=prediction, target=target)
    assert metric.compute() == 255.0**2


def test_accuracy_of_two_classes_takes_a_last_axis_of_one() -> None:
    metric = Accuracy()
    metric.update(prediction=torch.tensor([[2.0], [-1.0], [0.5], [math.nan]]), target=torch.tensor([1, 0, 0, 0]))
    assert metric.compute() == 0.5


def test_accuracy_of_many_classes_also_along_sequences(rng: np.random.Generator) -> None:
    scores = torch.from_numpy(rng.normal(size=(20, 7, 5)))
    target = torch.from_numpy(rng.integers(0, 5, (20, 7)))
    valid = torch.from_numpy(rng.random((20, 7)) < 0.5)
    for mask in (None, valid, valid[:, 0]):
        metric = Accuracy()
        metric.update(prediction=scores, target=target, valid=mask)
        rows = torch.ones(20, 7, dtype=torch.bool) if mask is None else mask.reshape(20, -1).expand(20, 7)
        assert metric.compute() == pytest.approx((scores.argmax(-1) == target)[rows].double().mean().item(), abs=1e-15)


def test_several_quantiles_have_an_axis_of_their_own(rng: np.random.Generator) -> None:
    quantiles = (0.1, 0.5, 0.9)
    prediction, target = torch.from_numpy(rng.normal(size=(30, 4, 3))), torch.from_numpy(rng.normal(size=(30, 4)))
    metric = QuantileLoss(quantiles)
    metric.update(prediction=prediction, target=target)
    parts = [pinball(prediction[..., i].numpy(), target.numpy(), q).mean() for i, q in enumerate(quantiles)]
    assert metric.compute() == pytest.approx(np.mean(parts))
    assert metric.name == "quantile_loss_0.1_0.5_0.9"


def test_a_quantile_loss_is_least_at_its_quantile(rng: np.random.Generator) -> None:
    target = torch.from_numpy(rng.normal(size=20_000))
    losses = {}
    for place in (0.5, 0.8, 0.95):
        metric = QuantileLoss(0.8)
        metric.update(prediction=target.quantile(place).expand_as(target), target=target)
        losses[place] = metric.compute()
    assert min(losses, key=lambda place: losses[place]) == 0.8


@pytest.mark.parametrize("metric", [MAE(), MSE(), QuantileLoss(0.5), Accuracy(), AUC()])
def test_shapes_that_would_broadcast_are_refused(metric: Metric) -> None:
    with pytest.raises(OptionError, match=r"prediction has the shape \(8, 3, 1\), target \(8,\)"):
        metric.update(prediction=torch.zeros(8, 3, 1), target=torch.zeros(8))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(OptionError, match=r"q is 1\.5"):
        QuantileLoss(1.5)
    with pytest.raises(OptionError, match="valid has the shape"):
        MAE().update(prediction=torch.zeros(8), target=torch.zeros(8), valid=torch.ones(7, dtype=torch.bool))
    with pytest.raises(OptionError, match="class numbers"):
        Accuracy().update(prediction=torch.zeros(8, 3), target=torch.zeros(8))
    with pytest.raises(OptionError, match="neither value"):
        Mean().update(valid=torch.ones(3, dtype=torch.bool))
    with pytest.raises(OptionError, match="weight="):
        Mean().update(value=torch.zeros(3), weight=2.0)
