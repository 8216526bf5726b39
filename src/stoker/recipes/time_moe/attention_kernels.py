"""Kernels of causal attention within runs, in Triton. Imported only where there is a GPU.

Scores are made block by block and never kept; blocks that no position may see are not visited, and only those at the edge of what
is seen are masked. Backward, one kernel goes through the queries and one through the keys, so nothing is added in changing order.

Axes: b rows, l positions, h heads, d numbers a head. What is seen by a position are the positions from the begin of its run to
itself; without runs the run is the row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.recipes.time_moe.grouped_kernels import precision_of

Runs = tuple[Tensor, Tensor] | None
"""For each position of [b, l], where its run begins, and where it ends (int32)."""


class Blocks(NamedTuple):
    """How attention is cut: queries and keys at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


FORWARD, FORWARD_WIDE = Blocks(64, 64, 4, 3), Blocks(128, 64, 4, 3)
TO_QUERIES, TO_QUERIES_WIDE = Blocks(64, 64, 4, 3), Blocks(128, 64, 8, 2)
TO_KEYS, TO_KEYS_WIDE = Blocks(64, 64, 4, 3), Blocks(32, 128, 4, 3)
"""Measured on an H200 by `benchmarks/gpu_time_moe.py --part attention`. Wide ones are for float32."""


@triton.jit  # type: ignore[untyped-decorator]
def _forward_blocks(  # type: ignore[no-untyped-def]
    total, weight, most, q, k, v, row, begin, first, last, k_step, v_step, length, scale,
    MASKED: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take the keys from `first` to `last` into what some queries have seen."""
    d = tl.arange(0, D)
    for key in range(first, last, KEYS):
        column = key + tl.arange(0, KEYS)
        k_place, v_place = k + column[None, :] * k_step + d[:, None], v + column[:, None] * v_step + d[None, :]
        if MASKED:
            k_dn = tl.load(k_place, mask=column[None, :] < length, other=0.0)
            v_nd = tl.load(v_place, mask=column[:, None] < length, other=0.0)
        else:
            k_dn, v_nd = tl.load(k_place), tl.load(v_place)
        scores = tl.dot(q, k_dn, input_precision=PRECISION) * scale
        if MASKED:
            scores = tl.where((column[None, :] <= row[:, None]) & (column[None, :] >= begin[:, None]), scores, -1.0e30)
        higher = tl.maximum(most, tl.max(scores, 1))
        shares = tl.exp2(scores - higher[:, None])
        less = tl.exp2(most - higher)
        weight = weight * less + tl.sum(shares, 1)
        total = tl.dot(shares.to(v_nd.dtype), v_nd, total * less[:, None], input_precision=PRECISION)
        most = higher
    return total, weight, most


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, out, levels, begins, length, heads, scale,
    q_row, q_step, q_head, k_row, k_step, k_head, v_row, v_step, v_head,
    RUNS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What a block of queries sees."""
    at = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # those with most keys go first
    b = (tl.program_id(1) // heads).to(tl.int64)
    h = (tl.program_id(1) % heads).to(tl.int64)
    row = at + tl.arange(0, QUERIES)
    d = tl.arange(0, D)
    inside = row < length
    q_md = tl.load(q + b * q_row + h * q_head + row[:, None] * q_step + d[None, :], mask=inside[:, None], other=0.0)
    end = tl.minimum(at + QUERIES, length)
    if RUNS:
        begin = tl.load(begins + b * length + row, mask=inside, other=0)
        first = tl.load(begins + b * length + at) // KEYS * KEYS
        full = tl.minimum(tl.cdiv(tl.load(begins + b * length + end - 1), KEYS) * KEYS, end)
    else:
        begin = row * 0
        first = 0
        full = 0
    edge = tl.maximum(full, at // KEYS * KEYS)
    total = tl.zeros((QUERIES, D), dtype=tl.float32)
    weight = tl.zeros((QUERIES,), dtype=tl.float32)
    most = tl.full((QUERIES,), -1.0e30, dtype=tl.float32)
    k += b * k_row + h * k_head
    v += b * v_row + h * v_head
    if RUNS:
        total, weight, most = _forward_blocks(
            total, weight, most, q_md, k, v, row, begin, first, full, k_step, v_step, length, scale, True, KEYS, D, PRECISION
        )
    total, weight, most = _forward_blocks(
        total, weight, most, q_md, k, v, row, begin, full, edge, k_step, v_step, length, scale, False, KEYS, D, PRECISION
    )
    total, weight, most = _forward_blocks(
        total, weight, most, q_md, k, v, row, begin, edge, end, k_step, v_step, length, scale, True, KEYS, D, PRECISION
    )
    place = ((b * length + row[:, None]) * heads + h) * D + d[None, :]
    tl.store(out + place, (total / weight[:, None]).to(out.dtype.element_ty), mask=inside[:, None])
    tl.store(levels + tl.program_id(1).to(tl.int64) * length + row, most + tl.log2(weight), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _query_blocks(  # type: ignore[no-untyped-def]
    total, q, gradient, level, delta, k, v, row, begin, first, last, k_step, v_step, length, scale,
    MASKED: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what the keys from `first` to `last` mean for the gradient of some queries."""
    d = tl.arange(0, D)
    for key in range(first, last, KEYS):
        column = key + tl.arange(0, KEYS)
        k_place, v_place = k + column[None, :] * k_step + d[:, None], v + column[None, :] * v_step + d[:, None]
        if MASKED:
            k_dn = tl.load(k_place, mask=column[None, :] < length, other=0.0)
            v_dn = tl.load(v_place, mask=column[None, :] < length, other=0.0)
        else:
            k_dn, v_dn = tl.load(k_place), tl.load(v_place)
        shares = tl.exp2(tl.dot(q, k_dn, input_precision=PRECISION) * scale - level[:, None])
        if MASKED:
            shares = tl.where((column[None, :] <= row[:, None]) & (column[None, :] >= begin[:, None]), shares, 0.0)
        to_scores = shares * (tl.dot(gradient, v_dn, input_precision=PRECISION) - delta[:, None])
        total = tl.dot(to_scores.to(k_dn.dtype), tl.trans(k_dn), total, input_precision=PRECISION)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _query_kernel(  # type: ignore[no-untyped-def]
    q, k, v, out, gradient, levels, deltas, to_q, begins, length, heads, scale, factor,
    q_row, q_step, q_head, k_row, k_step, k_head, v_row, v_step, v_head,
    RUNS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries, and how much of theirs is in what they saw, for the other kernel."""
    at = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    b = (tl.program_id(1) // heads).to(tl.int64)
    h = (tl.program_id(1) % heads).to(tl.int64)
    row = at + tl.arange(0, QUERIES)
    d = tl.arange(0, D)
    inside = row < length
    place = ((b * length + row[:, None]) * heads + h) * D + d[None, :]
    q_md = tl.load(q + b * q_row + h * q_head + row[:, None] * q_step + d[None, :], mask=inside[:, None], other=0.0)
    gradient_md = tl.load(gradient + place, mask=inside[:, None], other=0.0)
    out_md = tl.load(out + place, mask=inside[:, None], other=0.0)
    delta = tl.sum(gradient_md.to(tl.float32) * out_md.to(tl.float32), 1)
    line = tl.program_id(1).to(tl.int64) * length + row
    tl.store(deltas + line, delta, mask=inside)
    level = tl.load(levels + line, mask=inside, other=0.0)
    end = tl.minimum(at + QUERIES, length)
    if RUNS:
        begin = tl.load(begins + b * length + row, mask=inside, other=0)
        first = tl.load(begins + b * length + at) // KEYS * KEYS
        full = tl.minimum(tl.cdiv(tl.load(begins + b * length + end - 1), KEYS) * KEYS, end)
    else:
        begin = row * 0
        first = 0
        full = 0
    edge = tl.maximum(full, at // KEYS * KEYS)
    total = tl.zeros((QUERIES, D), dtype=tl.float32)
    k += b * k_row + h * k_head
    v += b * v_row + h * v_head
    if RUNS:
        total = _query_blocks(
            total, q_md, gradient_md, level, delta, k, v, row, begin, first, full, k_step, v_step, length, scale,
            True, KEYS, D, PRECISION,
        )  # fmt: skip
    total = _query_blocks(
        total, q_md, gradient_md, level, delta, k, v, row, begin, full, edge, k_step, v_step, length, scale,
        False, KEYS, D, PRECISION,
    )  # fmt: skip
    total = _query_blocks(
        total, q_md, gradient_md, level, delta, k, v, row, begin, edge, end, k_step, v_step, length, scale,
        True, KEYS, D, PRECISION,
    )  # fmt: skip
    tl.store(to_q + place, (total * factor).to(to_q.dtype.element_ty), mask=inside[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _key_blocks(  # type: ignore[no-untyped-def]
    to_k, to_v, k, v, q, gradient, levels, deltas, column, stop, first, last, q_step, step, length, scale,
    MASKED: tl.constexpr, QUERIES: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what the queries from `first` to `last` mean for the gradients of some keys and values."""
    d = tl.arange(0, D)
    for query in range(first, last, QUERIES):
        row = query + tl.arange(0, QUERIES)
        q_place, gradient_place = q + row[:, None] * q_step + d[None, :], gradient + row[:, None] * step + d[None, :]
        if MASKED:
            q_md = tl.load(q_place, mask=row[:, None] < length, other=0.0)
            gradient_md = tl.load(gradient_place, mask=row[:, None] < length, other=0.0)
            level = tl.load(levels + row, mask=row < length, other=0.0)
            delta = tl.load(deltas + row, mask=row < length, other=0.0)
        else:
            q_md, gradient_md, level, delta = (
                tl.load(q_place),
                tl.load(gradient_place),
                tl.load(levels + row),
                tl.load(deltas + row),
            )
        shares = tl.exp2(tl.dot(k, tl.trans(q_md), input_precision=PRECISION) * scale - level[None, :])
        if MASKED:
            shares = tl.where((column[:, None] <= row[None, :]) & (row[None, :] < stop[:, None]), shares, 0.0)
        to_v = tl.dot(shares.to(gradient_md.dtype), gradient_md, to_v, input_precision=PRECISION)
        to_scores = shares * (tl.dot(v, tl.trans(gradient_md), input_precision=PRECISION) - delta[None, :])
        to_k = tl.dot(to_scores.to(q_md.dtype), q_md, to_k, input_precision=PRECISION)
    return to_k, to_v


@triton.jit  # type: ignore[untyped-decorator]
def _key_kernel(  # type: ignore[no-untyped-def]
    q, k, v, gradient, levels, deltas, to_k, to_v, ends, length, heads, scale, factor,
    q_row, q_step, q_head, k_row, k_step, k_head, v_row, v_step, v_head,
    RUNS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and their values."""
    at = tl.program_id(0) * KEYS
    b = (tl.program_id(1) // heads).to(tl.int64)
    h = (tl.program_id(1) % heads).to(tl.int64)
    column = at + tl.arange(0, KEYS)
    d = tl.arange(0, D)
    inside = column < length
    k_nd = tl.load(k + b * k_row + h * k_head + column[:, None] * k_step + d[None, :], mask=inside[:, None], other=0.0)
    v_nd = tl.load(v + b * v_row + h * v_head + column[:, None] * v_step + d[None, :], mask=inside[:, None], other=0.0)
    if RUNS:
        stop = tl.load(ends + b * length + column, mask=inside, other=0)
        last = tl.load(ends + b * length + tl.minimum(at + KEYS, length) - 1)
        full = tl.load(ends + b * length + at) // QUERIES * QUERIES
    else:
        stop = column * 0 + length
        last = length
        full = length // QUERIES * QUERIES
    first = at // QUERIES * QUERIES
    edge = tl.minimum(tl.cdiv(at + KEYS, QUERIES) * QUERIES, tl.cdiv(last, QUERIES) * QUERIES)
    full = tl.maximum(full, edge)
    q += b * q_row + h * q_head
    gradient += (b * length * heads + h) * D
    line = tl.program_id(1).to(tl.int64) * length
    levels += line
    deltas += line
    to_k_nd = tl.zeros((KEYS, D), dtype=tl.float32)
    to_v_nd = tl.zeros((KEYS, D), dtype=tl.float32)
    to_k_nd, to_v_nd = _key_blocks(
        to_k_nd, to_v_nd, k_nd, v_nd, q, gradient, levels, deltas, column, stop, first, edge, q_step, heads * D, length, scale,
        True, QUERIES, D, PRECISION,
    )  # fmt: skip
    to_k_nd, to_v_nd = _key_blocks(
        to_k_nd, to_v_nd, k_nd, v_nd, q, gradient, levels, deltas, column, stop, edge, full, q_step, heads * D, length, scale,
        False, QUERIES, D, PRECISION,
    )  # fmt: skip
    to_k_nd, to_v_nd = _key_blocks(
        to_k_nd, to_v_nd, k_nd, v_nd, q, gradient, levels, deltas, column, stop, full, last, q_step, heads * D, length, scale,
        True, QUERIES, D, PRECISION,
    )  # fmt: skip
    place = ((b * length + column[:, None]) * heads + h) * D + d[None, :]
    tl.store(to_k + place, (to_k_nd * factor).to(to_k.dtype.element_ty), mask=inside[:, None])
    tl.store(to_v + place, to_v_nd.to(to_v.dtype.element_ty), mask=inside[:, None])


def forward(q: Tensor, k: Tensor, v: Tensor, runs: Runs, *, blocks: Blocks | None = None) -> tuple[Tensor, Tensor]:
    """What queries [b, l, h, d] see, and the level of each one's scores: [b, l, h, d] and [b, h, l]."""
    rows, length, heads, width = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    levels = torch.empty(rows, heads, length, dtype=torch.float32, device=q.device)
    blocks = blocks or (FORWARD_WIDE if q.dtype == torch.float32 else FORWARD)
    _forward_kernel[(triton.cdiv(length, blocks.queries), rows * heads)](
        q, k, v, out, levels, levels if runs is None else runs[0], length, heads, _scale(width), *_strides(q, k, v),
        RUNS=runs is not None, QUERIES=blocks.queries, KEYS=blocks.keys, D=width, PRECISION=precision_of(q),
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return out, levels


def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, levels: Tensor, gradient: Tensor, runs: Runs,
    *, to_queries: Blocks | None = None, to_keys: Blocks | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values, each [b, l, h, d]."""
    rows, length, heads, width = q.shape
    gradient = gradient.contiguous()
    deltas = torch.empty_like(levels)
    to_q, to_k, to_v = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
    is_wide = q.dtype == torch.float32
    factor, precision = width**-0.5, precision_of(q)
    blocks = to_queries or (TO_QUERIES_WIDE if is_wide else TO_QUERIES)
    _query_kernel[(triton.cdiv(length, blocks.queries), rows * heads)](
        q, k, v, out, gradient, levels, deltas, to_q, levels if runs is None else runs[0], length, heads, _scale(width), factor,
        *_strides(q, k, v), RUNS=runs is not None, QUERIES=blocks.queries, KEYS=blocks.keys, D=width, PRECISION=precision,
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    blocks = to_keys or (TO_KEYS_WIDE if is_wide else TO_KEYS)
    _key_kernel[(triton.cdiv(length, blocks.keys), rows * heads)](
        q, k, v, gradient, levels, deltas, to_k, to_v, levels if runs is None else runs[1], length, heads, _scale(width), factor,
        *_strides(q, k, v), RUNS=runs is not None, QUERIES=blocks.queries, KEYS=blocks.keys, D=width, PRECISION=precision,
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return to_q, to_k, to_v


def _scale(width: int) -> float:
    """Scores are powers of two."""
    return math.log2(math.e) / math.sqrt(width)


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]
