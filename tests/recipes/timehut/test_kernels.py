"""The kernels of the encoder: representations are those of `encode` wherever a view has a step."""

from __future__ import annotations

import pytest
import torch
from tests.recipes.running import multiplied_as
from tests.recipes.timehut.test_gpu_step import DEVICE, GAPS, SMALL, pytestmark  # noqa: F401

from stoker_recipes.timehut.batches import gather_batch
from stoker_recipes.timehut.model import encode
from stoker_recipes.timehut.population import make_population
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
