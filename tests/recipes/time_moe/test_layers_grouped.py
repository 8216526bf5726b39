"""Grouped products on the CPU: a loop, its gradients, and that compiling does not break it."""

from __future__ import annotations

import pytest
import torch

from stoker_recipes.time_moe import Size, TimeMoe
from stoker_recipes.time_moe.layers import grouped_product

pytestmark = [  # torch warns of what it does itself as it traces
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
ONE_LAYER = Size(hidden=16, intermediate=16, layers=1, heads=2, experts=3, top_k=2, horizons=(1, 4))
ENDS = torch.tensor([8, 8, 24], dtype=torch.int32)


def test_each_row_meets_the_matrix_of_its_group() -> None:
    rows, weights = torch.randn(30, 5), torch.randn(3, 4, 5)
    found = grouped_product(rows, weights, ENDS)
    for row in range(24):
        torch.testing.assert_close(found[row], weights[0 if row < 8 else 2] @ rows[row])


def test_gradients_of_products() -> None:
    torch.manual_seed(0)
    rows = torch.randn(24, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: grouped_product(a, b, ENDS), (rows, weights))


@pytest.mark.parametrize("packed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_model_is_traced_as_one_graph(packed: bool) -> None:
    """Traced with gradients, and run as traced; which code comes of it is not looked at here."""
    torch.manual_seed(0)
    model = TimeMoe(ONE_LAYER)
    x, y = torch.randn(2, 20), torch.randn(2, 20)
    segments = torch.tensor([[0] * 12 + [1] * 8, [0] * 20])
    given = (x, y, None, segments) if packed else (x, y, torch.tensor([20, 7]))
    found = []
    for one in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not packed):
            loss = one(*given)
        loss.backward()
        found.append((loss.detach(), *(weight.grad for weight in model.parameters())))
    torch.testing.assert_close(*found, rtol=1e-5 if packed else 1e-2, atol=1e-7 if packed else 1e-3)


def test_compiling_in_place_leaves_names_and_results() -> None:
    torch.manual_seed(0)
    model = TimeMoe(ONE_LAYER)
    x, y, names = torch.randn(2, 20), torch.randn(2, 20), list(model.state_dict())
    before = model.loss(x, y)
    model.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model.loss(x, y), before)
    assert list(model.state_dict()) == names
