"""Attention and layer norm of all members at once equal those that torch computes member by member."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.func import grad_and_value, vmap
from torch.nn import functional

from stoker.tune import population_layers
from stoker.tune.population_layers import BatchedKernels

MEMBERS, STEPS, WIDTH = 3, 5, 8


def both(
    lead: tuple[int, ...],
    *,
    mask: torch.Tensor | None = None,
    mask_dim: int | None = None,
    shared: bool = False,
    **options: Any,
) -> tuple[Any, Any]:
    """Gradients and values of attention under `vmap`: member by member, and within the mode."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(MEMBERS, *lead, STEPS, WIDTH, dtype=torch.float64) for _ in range(3))
    dims = (None if shared else 0, 0, 0, mask_dim)

    def value(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q.tanh(), k, v, attn_mask=mask, **options).square().mean()

    function = vmap(grad_and_value(value, argnums=(0, 1, 2)), in_dims=dims)
    given = q[0] if shared else q, k, v, mask
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it loops over members
        expected = function(*given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with BatchedKernels():
            return expected, function(*given)


def assert_equal(expected: Any, found: Any) -> None:
    for one, other in zip([*expected[0], expected[1]], [*found[0], found[1]], strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lead", [(), (4,), (4, 2)])
def test_attention_is_that_of_each_member(lead: tuple[int, ...]) -> None:
    assert_equal(*both(lead))
    assert_equal(*both(lead, is_causal=True))
    assert_equal(*both(lead, shared=True, scale=0.3))


@pytest.mark.parametrize("shape", [(5, 5), (1, 5, 5), (2, 5, 5), (4, 1, 5, 5), (1, 1, 1, 5), (4, 2, 5, 5)])
def test_masks_of_all_shapes(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    assert_equal(*both((4, 2), mask=torch.randn(shape, dtype=torch.float64)))
    assert_equal(*both((4, 2), mask=torch.randn(MEMBERS, *shape, dtype=torch.float64), mask_dim=0))
    assert_equal(*both((4, 2), mask=torch.rand(shape) > 0.2))


def test_negative_control_another_scale_is_seen() -> None:
    expected, _ = both((4, 2))
    _, found = both((4, 2), scale=0.3)
    assert not torch.allclose(expected[1], found[1])


def test_dropout_and_learned_masks_are_left_to_torch() -> None:
    q = torch.randn(2, STEPS, WIDTH)
    assert population_layers._attention(True, q, q, q, dropout_p=0.1) is None
    assert population_layers._attention(True, q, q, q, torch.zeros(STEPS, STEPS, requires_grad=True)) is None
    assert population_layers._attention(True, q, q, q, torch.zeros(STEPS, STEPS)) is not None


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}])
def test_attention_for_the_compiler_is_that_of_torch(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, STEPS, WIDTH, dtype=torch.float64) for heads in (4, 2, 2))
    k, v = (k, v) if "enable_gqa" in options else (one.repeat_interleave(2, 1) for one in (k, v))
    masks = (
        [None] if "is_causal" in options else [None, torch.randn(STEPS, STEPS, dtype=torch.float64), torch.rand(STEPS, STEPS) > 0.1]
    )
    for mask in masks:
        expected = functional.scaled_dot_product_attention(q, k, v, mask, **options)
        chosen = {"is_causal": False, "scale": None, "enable_gqa": False, **options}
        assert torch.allclose(population_layers._write_out(q, k, v, mask, **chosen), expected, rtol=0, atol=1e-12)


def test_a_second_derivative_is_refused() -> None:
    def value(q: torch.Tensor) -> torch.Tensor:
        gradient, _ = grad_and_value(lambda q: functional.scaled_dot_product_attention(q, q, q).mean())(q)
        return gradient.square().sum()

    with BatchedKernels(), pytest.raises(RuntimeError, match="second derivative"):
        vmap(grad_and_value(value))(torch.randn(MEMBERS, 2, STEPS, WIDTH))


@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_norm_has_the_weights_of_each_member(has_bias: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(MEMBERS, *shape, dtype=torch.float64) for shape in ((4, WIDTH), (WIDTH,), (WIDTH,)))

    def value(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (WIDTH,), weight, bias if has_bias else None, 1e-3).cos().mean() + 0 * bias.sum()

    function = vmap(grad_and_value(value, argnums=(0, 1, 2)))
    expected = function(x, weight, bias)
    with BatchedKernels():
        assert_equal(expected, function(x, weight, bias))
