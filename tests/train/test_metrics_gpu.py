"""Metrics and averages on a GPU: no wait in an update, and the numbers of the CPU. Skipped where there is no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

from stoker._device import sync_debug_mode
from stoker.train import AUC, Ema, Mean, Metric

pytestmark = pytest.mark.gpu

METRICS = [Mean, AUC]


@contextlib.contextmanager
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.synchronize()
    with sync_debug_mode("error"):
        yield


def test_negative_control_a_wait_is_an_error() -> None:
    value = torch.ones((), device="cuda")
    with pytest.raises(RuntimeError, match="synchroniz"), waiting_is_an_error():
        value.item()


@pytest.mark.parametrize("make", METRICS)
def test_update_never_waits_and_the_number_is_that_of_the_cpu(rng: np.random.Generator, make: Callable[[], Metric]) -> None:
    prediction = torch.from_numpy(rng.normal(size=5000).round(2)).float()
    target, valid = torch.from_numpy(rng.integers(0, 2, 5000)).float(), torch.from_numpy(rng.random(5000) < 0.9)
    host, device = make(), make()
    parts = [[one[start : start + 1000] for one in (prediction, target, valid)] for start in range(0, 5000, 1000)]
    there = [[one.cuda() for one in part] for part in parts]
    with waiting_is_an_error():
        for p, y, v in there:
            device.update(prediction=p, target=y, valid=v)
            device.update(prediction=p, target=y)
    for p, y, v in parts:
        host.update(prediction=p, target=y, valid=v)
        host.update(prediction=p, target=y)
    assert device.compute() == pytest.approx(host.compute(), rel=1e-6)


@pytest.mark.parametrize("flagged", [False, True])
def test_an_average_never_waits(flagged: bool) -> None:
    ema = Ema(nn.Linear(8, 8).cuda(), 0.9)
    flag = torch.zeros((), device="cuda") if flagged else None
    with waiting_is_an_error():
        ema.update(flag)


@pytest.mark.parametrize("flagged", [False, True])
def test_an_average_within_a_graph_is_that_without(flagged: bool) -> None:
    model = nn.Linear(8, 8).cuda()
    ema, plain = Ema(model, 0.9), Ema(model, 0.9)
    flag = torch.zeros((), device="cuda") if flagged else None
    ema.update(flag)
    plain.update(flag)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ema.update(flag)
    for number in range(4):
        with torch.no_grad():
            model.weight += number
        if flag is not None:
            flag.fill_(number % 2)
        graph.replay()
        plain.update(flag)
    assert all(torch.equal(one, two) for one, two in zip(ema.tensors(), plain.tensors(), strict=True))
