"""Attention of all members in one call of torch's fused kernel.

Torch batches `scaled_dot_product_attention` forward at best; backward it loops over the members. `fold_attention` replaces the function
while a population computes: members become rows of the batch, both ways. Each row is computed by the kernel that a single model calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Options = tuple[bool, float | None, bool]
"""is_causal, scale, enable_gqa."""


class FoldedAttention(TorchFunctionMode):
    """Within this mode attention can be batched by `vmap`. What the fold cannot do is left to torch: dropout, and learned masks."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            found = _arguments(*args, **kwargs)
            if found is not None and torch.compiler.is_compiling():
                return _write_out(*found)
            if found is not None:
                return _Attention.apply(*found)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


def _arguments(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, ...] | None:
    """What is given to `_Attention`; None for what cannot be folded."""
    sizes = {(one.dim(), one.shape[:1] if one.dim() > 2 else None) for one in (query, key, value)}
    if dropout_p or len(sizes) > 1 or (attn_mask is not None and attn_mask.requires_grad):
        return None
    return query, key, value, attn_mask, (is_causal, scale, enable_gqa)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, options: Options
) -> torch.Tensor:
    is_causal, scale, enable_gqa = options
    return functional.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)


def _write_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, options: Options
) -> torch.Tensor:
    """Attention as matmuls, for the compiler: it cannot trace an autograd function under `vmap`, and traces a loop member by member."""
    is_causal, scale, enable_gqa = options
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1) @ value


def _fold(
    size: int, in_dims: Sequence[int | None], tensors: Sequence[torch.Tensor], mask: torch.Tensor | None, mask_dim: int | None
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Tensors and mask with members as rows of the batch."""
    members = [
        one.unsqueeze(0).expand(size, *one.shape) if dim is None else one.movedim(dim, 0)
        for one, dim in zip(tensors, in_dims, strict=True)
    ]
    has_rows = members[0].dim() > 3
    folded = [one.flatten(0, 1) if has_rows else one for one in members]
    if mask is None:
        return folded, None
    if mask_dim is None and (mask.dim() < members[0].dim() - 1 or len(mask) == 1):
        return folded, mask  # the same for all rows of all members
    mask = mask.unsqueeze(0) if mask_dim is None else mask.movedim(mask_dim, 0)
    ones = [1] * (members[0].dim() - mask.dim())
    mask = mask.reshape(len(mask), *ones, *mask.shape[1:])
    if has_rows:
        mask = mask.expand(size, members[0].shape[1], *mask.shape[2:]).flatten(0, 1)
    return folded, mask


def _unfold(found: torch.Tensor, size: int, like: torch.Tensor, dim: int | None) -> torch.Tensor:
    """A result with the members as first dimension again; `like` is an argument before it was folded."""
    has_rows = like.dim() - (dim is not None) > 2
    return found.unflatten(0, (size, -1)) if has_rows else found


class _Attention(torch.autograd.Function):
    """Attention, whose gradient is `_AttentionGradient`."""

    @staticmethod
    def forward(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, options: Options
    ) -> torch.Tensor:
        return _attend(query, key, value, mask, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.options = inputs[4]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        found = _AttentionGradient.apply(*gradients, *ctx.saved_tensors, ctx.options)  # type: ignore[no-untyped-call]
        return *found, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Options,
    ) -> tuple[torch.Tensor, int]:
        folded, mask = _fold(info.batch_size, in_dims[:3], (query, key, value), mask, in_dims[3])
        found = _Attention.apply(*folded, mask, options)  # type: ignore[no-untyped-call]
        return _unfold(found, info.batch_size, query, in_dims[0]), 0


class _AttentionGradient(torch.autograd.Function):
    """The gradients of query, key and value, by torch's own kernels; the forward pass is computed again."""

    @staticmethod
    def forward(
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Options,
    ) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            inputs = [one.detach().requires_grad_() for one in (query, key, value)]
            found = _attend(*inputs, mask, options)
        return torch.autograd.grad(found, inputs, gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        raise RuntimeError("the second derivative of attention cannot be batched")

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Options,
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        folded, mask = _fold(info.batch_size, in_dims[:4], (gradient, query, key, value), mask, in_dims[4])
        found = _AttentionGradient.apply(*folded, mask, options)  # type: ignore[no-untyped-call]
        return tuple(_unfold(one, info.batch_size, query, in_dims[1]) for one in found), (0, 0, 0)
