"""The Triton kernels: losses and gradients are those of the code in torch. Without a GPU, TRITON_INTERPRET=1 runs them on a CPU."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from tests.recipes.running import multiplied_as

from stoker_recipes.timehut.batches import gather_batch
from stoker_recipes.timehut.population import make_population
from stoker_recipes.timehut.settings import EncoderSettings, make_settings

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
pytestmark = [pytest.mark.promise("P29"), *([] if DEVICE == "cpu" else [pytest.mark.gpu])]
SMALL: dict[str, Any] = {"hidden": 6, "depth": 4, "width": 10, "batch_size": 4, "updates": 8}
GAPS = np.random.default_rng(5).normal(size=(9, 12, 2)).astype(np.float32)
GAPS[2, 3], GAPS[4, 7:] = np.nan, np.nan
TARGET = np.random.default_rng(0).uniform(size=(9, 9))


def both(
    data: np.ndarray, members: list[EncoderSettings], update: int, *, soft: bool = False, **options: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Losses and gradients by torch in float64 on a CPU, and by the kernels in float32."""
    from stoker_recipes.timehut import gpu_step

    targets = [TARGET if soft and one.method == "softclt" else None for one in members]
    plain = make_population(data, members, targets=targets, dtype=torch.float64, **options)
    fast = make_population(data, members, targets=targets, device=DEVICE, **options)
    factors = torch.linspace(0.5, 1.5, len(members))
    batch = gather_batch(plain.tables, torch.tensor([update]), low=0, high=plain.tables.length, width=plain.tables.length)
    expected = plain.losses_of(plain.weights, batch)
    (expected * factors).sum().backward()
    with multiplied_as("highest"):
        number = torch.tensor([update], device=DEVICE)
        found = gpu_step.losses(fast.weights, number, fast.layout, fast.tables, fast.terms, dropout=fast.settings[0].dropout)
        (found * factors.to(DEVICE)).sum().backward()
    gradients = [one.weights.grad for one in (plain, fast)]
    assert gradients[0] is not None
    assert gradients[1] is not None
    parts = [torch.split(one.cpu().double(), plain.layout.sizes, 1) for one in gradients]
    return [expected.detach(), *parts[0]], [found.detach().cpu().double(), *parts[1]]


def compare(expected: list[torch.Tensor], found: list[torch.Tensor], tolerance: float = 2e-5) -> None:
    scale = max(float(one.abs().max()) for one in expected[1:])
    assert torch.allclose(found[0], expected[0], rtol=tolerance)
    for one, other in zip(expected[1:], found[1:], strict=True):
        assert float((one - other).abs().max()) < tolerance * scale


@pytest.mark.parametrize("update", [0, 3])
def test_losses_and_gradients_of_three_methods_with_gaps(update: int) -> None:
    members = [make_settings(method, seed=i, **SMALL) for i, method in enumerate(("timehut", "ts2vec", "softclt"))]
    compare(*both(GAPS, members, update, soft=True))


def test_corrected_losses_and_common_random_numbers() -> None:
    members = [make_settings("timehut", seed=i, compat=False, **SMALL) for i in (1, 2)]
    compare(*both(GAPS[:, :, :1], members, 2, crop_seeds=[4, 4]))


@pytest.mark.skipif(DEVICE == "cpu", reason="takes minutes in the interpreter")
@pytest.mark.parametrize(("num", "steps", "depth"), [(20, 24, 10), (9, 130, 10), (9, 600, 8), (9, 2, 3)])
def test_losses_and_gradients_at_sizes_of_real_data(num: int, steps: int, depth: int) -> None:
    data = np.random.default_rng(steps).normal(size=(num, steps, 1)).astype(np.float32)
    for method in ("timehut", "softclt"):
        members = [make_settings(method, seed=i, updates=8, depth=depth) for i in range(2)]
        compare(*both(data, members, 1), tolerance=1e-4)


def test_negative_control_another_update_has_other_gradients() -> None:
    members = [make_settings("timehut", **SMALL)]
    expected, _ = both(GAPS, members, 0)
    _, found = both(GAPS, members, 1)
    with pytest.raises(AssertionError):
        compare(expected, found)
