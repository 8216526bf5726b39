"""The kernels of the encoder: representations are those of `encode` wherever a view has a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.recipes.running import multiplied_as
from tests.recipes.timehut.test_gpu_step import DEVICE, GAPS, SMALL, pytestmark  # noqa: F401

from stoker_recipes.timehut.batches import gather_batch
from stoker_recipes.timehut.losses import contrastive_loss
from stoker_recipes.timehut.model import encode
from stoker_recipes.timehut.population import dropout_scale, make_population
from stoker_recipes.timehut.settings import make_settings


def test_representations_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker_recipes.timehut import gpu_step

    seen: list[torch.Tensor] = []
    monkeypatch.setattr(gpu_step._Step, "contrast", lambda step, z: seen.append(z) or z.sum((1, 2)))
    with multiplied_as("highest"):
        population = make_population(GAPS, [make_settings("ts2vec", seed=seed, **SMALL) for seed in (1, 2)], device=DEVICE)
        update = torch.tensor([1], device=DEVICE)
        gpu_step.losses(population.weights, update, population.layout, population.tables, population.terms, dropout=0.1)
        batch = gather_batch(population.tables, update, low=0, high=12, width=12)
        expected = encode(population.weights.detach(), population.layout, batch["x"], batch["keep"], crop=batch["crop"])
    inside = batch["crop"].expand(2, -1, -1)
    found = seen[0].detach().view_as(expected)
    assert float((found - expected)[inside].abs().max()) < 1e-5
    assert not torch.isclose(found, expected).all()  # outside of the crop the values do not count, and differ


# The kernels of the losses: levels with dropout and losses are those of torch


def test_levels_and_losses_are_those_of_torch() -> None:
    from stoker_recipes.timehut import gpu_step

    data = np.zeros((5, 9, 1), np.float32)
    population = make_population(data, [make_settings("timehut", seed=seed, **SMALL) for seed in (1, 2)], device=DEVICE)
    tables, update = population.tables, torch.tensor([1], device=DEVICE)
    with multiplied_as("highest"):
        step = gpu_step._Step(population.weights.detach(), update, population.layout, tables, population.terms, 0.1)
        z = torch.randn(2, 8, 9, 10, generator=torch.Generator().manual_seed(0)).to(DEVICE)
        found = step.contrast(z.view(2, 72, 10))
    for k in range(2):
        left, right = (int(one) for one in tables.bounds[1, k, 1:3])
        steps = torch.arange(right - left, device=DEVICE)
        shape = torch.Size((1, 8, right - left, 10))
        factors = dropout_scale(shape, z.dtype, steps=steps, key=tables.keys[k : k + 1], update=update, length=9, rate=0.1)
        level = z[k : k + 1, :, left:right] * factors
        terms = population.terms.take(torch.tensor([k], device=DEVICE))
        expected = contrastive_loss(
            level.view(1, 4, 2, right - left, 10), torch.tensor([right - left], device=DEVICE), tables.tau[1, k : k + 1], terms
        )
        assert torch.allclose(found[k : k + 1], expected, rtol=1e-5)
        first, room = 0, 9
        while level.shape[2]:
            assert torch.allclose(step.pyramid[k, :, first : first + level.shape[2]], level[0], atol=1e-6)
            first, room = first + room, room // 2
            half = level.shape[2] // 2
            level = torch.maximum(level[:, :, 0 : 2 * half : 2], level[:, :, 1 : 2 * half : 2])
