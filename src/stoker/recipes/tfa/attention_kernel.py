"""Windows of rows and their gradient, and the Triton kernel of attention within windows.

Consecutive windows share all but one row. Axes: s runs of rows, n rows of a run, w windows of a run, t rows of a window, c numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


def num_windows(num_rows: int, length: int) -> int:
    """Windows of `length` rows in a run of rows."""
    return num_rows - length + 1


def to_windows(rows_snc: torch.Tensor, length: int) -> torch.Tensor:
    """All windows of each run, one after the other: [s * w, t, c]."""
    if rows_snc.shape[1] == length:
        return rows_snc
    windows: torch.Tensor = _Windows.apply(rows_snc, length)  # type: ignore[no-untyped-call]
    return windows


def to_rows(windows_wtc: torch.Tensor, num_runs: int) -> torch.Tensor:
    """The sum over all windows of each row: [s, n, c], in a fixed order, so that the bits are reproducible."""
    total, length, width = windows_wtc.shape
    windows = total // num_runs
    grid = windows_wtc.reshape(num_runs, windows, length, width)
    wide = torch.float64 if grid.dtype == torch.float64 else torch.float32
    if not grid.is_cuda:
        rows = grid.new_zeros(num_runs, windows + length - 1, width, dtype=wide)
        for place in range(length):
            rows[:, place : place + windows] += grid[:, :, place]
        return rows.to(grid.dtype)
    # The same as a gather, which compiles to one kernel.
    row = torch.arange(windows + length - 1, device=grid.device)[:, None]
    step = torch.arange(length, device=grid.device)[None, :]
    window = row - step
    is_one = (window >= 0) & (window < windows)
    parts = grid[:, window.clamp(0, windows - 1), step.expand_as(window)]
    return torch.where(is_one[None, :, :, None], parts, 0).sum(2, dtype=wide).to(grid.dtype)


class _Windows(torch.autograd.Function):
    """Overlapping windows with a deterministic gradient."""

    @staticmethod
    def forward(ctx: Any, rows_snc: torch.Tensor, length: int) -> torch.Tensor:
        ctx.num_runs = rows_snc.shape[0]
        windows = rows_snc.unfold(1, length, 1)  # [s, w, c, t], a view
        return windows.transpose(2, 3).reshape(-1, length, rows_snc.shape[2])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return to_rows(gradient, ctx.num_runs), None


# ---- attention within windows: one program per window and head, all in registers ----
#
# The backward pass computes scores again, which costs less than reading them. Matmuls are in the type of the rows, sums in float32.
# Needs Triton, which comes with the CUDA builds of torch; it is a custom op of torch, so that it can be compiled and captured.

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
    """The smallest power of two from `number` on that a tile can have as a side."""
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
