"""Attention and layer norm of all members at once.

Torch batches `scaled_dot_product_attention` forward at best; backward it loops over the members. While a population computes, the function
is replaced, in one of two ways. Which is faster depends on sizes and device, so a GPU measures both.

    folded       members become rows of the batch, both ways: each row is computed by the kernel that a single model calls
    written out  matmuls and a softmax, which are faster for short sequences and narrow heads

A layer norm with the weights of each member takes torch several more passes over its input than one without weights and one
multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from stoker._clock import now_ns

MOST_MEASURED, ROUNDS, CLEARLY = 64, 3, 0.9
"""Members and rounds of a comparison of both ways; written out, attention also has to be that much faster, as it takes more memory."""
Options = tuple[bool, float | None, bool]
"""is_causal, scale, enable_gqa."""
Attention = tuple[list[torch.Size], Options]
"""Shapes of query, key and value of one member, and options."""


class BatchedKernels(TorchFunctionMode):
    """Within this mode attention is batched well by `vmap`. What it cannot do is left to torch: dropout, and learned masks.

    Args:
        writes_out: Whether attention is written out.
    """

    def __init__(self, *, writes_out: bool = False) -> None:
        super().__init__()
        self._writes_out = writes_out
        self.seen: Attention | None = None
        """The last call of attention."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and (found := _arguments(*args, **kwargs)) is not None:
            if torch.compiler.is_compiling():
                return _write_out(*found)
            self.seen = [one.shape for one in found[:3]], found[4]
            if self._writes_out:
                return _write_out(*found)
            return _Attention.apply(*found)  # type: ignore[no-untyped-call]
        if func is functional.layer_norm:
            return _layer_norm(*args, **kwargs)
        return func(*args, **kwargs)


def _layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    found = functional.layer_norm(input, normalized_shape, None, None, eps)
    if weight is None:
        return found if bias is None else found + bias
    return found * weight if bias is None else torch.addcmul(bias, found, weight)


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


def is_faster_written_out(seen: Attention, *, members: int, like: torch.Tensor) -> bool:
    """Whether attention of these shapes is faster written out, forward and backward, on the GPU of a tensor."""
    shapes, options = seen
    members = min(members, MOST_MEASURED)
    given = [torch.ones((members, *shape), dtype=like.dtype, device=like.device) for shape in shapes]
    given = [(one.flatten(0, 1) if one.dim() > 3 else one).requires_grad_() for one in given]

    def seconds(attend: Callable[..., torch.Tensor]) -> float:
        begin = 0
        for number in range(1 + ROUNDS):
            if number == 1:
                torch.cuda.synchronize(like.device)
                begin = now_ns()
            found = attend(*given, None, options)
            torch.autograd.grad(found, given, found.detach())
        torch.cuda.synchronize(like.device)
        return (now_ns() - begin) / 1e9

    try:
        return seconds(_write_out) < CLEARLY * seconds(_Attention.apply)
    except torch.OutOfMemoryError:
        return False


def _write_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, options: Options
) -> torch.Tensor:
    """Attention as matmuls. The compiler gets it too: it cannot trace an autograd function under `vmap`, and traces a loop member by
    member."""
    is_causal, scale, enable_gqa = options
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
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
    return found.view(size, -1, *found.shape[1:]) if has_rows else found


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
            found = _attend(inputs[0], inputs[1], inputs[2], mask, options)
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
