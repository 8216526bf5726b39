"""Stacked matrices are orthogonalised as `torch.optim.Muon` does one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from stoker.train import orthogonalize


@pytest.mark.parametrize(("dtype", "near"), [(torch.bfloat16, 1e-6), (torch.float32, 0.02)])
def test_updates_are_those_of_torch(dtype: torch.dtype, near: float) -> None:
    weights = [nn.Parameter(torch.zeros(48, 32)) for _ in range(3)]
    for weight in weights:
        weight.grad = torch.randn(48, 32)
    torch.optim.Muon(weights, lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn="original").step()
    found = math.sqrt(48 / 32) * orthogonalize(torch.stack([weight.grad for weight in weights]), dtype=dtype).float()  # type: ignore[misc]
    expected = torch.stack([weight.detach() for weight in weights])
    assert float((expected + found).norm() / found.norm()) < near


def test_singular_values_are_near_one() -> None:
    values = torch.linalg.svdvals(orthogonalize(torch.randn(3, 32, 64), dtype=torch.float32))
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3
