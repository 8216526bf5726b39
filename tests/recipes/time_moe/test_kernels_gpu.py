"""On a GPU: kernels equal their plain twins forward and backward."""

from __future__ import annotations

import pytest
import torch
from tests.recipes.running import multiplied_as
from torch import Tensor

from stoker_recipes.time_moe.layers import (
    GPU_TILE,
    attend,
    gated_backward,
    grouped_product,
    num_rows,
    route,
    runs_of,
    sort_by_expert,
    sort_plainly,
    weights_by_group,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # torch warns of what it does itself as it compiles
]


@pytest.mark.parametrize(("positions", "k", "experts"), [(5000, 2, 8), (1, 2, 8), (700, 3, 5), (40_000, 2, 8)])
def test_sorting_is_that_of_plain_operations(positions: int, k: int, experts: int) -> None:
    for chosen in (torch.randint(0, experts, (positions, k), device="cuda"), torch.full((positions, k), 3, device="cuda")):
        found = sort_by_expert(chosen, experts, GPU_TILE)
        assert len(found[0]) == num_rows(positions * k, experts, GPU_TILE)
        assert all(map(torch.equal, found, sort_plainly(chosen, experts, GPU_TILE)))


def test_the_rows_of_a_program_are_of_one_group() -> None:
    from stoker_recipes.time_moe import kernels

    assert all(GPU_TILE % tile.left == 0 for tile in (kernels.ROWS_TILE, kernels.ROWS_TILE_WIDE))


def plainly(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """One product a group."""
    begins = [0, *ends.tolist()]
    return torch.cat([rows[a:b] @ matrix.T for matrix, a, b in zip(weights, begins, begins[1:], strict=False)])


@pytest.mark.parametrize(
    ("dtype", "n", "k", "products", "allowed"),
    [
        (torch.float32, 96, 40, "highest", 3e-6),
        (torch.float32, 256, 384, "high", 1e-3),
        (torch.float16, 96, 40, "highest", 5e-3),
        (torch.bfloat16, 1536, 384, "highest", 5e-3),
    ],
)
def test_a_grouped_matmul_is_one_matmul_per_group(dtype: torch.dtype, n: int, k: int, products: str, allowed: float) -> None:
    torch.manual_seed(0)
    chosen = torch.randint(0, 7, (900, 2), device="cuda")  # the last expert gets nothing
    routing = route(chosen, 8)
    last = int(routing.ends[-1])
    rows = torch.randn(len(routing.choice), k, device="cuda", dtype=dtype)
    weights = torch.randn(8, n, k, device="cuda")
    gradient = torch.randn(len(rows), n, device="cuda", dtype=dtype)
    rows[last:] = torch.nan  # belongs to nobody, and must reach nothing
    found, expected = [], []
    with multiplied_as(products):
        for results, product, kind in ((found, grouped_product, dtype), (expected, plainly, torch.float64)):
            matrices = (weights if kind == dtype else weights.to(dtype).to(kind)).detach().requires_grad_()
            given = [rows.to(kind).detach().requires_grad_(), matrices]
            out = product(*given, routing.ends)
            to_rows, to_weights = torch.autograd.grad(out[:last], given, gradient[:last].to(kind))
            results += [out[:last].double(), to_rows[:last].double(), to_weights.double()]
    for one, other in zip(found, expected, strict=True):
        assert apart(one, other) < allowed


def test_sums_are_the_same_each_time_where_torch_is_asked_for_that() -> None:
    routing = route(torch.randint(0, 8, (3000, 2), device="cuda"), 8)
    left, right = (torch.randn(len(routing.choice), 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    chunks = weights_by_group(left, right, routing.ends)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (weights_by_group(left, right, routing.ends) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)
    assert apart(chunks, first) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gates_are_those_of_plain_operations(dtype: torch.dtype) -> None:
    gate_up, shares = torch.randn(301, 96, device="cuda", dtype=dtype), torch.rand(301, device="cuda")
    gradient = torch.randn(301, 48, device="cuda", dtype=dtype)
    found, expected = gated_backward(gradient, gate_up, shares), gated_backward(gradient.cpu(), gate_up.cpu(), shares.cpu())
    for one, other in zip(found, expected, strict=True):
        assert apart(one.cpu(), other) < (1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(
    ("dtype", "products", "allowed", "packed"),
    [
        (torch.float32, "highest", 1e-5, True),
        (torch.float32, "high", 3e-3, False),
        (torch.bfloat16, "highest", 2e-2, False),
        (torch.bfloat16, "highest", 2e-2, True),
    ],
)
def test_attention_is_that_with_a_mask(dtype: torch.dtype, products: str, allowed: float, packed: bool) -> None:
    torch.manual_seed(0)
    joined = torch.randn(2, 333, 3, 2, 32, device="cuda", dtype=dtype)
    segments = (torch.rand(2, 333, device="cuda") < 0.02).cumsum(1)
    runs = runs_of(segments if packed else torch.zeros_like(segments))
    gradient = torch.randn(2, 333, 2, 32, device="cuda", dtype=dtype)
    found, expected = [], []
    with multiplied_as(products):
        for results, kind, within in ((found, dtype, runs if packed else None), (expected, torch.float64, runs)):
            given = joined.to(kind).detach().requires_grad_()
            out = attend(*given.unbind(2), within)
            results += [out, *torch.autograd.grad(out, given, gradient.to(kind))]
    for one, other in zip(found, expected, strict=True):
        assert apart(one, other) < allowed


def apart(one: Tensor, other: Tensor) -> float:
    """Size of the difference, as a share."""
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-6))
