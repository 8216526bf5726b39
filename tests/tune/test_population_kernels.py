"""Fused kernels equal what torch computes member by member."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.func import grad_and_value, vmap
from torch.nn import functional

from stoker.tune.population_layers import BatchedKernels, _Layer

pytestmark = pytest.mark.gpu

MEMBERS, ROWS, HEADS, STEPS, WIDTH = 3, 4, 2, 48, 16


@pytest.fixture(autouse=True, params=["highest", "high"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The layers that were computed, by name."""
    names: list[str] = []
    original = _Layer.vmap

    def spy(info: Any, in_dims: Any, layer: Any, *tensors: torch.Tensor) -> Any:
        names.append(type(layer).__name__)
        return original(info, in_dims, layer, *tensors)

    monkeypatch.setattr(_Layer, "vmap", staticmethod(spy))
    return names


def check(value: Callable[..., torch.Tensor], given: tuple[Any, ...], in_dims: tuple[int | None, ...] | int = 0) -> None:
    """Compare gradients and values in float32 within the mode with those of torch in float64, member by member."""
    function = vmap(grad_and_value(value, argnums=(0, 1, 2)), in_dims=in_dims)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it loops over members
        expected = function(*(one.double() if one is not None and one.is_floating_point() else one for one in given))
    with BatchedKernels():
        found = function(*given)
    tolerance = 1e-5 if torch.get_float32_matmul_precision() == "highest" else 1e-2
    for one, other in zip([*expected[0], expected[1]], [*found[0], found[1]], strict=True):
        assert (one - other).abs().max() < tolerance * one.abs().max()


def heads(steps: int = STEPS, width: int = WIDTH, *, rows: tuple[int, ...] = (ROWS,)) -> torch.Tensor:
    """Heads as a projection leaves them: those of a step lie side by side."""
    return torch.randn(MEMBERS, *rows, steps, HEADS, width, device="cuda").transpose(-2, -3)


def attention(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v, mask=None: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options).cos().sum()


@pytest.mark.parametrize(("steps", "width"), [(48, 16), (5, 8), (64, 64)])
def test_attention_is_that_of_each_member(used: list[str], steps: int, width: int) -> None:
    torch.manual_seed(0)
    given = tuple(heads(steps, width) for _ in range(3))
    check(attention(), given)
    check(attention(is_causal=True, scale=0.3), given)
    assert used == ["ShortAttention"] * 2


def test_attention_without_rows_with_other_keys_and_shared_queries(used: list[str]) -> None:
    torch.manual_seed(0)
    check(attention(), tuple(heads(rows=()) for _ in range(3)))
    check(attention(), (heads(), heads(30), heads(30)))
    check(attention(), (heads()[0], heads(), heads()), (None, 0, 0))
    assert used == ["ShortAttention"] * 3


@pytest.mark.parametrize("shape", [(5, 5), (HEADS, 5, 5), (ROWS, 1, 5, 5), (1, 1, 1, 5)])
def test_masks_of_all_shapes(used: list[str], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    given = tuple(heads(5) for _ in range(3))
    check(attention(), (*given, torch.randn(shape, device="cuda")), (0, 0, 0, None))
    check(attention(), (*given, torch.randn(MEMBERS, *shape, device="cuda")), (0, 0, 0, 0))
    seen = torch.rand(shape, device="cuda") > 0.3
    seen[..., 0] = True
    check(attention(), (*given, seen), (0, 0, 0, None))
    assert used == ["ShortAttention"] * 3


def test_long_sequences_wide_heads_and_float64_are_left_to_torch(used: list[str]) -> None:
    for given in (heads(70), heads(5, 80), heads(5).double()):
        with BatchedKernels():
            vmap(grad_and_value(attention()))(given, given, given)
    assert used == ["FoldedAttention"] * 3


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (70, 24), (3000, 64), (5, 1000)])
def test_layer_norm_has_the_weights_of_each_member(used: list[str], rows: int, width: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(MEMBERS, *shape, device="cuda") for shape in ((rows, width), (width,), (width,)))

    def value(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(3 + x, (width,), weight, bias, 1e-3).cos().sum()

    check(value, (x, weight, bias))
    check(value, (x[0], weight, bias), (None, 0, 0))
    assert used == ["NarrowNorm"] * 2


def test_negative_control_another_scale_is_seen() -> None:
    q = heads()
    with BatchedKernels(), pytest.raises(AssertionError):
        check(lambda q, k, v: attention(scale=0.25 if q.dtype == torch.float32 else 0.5)(q, k, v), (q, q, q))
