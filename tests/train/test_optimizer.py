"""The optimizer's step without torch's frame: the same weights, and nothing that looks at steps misses one."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from tests.train.training import network, pairs
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stoker.train import orthogonalize
from stoker.train.optimizer import bare_step


class Counted(torch.optim.AdamW):
    """An optimizer whose step is framed by its own wrapper, which says that it is torch's."""

    count = 0

    @functools.wraps(torch.optim.AdamW.step)
    def step(self, *given: Any) -> Any:
        """Count."""
        Counted.count += 1
        return super().step(*given)


def made(kind: Any = torch.optim.AdamW) -> torch.optim.Optimizer:
    model = network()
    x, y = pairs(1)[0]
    optimizer: torch.optim.Optimizer = kind(model.parameters(), lr=1e-2, fused=True)
    torch.nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
    return optimizer


def weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def test_updates_as_the_framed_step_does() -> None:
    bare, framed = made(), made()
    step = bare_step(bare)
    for _ in range(3):
        step()
        framed.step()
    assert all(map(torch.equal, weights(bare), weights(framed)))


@pytest.mark.parametrize("kind", ["pre", "post", "global pre", "global post"])
def test_hooks_are_called_also_those_that_come_later(kind: str) -> None:
    optimizer, calls = made(), []
    step = bare_step(optimizer)
    step()
    register: Any = {
        "pre": optimizer.register_step_pre_hook,
        "post": optimizer.register_step_post_hook,
        "global pre": register_optimizer_step_pre_hook,
        "global post": register_optimizer_step_post_hook,
    }[kind]
    handle = register(lambda *given: calls.append(given))
    step()
    handle.remove()
    step()
    assert len(calls) == 1


def test_a_profiler_sees_the_step() -> None:
    step = bare_step(made())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    assert any(event.key == "Optimizer.step#AdamW.step" for event in profile.key_averages())


# Stacked matrices are orthogonalised as `torch.optim.Muon` does one


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
