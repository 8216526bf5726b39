"""Muon and AdamW equal torch's, one matrix at a time; the schedules equal torch's OneCycleLR; a raised flag changes nothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from stoker_recipes.icecube.optimizer import MuonAdamW, cycled_momentum, one_cycle


def torch_rows(*, total: int, warmup: int, lr: float) -> list[tuple[float, float]]:
    """Learning rate and momentum of torch's own schedule at each step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=lr, total_steps=total, pct_start=min(warmup / total, 0.3), final_div_factor=1000
    )
    rows = []
    for step in range(total):
        rows.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        optimizer.step()
        if step < total - 1:
            schedule.step()
    return rows


@pytest.mark.promise("P29")
@pytest.mark.parametrize(("total", "warmup"), [(500, 40), (700, 400), (50, 3), (1000, 300)])
def test_rates_and_momentum_equal_torchs_one_cycle(total: int, warmup: int) -> None:
    schedule = one_cycle(warmup=warmup, total=total)
    for step, (rate, momentum) in enumerate(torch_rows(total=total, warmup=warmup, lr=0.005)):
        assert 0.005 * schedule(step, total) == pytest.approx(rate, rel=1e-9)
        assert float(cycled_momentum(torch.tensor(step), warmup=warmup, total=total)) == pytest.approx(momentum, rel=1e-9)


def plain_muon(weight: Tensor, gradient: Tensor, buffer: Tensor, lr: float, momentum: float, decay: float) -> None:
    """One matrix, step by step."""
    buffer += (1 - momentum) * (gradient - buffer)
    x = gradient + momentum * (buffer - gradient)
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    x = x.T if is_tall else x
    weight *= 1 - lr * decay
    weight -= lr * math.sqrt(max(1, weight.shape[0] / weight.shape[1])) * x


def make_weights(seed: int = 0) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64))

    return [draw(8, 8), draw(16, 8), draw(8, 8), draw(8, 16), draw(8, 8)], [draw(3), draw(1, 1, 4), draw(5, 2)]


def draw_gradients(weights: list[nn.Parameter], step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(weight.shape, generator=generator, dtype=weight.dtype) for weight in weights]


@pytest.mark.promise("P29")
def test_updates_equal_a_loop_over_matrices_and_torchs_adamw() -> None:
    (matrices, others), (plain, side) = make_weights(), make_weights()
    total = 12
    optimizer = MuonAdamW(matrices, others, lr=0.02, side_lr=0.003, warmup=4, total=total)
    adamw = torch.optim.AdamW(side, lr=0.003, betas=(0.9, 0.999), weight_decay=0.01)
    buffers = [torch.zeros_like(weight) for weight in plain]
    for step in range(total):
        momentum = float(cycled_momentum(torch.tensor(step), warmup=4, total=total))
        for weight, gradient in zip([*matrices, *others], draw_gradients([*matrices, *others], step), strict=True):
            weight.grad = gradient
        optimizer.step()
        gradients = draw_gradients([*plain, *side], step)
        with torch.no_grad():
            for weight, gradient, buffer in zip(plain, gradients, buffers, strict=False):
                plain_muon(weight, gradient, buffer, 0.02, momentum, 0.01)
        for weight, gradient in zip(side, gradients[len(plain) :], strict=True):
            weight.grad = gradient
        adamw.param_groups[0]["betas"] = (momentum, 0.999)
        adamw.step()
        for mine, theirs in zip([*matrices, *others], [*plain, *side], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)  # the authors add 1e-7 to the norm


@pytest.mark.promise("P29")
@pytest.mark.parametrize("first", [True, False])
def test_a_raised_flag_changes_nothing(first: bool) -> None:
    matrices, others = make_weights()
    optimizer = MuonAdamW(matrices, others, warmup=4, total=10)
    weights = [*matrices, *others]

    def step(flag: float, spoil: bool) -> None:
        optimizer.found_inf = torch.tensor(flag)  # type: ignore[attr-defined]
        for weight, gradient in zip(weights, draw_gradients(weights, 0), strict=True):
            weight.grad = gradient * math.nan if spoil else gradient
        optimizer.step()

    if not first:
        step(0.0, False)
    before = [weight.detach().clone() for weight in weights]
    states = [{name: value.clone() for name, value in optimizer.state[weight].items()} for weight in weights]
    step(1.0, True)
    assert all(map(torch.equal, weights, before))
    for weight, state in zip(weights, states, strict=True):
        for name, value in optimizer.state[weight].items():
            assert torch.equal(value, state.get(name, torch.zeros_like(value))), name
    step(0.0, False)
    assert not any(map(torch.equal, weights, before))


@pytest.mark.promise("P29", control=True)
def test_negative_control_without_the_flag_nan_reaches_the_weights() -> None:
    matrices, others = make_weights()
    optimizer = MuonAdamW(matrices, others, warmup=4, total=10)
    for weight in [*matrices, *others]:
        weight.grad = torch.full_like(weight, math.nan)
    optimizer.step()
    assert all(weight.isnan().any() for weight in [*matrices, *others])
