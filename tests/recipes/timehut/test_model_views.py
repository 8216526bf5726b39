"""Views without padding: representations and gradients are those of `encode` with masks, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stoker_recipes.timehut.batches import gather_batch
from stoker_recipes.timehut.model import encode, encode_views, gather_views
from stoker_recipes.timehut.population import EncoderPopulation, make_population
from stoker_recipes.timehut.settings import make_settings

SMALL: dict[str, Any] = {"hidden": 6, "width": 10, "batch_size": 4, "updates": 12}


def population(depth: int, **options: Any) -> EncoderPopulation:
    data = np.random.default_rng(5).normal(size=(9, 12, 2)).astype(np.float32)
    data[2, 3], data[4, 7:] = np.nan, np.nan
    return make_population(data, [make_settings("ts2vec", depth=depth, **SMALL, **options)], dtype=torch.float64)


def by_views(one: EncoderPopulation, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Representations of the overlap, and the gradient of a sum of them."""
    z = encode_views(one.weights, one.layout, batch)
    (gradient,) = torch.autograd.grad((z * torch.linspace(-1, 1, z.numel(), dtype=z.dtype).view_as(z)).sum(), one.weights)
    return z.detach(), gradient


def by_masks(one: EncoderPopulation, update: int) -> tuple[torch.Tensor, torch.Tensor]:
    batch = gather_batch(one.tables, torch.tensor([update]), low=0, high=12, width=12)
    begin, length = int(batch["begin"]), int(batch["length"])
    z = encode(one.weights, one.layout, batch["x"], batch["keep"], crop=batch["crop"])[:, :, begin : begin + length]
    (gradient,) = torch.autograd.grad((z * torch.linspace(-1, 1, z.numel(), dtype=z.dtype).view_as(z)).sum(), one.weights)
    return z.detach(), gradient


@pytest.mark.promise("P29")
@pytest.mark.parametrize("depth", [1, 5])  # every step sees others to the end, or not in the last blocks
def test_representations_and_gradients(depth: int) -> None:
    one = population(depth)
    for update in range(0, 12, 3):
        for found, expected in zip(by_views(one, gather_views(one.tables, update, one.layout)), by_masks(one, update), strict=True):
            assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.promise("P29", control=True)
def test_negative_control_other_neighbours_give_other_gradients() -> None:
    one = population(5)
    batch = gather_views(one.tables, 0, one.layout)
    batch["neighbours"] = batch["neighbours"].flip(1)
    assert not torch.allclose(by_views(one, batch)[1], by_masks(one, 0)[1])
