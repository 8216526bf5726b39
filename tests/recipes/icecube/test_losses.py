"""The loss: stable, equal to the published form where that is exact, and its schedule; angles without a floor."""

from __future__ import annotations

import math

import pytest
import torch
from tests.recipes.icecube.plain_model import vmf_loss

from stoker_recipes.icecube.losses import (
    MAX_KAPPA,
    VmfLoss,
    VmfMixture,
    angular_error,
    kappa_penalty,
    log_density,
    make_mixture,
    to_direction,
)


def test_a_density_integrates_to_one() -> None:
    zenith = (torch.arange(400, dtype=torch.float64) + 0.5) * math.pi / 400
    azimuth = (torch.arange(400, dtype=torch.float64) + 0.5) * 2 * math.pi / 400
    grid = torch.cartesian_prod(azimuth, zenith)
    mixture = make_mixture(torch.tensor([[0.3, -0.5, 0.2, 1.0, 0.1, 1.0, 0.0, 0.4, 30.0, -1.0, 0.0, 0.1, -1.0, 3.0, 0.4]]).double())
    each = VmfMixture(*(part.expand(len(grid), *part.shape[1:]) for part in mixture))
    area = torch.sin(grid[:, 1]) * (math.pi / 400) * (2 * math.pi / 400)
    assert abs(float((log_density(each, to_direction(grid)).exp() * area).sum()) - 1) < 1e-4


@pytest.mark.promise("P29")
@pytest.mark.parametrize("kappa", [1.0, 50.0, 9_999.0])
def test_float32_is_as_exact_at_a_large_kappa(kappa: float) -> None:
    """The published form adds -kappa and +kappa mu n: it loses kappa * 1e-7. This one does not."""
    n = to_direction(torch.tensor([[1.0, 1.2]], dtype=torch.float64))
    mu = to_direction(torch.tensor([[1.003, 1.199]], dtype=torch.float64))
    mixture = VmfMixture(mu[None], torch.tensor([[kappa]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
    exact = log_density(mixture, n)
    narrow = log_density(VmfMixture(*(part.float() for part in mixture)), n.float())
    assert abs(float(narrow - exact)) < 2e-6 * max(1.0, abs(float(exact)))


@pytest.mark.promise("P29", control=True)
def test_negative_control_the_published_form_cancels() -> None:
    mu, n = (to_direction(torch.tensor([[a, b]], dtype=torch.float64)) for a, b in ((1.003, 1.199), (1.0, 1.2)))
    kappa = 9_999.0

    def published(mu: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = torch.tensor(kappa, dtype=mu.dtype)
        return k.log() - math.log(4 * math.pi) - (k - math.log(2) + torch.log1p(-torch.exp(-2 * k))) + k * (mu * n).sum()

    exact, narrow = published(mu, n), published(mu.float(), n.float())
    assert abs(float(narrow - exact)) > 1e-4


@pytest.mark.promise("P29")
def test_loss_and_gradient_equal_the_published_form() -> None:
    raw = torch.randn(50, 15, dtype=torch.float64, requires_grad=True)
    target = torch.rand(50, 2, dtype=torch.float64) * torch.tensor([2 * math.pi, math.pi])
    loss = VmfLoss(100).double().train()
    found = loss(raw, target)["loss"]
    expected = vmf_loss(raw, target, 1e-4)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, raw), torch.autograd.grad(expected, raw))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e4])
def test_extreme_numbers_of_the_head_have_finite_gradients(size: float) -> None:
    raw = (size * torch.randn(64, 15)).requires_grad_()
    VmfLoss(10).train()(raw, torch.rand(64, 2))["loss"].backward()
    assert raw.grad is not None
    assert raw.grad.isfinite().all()
    assert make_mixture(raw).kappa.max() <= MAX_KAPPA
    assert make_mixture(raw).kappa.min() >= 1


def test_the_penalty_follows_the_published_schedule() -> None:
    total = 317_390
    steps = torch.tensor([0, 1, 50_000, 95_216, 95_217, 300_000])
    expected = [1e-4 * max(0.0, 1 - step / (0.3 * total)) for step in steps.tolist()]
    assert kappa_penalty(steps, total).tolist() == pytest.approx(expected, rel=1e-9)
    assert kappa_penalty(steps, 0).tolist() == [0.0] * 6


def test_angular_errors_have_no_floor() -> None:
    target = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.5, 0.0]], dtype=torch.float64)
    predicted = target + torch.tensor([[0.0, 1e-9], [math.pi, math.pi - 2.0], [1.0, 0.0]], dtype=torch.float64)
    # Equal directions with other azimuths at the pole; opposite ones; and 1e-9 radians.
    assert angular_error(predicted, target).tolist() == pytest.approx([math.degrees(1e-9), 180.0, 0.0], rel=1e-6, abs=1e-12)
