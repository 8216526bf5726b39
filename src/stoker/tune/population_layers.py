"""Attention and layer norm of all members at once. While a population computes, these functions of torch are replaced:

float32 on a GPU  by fused kernels (`stoker.tune.population_kernels`), where Triton is installed and sequences are short
other attention   members become rows of the batch, because torch would loop over them in the backward pass
other layer norm  without weights, followed by one multiply-add: torch takes several more passes over the input
compiled          attention as matmuls and a softmax: the compiler cannot trace an autograd function under `vmap`
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Tensors = Sequence[torch.Tensor]


class BatchedKernels(TorchFunctionMode):
    """Within this mode layers are batched well by `vmap`. What it cannot do is left to torch.

    Args:
        fuses: Whether fused kernels may be used.
    """

    def __init__(self, *, fuses: bool = True) -> None:
        super().__init__()
        self._fuses = fuses

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found: torch.Tensor | None = None
        if func is functional.scaled_dot_product_attention:
            found = _attention(self._fuses, *args, **kwargs)
        elif func is functional.layer_norm:
            found = _layer_norm(self._fuses, *args, **kwargs)
        return func(*args, **kwargs) if found is None else found


def can_fuse(*tensors: torch.Tensor) -> bool:
    """Whether fused kernels can compute these tensors."""
    is_here = all(one.is_cuda and one.dtype == torch.float32 for one in tensors)
    return is_here and not torch.compiler.is_compiling() and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _attention(
    fuses: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor | None:
    """None for dropout, learned masks, and shapes that torch broadcasts."""
    sizes = {(one.dim(), one.shape[:1] if one.dim() > 2 else None) for one in (query, key, value)}
    if dropout_p or len(sizes) > 1 or (attn_mask is not None and attn_mask.requires_grad):
        return None
    if torch.compiler.is_compiling():
        return _write_out(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    given = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    layer: BatchedLayer = FoldedAttention(is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    if fuses and not enable_gqa and can_fuse(query, key, value):
        from stoker.tune import population_kernels

        if population_kernels.is_short(query, key, value):
            layer = population_kernels.ShortAttention(is_causal=is_causal, scale=scale)
    return _Layer.apply(layer, *given)  # type: ignore[no-untyped-call, no-any-return]


def _layer_norm(
    fuses: bool,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    if fuses and weight is not None and bias is not None and len(normalized_shape) == 1 and can_fuse(input, weight, bias):
        from stoker.tune import population_kernels

        if input.shape[-1] <= population_kernels.NORM_TILE:
            return _Layer.apply(population_kernels.NarrowNorm(eps=eps), input, weight, bias)  # type: ignore[no-untyped-call, no-any-return]
    found = functional.layer_norm(input, normalized_shape, None, None, eps)
    if weight is None:
        return found if bias is None else found + bias
    return found * weight if bias is None else torch.addcmul(bias, found, weight)


def _write_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """Attention as matmuls."""
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1) @ value


# ---- layers with a gradient of their own ----


class BatchedLayer(Protocol):
    """Computes all members. Each tensor has the member as first dimension; what all members share has one."""

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The output [K, ...]."""

    def gradient(self, gradient: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of each tensor [K, ...]; None for a mask."""


class _Layer(torch.autograd.Function):
    """A layer, whose gradient is `_LayerGradient`."""

    @staticmethod
    def forward(layer: BatchedLayer, *tensors: torch.Tensor) -> torch.Tensor:
        return layer.forward(*(one.unsqueeze(0) for one in tensors)).squeeze(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.layer = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        found = _LayerGradient.apply(ctx.layer, *gradients, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return None, *found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], layer: BatchedLayer, *tensors: torch.Tensor) -> tuple[torch.Tensor, int]:
        return layer.forward(*_members_first(tensors, in_dims[1:])), 0


class _LayerGradient(torch.autograd.Function):
    """The gradients of the tensors of a layer."""

    @staticmethod
    def forward(layer: BatchedLayer, *tensors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        found = layer.gradient(*(one.unsqueeze(0) for one in tensors))
        return tuple(None if one is None else one.squeeze(0) for one in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        raise RuntimeError("the second derivative of attention or layer norm cannot be batched")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], layer: BatchedLayer, *tensors: torch.Tensor
    ) -> tuple[tuple[torch.Tensor | None, ...], tuple[int | None, ...]]:
        found = layer.gradient(*_members_first(tensors, in_dims[1:]))
        return found, tuple(None if one is None else 0 for one in found)


def _members_first(tensors: Tensors, in_dims: Sequence[int | None]) -> list[torch.Tensor]:
    return [one.unsqueeze(0) if dim is None else one.movedim(dim, 0) for one, dim in zip(tensors, in_dims, strict=True)]


def _expanded(tensors: Tensors) -> list[torch.Tensor]:
    """Tensors for all members, without a copy of what they share."""
    size = max(len(one) for one in tensors)
    return [one.expand(size, *one.shape[1:]) for one in tensors]


@dataclass(frozen=True, kw_only=True)
class FoldedAttention:
    """Attention by the kernel that a single model calls, with members as rows of the batch."""

    is_causal: bool
    scale: float | None
    enable_gqa: bool

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Of query, key, value, and perhaps a mask."""
        folded, mask = _fold(tensors[:3], tensors[3] if len(tensors) > 3 else None)
        return self._unfold(self._attend(folded, mask), tensors)

    def gradient(self, gradient: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """By torch's own kernels; the forward pass is computed again."""
        folded, mask = _fold((*tensors[:3], gradient), tensors[3] if len(tensors) > 3 else None)
        with torch.enable_grad():
            inputs = [one.detach().requires_grad_() for one in folded[:3]]
            output = self._attend(inputs, mask)
        found = torch.autograd.grad(output, inputs, folded[3])
        return *(self._unfold(one, tensors) for one in found), *([None] * (len(tensors) - 3))

    def _attend(self, folded: Tensors, mask: torch.Tensor | None) -> torch.Tensor:
        query, key, value = folded[:3]
        return functional.scaled_dot_product_attention(
            query, key, value, mask, 0.0, self.is_causal, scale=self.scale, enable_gqa=self.enable_gqa
        )

    def _unfold(self, found: torch.Tensor, tensors: Tensors) -> torch.Tensor:
        size = max(len(one) for one in tensors[:3])
        return found.view(size, -1, *found.shape[1:]) if tensors[0].dim() > 3 else found


def _fold(tensors: Tensors, mask: torch.Tensor | None) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Tensors and mask with members as rows of the batch."""
    members = _expanded(tensors)
    has_rows = members[0].dim() > 3
    folded = [one.flatten(0, 1) if has_rows else one for one in members]
    if mask is None:
        return folded, None
    if len(mask) == 1 and (mask.dim() < members[0].dim() or mask.shape[1] == 1):
        return folded, mask[0]  # the same for all rows of all members
    ones = [1] * (members[0].dim() - mask.dim())
    mask = mask.reshape(len(mask), *ones, *mask.shape[1:])
    if has_rows:
        mask = mask.expand(*members[0].shape[:2], *mask.shape[2:]).flatten(0, 1)
    return folded, mask
