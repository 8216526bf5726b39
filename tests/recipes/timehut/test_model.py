"""The encoder: torch's own layers, files in TS2Vec's names, taps that are left out, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.recipes.timehut.plain_methods import PlainEncoder

from stoker_recipes.timehut.batches import gather_batch
from stoker_recipes.timehut.model import (
    EncoderSize,
    encode,
    encode_views,
    from_tensors,
    gather_views,
    initial_weights,
    kept_positions,
    make_layout,
    sizes_of,
    to_tensors,
)
from stoker_recipes.timehut.population import EncoderPopulation, make_population
from stoker_recipes.timehut.settings import make_settings

SIZE = EncoderSize(channels=2, hidden=5, depth=3, width=7)


def plain_encoder(row: torch.Tensor) -> PlainEncoder:
    encoder = PlainEncoder(2, hidden=5, depth=3, width=7).double()
    encoder.load_state_dict(to_tensors(row, SIZE))
    return encoder


@pytest.mark.promise("P29")
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 9, 40])
def test_outputs_are_those_of_plain_layers_at_every_length(steps: int) -> None:
    row = initial_weights(SIZE, 3).double()
    x = torch.randn(4, steps, 2, dtype=torch.float64)
    expected = plain_encoder(row)(x)
    assert torch.allclose(encode(row[None], make_layout(SIZE), x[None])[0], expected, atol=1e-12)
    layout = make_layout(SIZE, steps)
    kept = row[kept_positions(layout)][None]
    assert torch.allclose(encode(kept, layout, x[None])[0], expected, atol=1e-12)


def test_tensors_and_rows_are_the_same() -> None:
    row = initial_weights(SIZE, 5)
    named = to_tensors(row, SIZE)
    assert named["input_fc.weight"].shape == (5, 2)
    assert named["feature_extractor.net.3.projector.weight"].shape == (7, 5, 1)
    assert torch.equal(from_tensors(named, SIZE), row)
    averaged = {f"module.{name}": value for name, value in named.items()}
    assert sizes_of(averaged) == SIZE
    assert torch.equal(from_tensors(averaged, SIZE), row)


# Views without padding: representations and gradients are those of `encode` with masks, in float64


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
def test_views_without_padding_have_the_same_representations_and_gradients(depth: int) -> None:
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
