"""Optimizers of populations: each row of the weights is updated as torch.optim would update it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from stoker.tune import population_optimizers as optimizers
from stoker.tune.population_merge import lr_ratio

ROWS, COLUMNS = 16, 48
KINDS: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "muon": torch.optim.Muon,
}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "adamw": [{"lr": 0.01}, {"lr": 0.1, "weight_decay": 0.5, "betas": (0.5, 0.6), "eps": 1e-3}, {"lr": 0.0}],
    "sgd": [
        {"lr": 0.1},
        {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.1, "dampening": 0.3},
        {"lr": 0.3, "momentum": 0.5, "nesterov": True},
    ],
    "rmsprop": [{"lr": 0.01}, {"lr": 0.02, "alpha": 0.5, "momentum": 0.7}, {"lr": 0.03, "weight_decay": 0.2, "eps": 1e-4}],
    "muon": [{"lr": 0.01}, {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.0}, {"lr": 0.2, "nesterov": False}],
}


def run(name: str, configs: list[dict[str, Any]], weights: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """The weights after updates with the given gradients [steps, K, P]."""
    weights = weights.clone()
    settings = optimizers.parse_settings(name, configs)
    state = optimizers.new_state(name, weights)
    ratios = torch.full((len(configs),), lr_ratio((ROWS, COLUMNS)), dtype=torch.float64)
    matrices = [optimizers.Matrix(start=0, rows=ROWS, columns=COLUMNS, ratios=ratios)]
    for one in gradients:
        one = one.clone()
        optimizers.clip(one, settings)
        optimizers.count_step(state)
        optimizers.update(name, weights, one, state, settings, factor=torch.ones((), dtype=torch.float64), matrices=matrices)
    return weights


@pytest.mark.parametrize("name", KINDS)
def test_each_member_is_updated_as_by_torch(name: str) -> None:
    weights = torch.randn(3, ROWS * COLUMNS, dtype=torch.float64)
    gradients = torch.randn(30, 3, ROWS * COLUMNS, dtype=torch.float64)
    found = run(name, SETTINGS[name], weights, gradients)
    for row, config in enumerate(SETTINGS[name]):
        parameter = nn.Parameter(weights[row].clone().view(ROWS, COLUMNS))
        optimizer = KINDS[name]([parameter], **config)
        for one in gradients:
            parameter.grad = one[row].view(ROWS, COLUMNS).clone()
            optimizer.step()
        assert (found[row] - parameter.detach().flatten()).abs().max() < 1e-6


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_updates_in_float32_are_those_of_torch_bit_for_bit(name: str) -> None:
    weights, gradients = torch.randn(3, ROWS * COLUMNS), torch.randn(10, 3, ROWS * COLUMNS)
    found = run(name, SETTINGS[name], weights, gradients)
    for row, config in enumerate(SETTINGS[name]):
        parameter = nn.Parameter(weights[row].clone())
        optimizer = KINDS[name]([parameter], **config)
        for one in gradients:
            parameter.grad = one[row].clone()
            optimizer.step()
        assert torch.equal(found[row], parameter.detach())


def test_negative_control_settings_of_another_member_are_seen() -> None:
    weights = torch.randn(2, ROWS * COLUMNS, dtype=torch.float64)
    gradients = torch.randn(3, 2, ROWS * COLUMNS, dtype=torch.float64)
    right = run("adamw", [{"lr": 0.01}, {"lr": 0.02}], weights, gradients)
    wrong = run("adamw", [{"lr": 0.02}, {"lr": 0.01}], weights, gradients)
    assert (right - wrong).abs().amax(1).min() > 1e-3


def test_gradients_are_clipped_member_by_member() -> None:
    gradients = torch.randn(3, 50, dtype=torch.float64)
    expected = gradients.clone()
    parameter = nn.Parameter(torch.zeros(50, dtype=torch.float64))
    parameter.grad = expected[1]
    nn.utils.clip_grad_norm_([parameter], 0.5)
    found = gradients.clone()
    optimizers.clip(
        found, optimizers.parse_settings("sgd", [{"lr": 1.0}, {"lr": 1.0, "max_grad_norm": 0.5}, {"lr": 1, "max_grad_norm": 1e9}])
    )
    assert torch.allclose(found, expected)


def test_a_member_with_non_finite_gradients_does_not_touch_others() -> None:
    weights = torch.randn(2, ROWS * COLUMNS, dtype=torch.float64)
    gradients = torch.randn(4, 2, ROWS * COLUMNS, dtype=torch.float64)
    broken = gradients.clone()
    broken[1, 1] = math.inf
    for name, configs in SETTINGS.items():
        assert torch.equal(run(name, configs[:2], weights, gradients)[0], run(name, configs[:2], weights, broken)[0])


def test_tall_and_wide_matrices_are_orthogonalized() -> None:
    for shape in ((4, 9), (9, 4), (6, 6)):
        found = optimizers.orthogonalize(torch.randn(2, *shape)).float()
        values = torch.linalg.svdvals(found)
        assert found.shape == (2, *shape)
        assert ((values > 0.3) & (values < 1.4)).all()


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_directions_of_muon_are_those_of_torch_bit_for_bit(shape: tuple[int, int]) -> None:
    gradients = torch.randn(3, *shape)
    found = optimizers.orthogonalize(gradients)
    for row in range(3):
        parameter = nn.Parameter(torch.zeros(shape))
        parameter.grad = gradients[row].clone()
        torch.optim.Muon([parameter], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False).step()
        assert torch.equal((parameter.detach() / -lr_ratio(shape)).bfloat16(), found[row])


def test_settings_that_cannot_be_are_refused() -> None:
    from stoker.errors import OptionError

    with pytest.raises(OptionError, match="nesterov=True; it needs momentum above 0"):
        optimizers.parse_settings("sgd", [{"lr": 0.1, "nesterov": True}])
    with pytest.raises(OptionError, match=r"lr of configs\[0\] is '0.1'; expected a number"):
        optimizers.parse_settings("sgd", [{"lr": "0.1"}])
    with pytest.raises(OptionError, match=r"optimizer is 'adamW'; expected one of adamw, .* \(adamw\?\)"):
        optimizers.parse_settings("adamW", [{"lr": 0.1}])
