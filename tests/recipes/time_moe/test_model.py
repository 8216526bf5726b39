"""The model equals the slow and obvious formulation: loss and every gradient, also masked and packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.recipes.time_moe import plain_model
from torch import Tensor

from stoker_recipes.time_moe import SIZES, Size, TimeMoe, time_moe_loss
from stoker_recipes.time_moe.model import to_official

SMALL = Size(hidden=16, intermediate=24, layers=2, heads=2, experts=4, top_k=2, horizons=(1, 3, 8), max_position=64)


def model_of(size: Size = SMALL, dtype: torch.dtype = torch.float64) -> TimeMoe:
    """Weights far from zero, so that experts differ and the loss has both of its forms."""
    torch.manual_seed(0)
    model = TimeMoe(size, dtype=dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return model


def points(rows: int, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    series = 1.5 * torch.randn(rows, length + 1, generator=generator, dtype=torch.float64)
    return series[:, :-1].clone(), series[:, 1:].clone()


def compare(model: TimeMoe, found: Tensor, series: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Loss and gradients of the model against those of the plain formulation."""
    weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in official(dict(model.named_parameters())).items()}
    shares = None if set(model.heads.shares) == {1.0} else model.heads.shares
    expected = plain_model.loss(weights, series, model.size, shares)
    expected.backward()
    found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    gradients = official({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
    assert set(gradients) == set(weights)
    for name, gradient in gradients.items():
        wanted = weights[name].grad
        wanted = torch.zeros_like(weights[name]) if wanted is None else wanted  # an expert that nobody chose
        torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-10 * max(float(wanted.abs().max()), 1e-3), msg=name)


def official(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return to_official(tensors, SMALL)


def ones(series: Tensor) -> Tensor:
    return torch.ones_like(series, dtype=torch.bool)


def test_loss_and_every_gradient_equal_the_plain_formulation() -> None:
    model, (x, y) = model_of(), points(2, 13)
    compare(model, model.loss(x, y), [(a, b, ones(a)) for a, b in zip(x, y, strict=True)])


@pytest.mark.parametrize("shares", [(1.0, 2.0, 0.5), (0.0, 0.0, 3.0), (1e-3, 1e3, 0.0)])
def test_heads_count_by_their_shares(shares: tuple[float, ...]) -> None:
    model, (x, y) = model_of(), points(2, 13)
    model.heads.shares = shares
    compare(model, model.loss(x, y), [(a, b, ones(a)) for a, b in zip(x, y, strict=True)])
    ends = [0, 1, 4, 12]
    grads = model.heads.weight.grad
    assert grads is not None
    moved = [bool(grads[begin:end].abs().max() > 0) for begin, end in pairwise(ends)]
    assert moved == [share > 0 for share in shares], "a head that counts nothing learns nothing"


def test_equal_shares_leave_every_bit_of_the_loss_and_their_size_does_not_matter() -> None:
    model, (x, y) = model_of(dtype=torch.float32), points(2, 13)
    x, y = x.float(), y.float()
    before = model.loss(x, y)
    model.heads.shares = (2.0, 2.0, 2.0)
    assert torch.equal(model.loss(x, y), before)


@pytest.mark.parametrize("lengths", [None, torch.tensor([12, 1, 7])], ids=["mask", "lengths"])
def test_masked_labels_count_nowhere(lengths: Tensor | None) -> None:
    model, (x, y) = model_of(), points(3, 12)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.7
    if lengths is not None:  # masks from the left
        mask = torch.arange(12) < lengths.unsqueeze(1)
    compare(model, model.loss(x, y, mask.int() if lengths is None else lengths), list(zip(x, y, mask, strict=True)))


def test_packed_series_are_as_if_each_had_a_row_of_its_own() -> None:
    model, (x, y) = model_of(), points(2, 12)
    lengths = [[5, 1, 6], [9, 3]]
    segments = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths])
    series = [
        (a, b, ones(a)) for row, parts in enumerate(lengths) for a, b in zip(x[row].split(parts), y[row].split(parts), strict=True)
    ]
    compare(model, model.loss(x, y, segments=segments), series)


@pytest.mark.parametrize("constant", [False, True])
def test_gradients_of_positions_that_are_nothing_stay_small(constant: bool) -> None:
    assert gradient_norm_of_zeros(constant, zero_biases=False) < 100


def test_negative_control_with_biases_of_zero_such_gradients_are_nan() -> None:
    assert not gradient_norm_of_zeros(constant=False, zero_biases=True) < 1e15


def gradient_norm_of_zeros(constant: bool, *, zero_biases: bool) -> float:
    """Of twelve layers on a row that ends with filler, or that is a constant series."""
    torch.manual_seed(0)
    model, (x, y) = TimeMoe(replace(SIZES["50m"], experts=4)), points(1, 24)
    segments = torch.zeros(1, 24, dtype=torch.int64)
    if constant:
        x, y = 0 * x, 0 * y
    else:
        x[:, 20:], segments[:, 20:] = 0.0, -1
    if zero_biases:
        with torch.no_grad():
            for layer in model.layers:
                layer.attention.qkv.bias.zero_()
    model.loss(x.float(), y.float(), segments=segments).backward()
    return float(torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None]))


@pytest.mark.parametrize(("name", "parameters", "active"), [("50m", 113_352_192, 49_651_200), ("200m", 453_196_800, 198_392_832)])
def test_parameters_are_as_many_as_published(name: str, parameters: int, active: int) -> None:
    with torch.device("meta"):
        model = TimeMoe(SIZES[name])
    assert sum(weight.numel() for weight in model.parameters()) == SIZES[name].num_parameters == parameters
    assert SIZES[name].parameters_with(SIZES[name].top_k) == active


@pytest.mark.parametrize("key", ["mask", "length"])
def test_a_batch_of_the_trainer_has_the_same_loss(key: str) -> None:
    model, (x, y) = model_of(), points(3, 12)
    lengths = torch.tensor([12, 3, 7])
    mask = torch.arange(12) < lengths.unsqueeze(1)
    batch = {"x": x, "y": y, key: mask if key == "mask" else lengths}
    assert time_moe_loss(model, batch) == model.loss(x, y, mask)
    valid = torch.tensor([True, False, True])
    assert time_moe_loss(model, {**batch, "valid": valid}) == model.loss(x, y, mask & valid.unsqueeze(1))
