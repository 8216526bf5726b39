"""The kernel of attention within windows, forward and backward: one program a window and head, all in registers.

The backward pass computes scores anew, as that costs less than reading them. Products are in the type of the rows, sums in float32.
It reads a run of rows as overlapping windows where there are more rows than a window has. Needs Triton, which comes with the CUDA
builds of torch; torch knows it as an operation of its own, so that it can be compiled and captured.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from stoker.recipes.tfa.windows import num_windows, to_rows

FORWARD_WARPS = 4
BACKWARD_WARPS = 4


@cache
def _compiled() -> tuple[Any, Any]:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def forward(  # type: ignore[no-untyped-def]
        qkv, out, rows, windows, scale,
        T: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        head = tl.program_id(0)
        window = tl.program_id(1)
        width = HEADS * SIZE
        step = tl.arange(0, TILE)
        place = tl.arange(0, WIDE)
        inside = (step < T)[:, None] & (place < SIZE)[None, :]
        first = (window // windows) * rows + window % windows
        at = (first + step).to(tl.int64)[:, None] * (3 * width) + head * SIZE + place[None, :]
        q = tl.load(qkv + at, mask=inside, other=0.0)
        k = tl.load(qkv + at + width, mask=inside, other=0.0)
        v = tl.load(qkv + at + 2 * width, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        scores = tl.where((step < T)[None, :], scores, float("-inf"))
        shares = tl.exp2(scores - tl.max(scores, 1)[:, None])
        total = tl.sum(shares, 1)
        mixed = tl.dot(shares.to(v.dtype), v, input_precision=PRECISION) / total[:, None]
        to = (window * T + step).to(tl.int64)[:, None] * width + head * SIZE + place[None, :]
        tl.store(out + to, mixed.to(out.dtype.element_ty), mask=inside)

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def backward(  # type: ignore[no-untyped-def]
        qkv, gradient, result, rows, windows, scale,
        T: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        head = tl.program_id(0)
        window = tl.program_id(1)
        width = HEADS * SIZE
        step = tl.arange(0, TILE)
        place = tl.arange(0, WIDE)
        inside = (step < T)[:, None] & (place < SIZE)[None, :]
        first = (window // windows) * rows + window % windows
        at = (first + step).to(tl.int64)[:, None] * (3 * width) + head * SIZE + place[None, :]
        q = tl.load(qkv + at, mask=inside, other=0.0)
        k = tl.load(qkv + at + width, mask=inside, other=0.0)
        v = tl.load(qkv + at + 2 * width, mask=inside, other=0.0)
        own = (window * T + step).to(tl.int64)[:, None]
        d_mixed = tl.load(gradient + own * width + head * SIZE + place[None, :], mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        scores = tl.where((step < T)[None, :], scores, float("-inf"))
        shares = tl.exp2(scores - tl.max(scores, 1)[:, None])
        shares = shares / tl.sum(shares, 1)[:, None]
        d_shares = tl.dot(d_mixed, tl.trans(v), input_precision=PRECISION)
        d_v = tl.dot(tl.trans(shares.to(v.dtype)), d_mixed, input_precision=PRECISION)
        d_scores = (shares * (d_shares - tl.sum(shares * d_shares, 1)[:, None]) * scale).to(q.dtype)
        d_q = tl.dot(d_scores, k, input_precision=PRECISION)
        d_k = tl.dot(tl.trans(d_scores), q, input_precision=PRECISION)
        to = result + own * (3 * width) + head * SIZE + place[None, :]
        tl.store(to, d_q.to(result.dtype.element_ty), mask=inside)
        tl.store(to + width, d_k.to(result.dtype.element_ty), mask=inside)
        tl.store(to + 2 * width, d_v.to(result.dtype.element_ty), mask=inside)

    return forward, backward


def _launch(kernel: Any, qkv: torch.Tensor, *others: torch.Tensor, heads: int, length: int, warps: int) -> None:
    runs, rows, _ = qkv.shape
    size = qkv.shape[2] // 3 // heads
    windows = num_windows(rows, length)
    kernel[(heads, runs * windows)](
        qkv, *others, rows, windows, size**-0.5,
        T=length, TILE=_power(length), HEADS=heads, SIZE=size, WIDE=_power(size), PRECISION="ieee", num_warps=warps,
    )  # fmt: skip


def _power(number: int) -> int:
    """The smallest power of two that holds so many, and that a product of tiles can have as a side."""
    return max(16, 1 << (number - 1).bit_length())


@torch.library.custom_op("stoker::window_attention", mutates_args=())
def window_attention(qkv_snc: torch.Tensor, heads: int, length: int) -> torch.Tensor:
    """[s * w, t, d] from queries, keys and values of rows [s, n, 3 d]."""
    qkv = qkv_snc.contiguous()
    out = _empty(qkv, length)
    _launch(_compiled()[0], qkv, out, heads=heads, length=length, warps=FORWARD_WARPS)
    return out


@window_attention.register_fake
def _(qkv_snc: torch.Tensor, heads: int, length: int) -> torch.Tensor:
    return _empty(qkv_snc, length)


@torch.library.custom_op("stoker::window_attention_backward", mutates_args=())
def window_attention_backward(qkv_snc: torch.Tensor, gradient: torch.Tensor, heads: int, length: int) -> torch.Tensor:
    """The gradient of queries, keys and values of each window: [s * w, t, 3 d]."""
    qkv = qkv_snc.contiguous()
    result = _empty(qkv, length, parts=3)
    _launch(_compiled()[1], qkv, gradient.contiguous(), result, heads=heads, length=length, warps=BACKWARD_WARPS)
    return result


@window_attention_backward.register_fake
def _(qkv_snc: torch.Tensor, gradient: torch.Tensor, heads: int, length: int) -> torch.Tensor:
    return _empty(qkv_snc, length, parts=3)


def _empty(qkv: torch.Tensor, length: int, parts: int = 1) -> torch.Tensor:
    runs, rows, width = qkv.shape
    return qkv.new_empty(runs * num_windows(rows, length), length, width // 3 * parts)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    qkv, ctx.heads, ctx.length = inputs
    ctx.save_for_backward(qkv)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    (qkv,) = ctx.saved_tensors
    each = window_attention_backward(qkv, gradient, ctx.heads, ctx.length)
    return each if qkv.shape[1] == ctx.length else to_rows(each, qkv.shape[0]), None, None


window_attention.register_autograd(_backward, setup_context=_keep)
