"""The optimizer is fused, gives the same losses, and is as before in the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.diagnose.experiments.samples import installed, losses
from torch import nn

from stoker.diagnose.experiments.fused import Fused


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}])
def test_fused_takes_any_implementation_and_keeps_the_losses(options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    before = losses(None, **options)
    fix = installed(Fused(), request)
    assert losses(fix, **options) == pytest.approx(before, rel=1e-5)
    assert fix.used
    fix.remove()
    assert losses(None, **options) == before


def test_fused_finds_nothing_in_an_optimizer_without_it(request: pytest.FixtureRequest) -> None:
    fix = installed(Fused(), request)
    losses(fix, torch.optim.RMSprop)
    losses(fix, torch.optim.Adam, fused=True)
    assert not fix.used


def test_an_optimizer_is_as_before_when_it_was_fused_for_a_while(request: pytest.FixtureRequest) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], foreach=True)
    weight.grad = torch.ones(3)
    optimizer.step()
    fix = installed(Fused(), request)
    optimizer.step()
    assert optimizer.param_groups[0]["fused"]
    fix.remove()
    assert (optimizer.param_groups[0]["fused"], optimizer.param_groups[0]["foreach"]) == (None, True)
    optimizer.step()
    assert optimizer.state[weight]["step"].item() == 3


def test_gradients_that_are_sparse_are_not_fused(request: pytest.FixtureRequest) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    fix = installed(Fused(), request)
    table(torch.tensor([1])).sum().backward()
    optimizer.step()
    assert not fix.used
