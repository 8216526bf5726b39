"""The losses and the encoder equal the plain formulation: loss and every gradient, all methods, ragged, multivariate, with NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.recipes.timehut.plain_methods import PlainEncoder, PlainLoss, plain_views

from stoker_recipes.timehut import losses
from stoker_recipes.timehut.batches import draw_crops, gather_batch
from stoker_recipes.timehut.model import expand, from_tensors, initial_weights, kept_positions, to_tensors
from stoker_recipes.timehut.population import EncoderPopulation, make_population
from stoker_recipes.timehut.settings import EncoderSettings, make_settings

SIZES: dict[str, Any] = {"hidden": 4, "depth": 4, "width": 6, "dropout": 0.0, "batch_size": 3, "updates": 12}
MEMBERS = {
    "ts2vec": make_settings("ts2vec", **SIZES),
    "softclt": make_settings("softclt", **SIZES),
    "softclt, hard between steps": make_settings("softclt", tau_temporal=0.0, **SIZES),
    "timehut": make_settings("timehut", amc_temporal=0.3, **SIZES),
    "timehut without margin": make_settings("timehut", amc_instance=0.0, amc_temporal=0.0, **SIZES),
    "timehut, not compat": make_settings("timehut", amc_temporal=0.3, compat=False, **SIZES),
}


def series(kind: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    if kind == "univariate":
        return rng.normal(size=(5, 11, 1))
    data = rng.normal(size=(5, 13, 3))
    data[0, :3], data[0, -2:], data[2, 5, 1] = np.nan, np.nan, np.nan  # ragged, and a value that is missing
    return data


def plain(population: EncoderPopulation, one: EncoderSettings, data: np.ndarray, update: int, target: np.ndarray | None) -> Any:
    """Loss and gradient of the whole encoder in the plain formulation."""
    size = population.layout.size
    encoder = PlainEncoder(size.channels, hidden=size.hidden, depth=size.depth, width=size.width).double()
    first = initial_weights(size, one.seed)[None].double()
    whole = expand(population.weights.detach(), population.layout, first)
    encoder.load_state_dict(to_tensors(whole[0], size))
    crops = draw_crops(num_series=len(data), length=data.shape[1], batch_size=one.batch_size, updates=one.updates, seed=one.seed)
    first_view, second_view, first_mask, second_mask, overlap = plain_views(crops, update, data)
    rows = crops.rows[update]
    loss = PlainLoss(
        tau=float(population.tables.tau[update, 0]),
        amc_instance=one.amc_instance,
        amc_temporal=one.amc_temporal,
        margin=one.amc_margin,
        tau_temporal=one.tau_temporal,
        target=None if target is None else target[np.ix_(rows, rows)],
        compat=one.compat,
    )(encoder(first_view, first_mask)[:, -overlap:], encoder(second_view, second_mask)[:, :overlap])
    loss.backward()
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in encoder.named_parameters()}
    return float(loss.detach()), from_tensors(gradients, size)


@pytest.mark.promise("P29")
@pytest.mark.parametrize("kind", ["univariate", "multivariate"])
@pytest.mark.parametrize("name", MEMBERS)
def test_loss_and_gradients_are_those_of_the_plain_formulation(name: str, kind: str) -> None:
    one, data = MEMBERS[name], series(kind)
    target = np.random.default_rng(1).uniform(size=(5, 5)).astype(np.float32).astype(float) if one.method == "softclt" else None
    population = make_population(data, [one], targets=[target], dtype=torch.float64)
    kept = kept_positions(population.layout)
    dropped = torch.ones(len(initial_weights(population.layout.size, 0)), dtype=torch.bool)
    dropped[kept] = False
    assert dropped.any()
    length = population.tables.length
    for update in (0, 7):
        expected, gradient = plain(population, one, data, update, target)
        assert float(gradient[dropped].abs().max()) == 0  # exactly: these taps see padding alone
        static = gather_batch(population.tables, torch.tensor([update]), low=0, high=length, width=length)
        for batch in (population.batch(update), static):
            loss = population.losses_of(population.weights, batch)
            (found,) = torch.autograd.grad(loss.sum(), population.weights)
            assert abs(float(loss.detach()) - expected) < 1e-6 * abs(expected)
            assert float((found[0] - gradient[kept]).abs().max()) < 1e-6 * float(gradient.abs().max())


def test_levels_of_their_own_are_the_fused_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    one = MEMBERS["timehut"]
    population = make_population(series("univariate"), [one], dtype=torch.float64)
    fused = population.losses_of(population.weights, population.batch(3))
    monkeypatch.setattr(losses, "FUSED", 2)
    assert torch.allclose(population.losses_of(population.weights, population.batch(3)), fused, rtol=1e-12)


def test_identical_views_have_a_finite_gradient_in_float32() -> None:
    z = torch.randn(1, 4, 1, 6, 8).expand(1, 4, 2, 6, 8).clone().requires_grad_()
    ones = torch.ones(1)
    terms = losses.LossTerms(amc_instance=ones, amc_temporal=ones, margin=ones * 0.5, tau_temporal=ones * 0)
    losses.contrastive_loss(z, torch.tensor([6]), ones, terms).sum().backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


@pytest.mark.promise("P29", control=True)
def test_negative_control_the_authors_clamp_has_an_infinite_gradient() -> None:
    cosine = torch.ones(1, requires_grad=True)
    cosine.clamp(-1 + 1e-10, 1 - 1e-10).acos().square().sum().backward()
    assert cosine.grad is not None
    assert not torch.isfinite(cosine.grad).all()
