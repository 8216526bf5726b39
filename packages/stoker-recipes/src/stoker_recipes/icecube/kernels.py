"""Triton kernels of the IceCube model: residual sums with RMS norms, packed attention with normed queries and keys, ReLU squared.

Imported only where there is a GPU. A row is a token; rows of an event are contiguous, the CLS token first. Rows behind the last event
are padding: attention writes zeros for them, and nothing else treats them apart. Sums are in float32 whatever the type of the rows.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

EPS = tl.constexpr(1.1920928955078125e-07)  # of every norm: that of float32
ROWS = 8  # rows per program of the kernels that work on whole rows
TAIL = 16  # programs per head that write the zeros of padding
BLOCK = 64  # queries and keys per tile of attention
CLS_KEYS = 128  # keys per step of the attention of CLS tokens
FORWARD_WARPS = 4
BACKWARD_WARPS = (3, 4), (2, 4), (1, 4)  # for events of more than two tiles, two, and one; the long ones first
# Rows, columns and terms per step of the fused matmuls; warps, stages. Measured on an H200 by
# `benchmarks/icecube/gpu_icecube.py --part pieces`.
UP_TILE = 128, 256, 64, 8, 3
DOWN_TILE = 128, 128, 64, 4, 3


# Counts are not specialised on, nor is where the scalars of a layer lie: batches of other sizes and other layers need no new kernel.
_jit = triton.jit(do_not_specialize=["num_rows", "num_events"], do_not_specialize_on_alignment=["a", "b"])


# ---- rows: embedding, residual sums and norms ----


@_jit  # type: ignore[untyped-decorator]
def _embed_kernel(lin, cls, source, x0, num_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of the first residual: normed DOM tokens, and CLS as it is."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    inside = row < num_rows
    dom = tl.load(source + row, mask=inside, other=-1)
    x = tl.load(lin + dom[:, None].to(tl.int64) * WIDTH + d[None, :], mask=(dom >= 0)[:, None], other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + EPS)
    start = tl.load(cls + d).to(tl.float32)
    x = tl.where((dom >= 0)[:, None], x * scale[:, None], start[None, :])
    tl.store(x0 + row[:, None].to(tl.int64) * WIDTH + d[None, :], x.to(x0.dtype.element_ty), mask=inside[:, None])


@_jit  # type: ignore[untyped-decorator]
def _embed_back_kernel(lin, source, to_x0, to_lin, num_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient of DOM tokens before their norm."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    dom = tl.load(source + row, mask=row < num_rows, other=-1)
    inside = (dom >= 0)[:, None]
    place = dom[:, None].to(tl.int64) * WIDTH + d[None, :]
    x = tl.load(lin + place, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(to_x0 + row[:, None].to(tl.int64) * WIDTH + d[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + EPS)
    normed = x * scale[:, None]
    out = scale[:, None] * (g - normed * (tl.sum(g * normed, 1) / WIDTH)[:, None])
    tl.store(to_lin + place, out.to(to_lin.dtype.element_ty), mask=inside)


@_jit  # type: ignore[untyped-decorator]
def _mix_kernel(  # type: ignore[no-untyped-def]
    x, y, x0, a, b, out, normed, scales, num_rows,
    ADDS: tl.constexpr, MIXES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out = a (x + y) + b x0, or x + y; and its norm."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    inside = (row < num_rows)[:, None]
    place = row[:, None].to(tl.int64) * WIDTH + d[None, :]
    v = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        v += tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
    if MIXES:
        v = tl.load(a) * v + tl.load(b) * tl.load(x0 + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 1) / WIDTH + EPS)
    tl.store(out + place, v.to(out.dtype.element_ty), mask=inside)
    tl.store(normed + place, (v * scale[:, None]).to(normed.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale, mask=row < num_rows)


@_jit  # type: ignore[untyped-decorator]
def _mix_back_kernel(  # type: ignore[no-untyped-def]
    g, source, to_normed, normed, scales, x, y, x0, a, b, out, narrow, to_x0, parts, num_rows,
    ONLY_CLS: tl.constexpr, ADDS: tl.constexpr, MIXES: tl.constexpr, FIRST: tl.constexpr, STARTS: tl.constexpr,
    NARROW: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of `_mix_kernel`: of its sum (`out`, also in the type of matmuls: `narrow`), of x0, and the parts of those of a and b.

    `g` is the gradient of the sum by other ways than the norm; with ONLY_CLS it has rows of CLS tokens alone. FIRST: x is x0 itself.
    STARTS: the gradient of x0 is written, not added to.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    inside = (row < num_rows)[:, None]
    place = row[:, None].to(tl.int64) * WIDTH + d[None, :]
    h = tl.load(normed + place, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(to_normed + place, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(scales + row, mask=row < num_rows, other=0.0)[:, None] * (v - h * (tl.sum(v * h, 1) / WIDTH)[:, None])
    if ONLY_CLS:
        event = -1 - tl.load(source + row, mask=row < num_rows, other=0)
        here = event[:, None].to(tl.int64) * WIDTH + d[None, :]
        v += tl.load(g + here, mask=(event >= 0)[:, None], other=0.0).to(tl.float32)
    else:
        v += tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
    if MIXES:
        first = tl.load(x0 + place, mask=inside, other=0.0).to(tl.float32)
        before = first if FIRST else tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        if ADDS:
            before += tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(parts + 2 * tl.program_id(0), tl.sum(tl.sum(v * before, 1), 0))
        tl.store(parts + 2 * tl.program_id(0) + 1, tl.sum(tl.sum(v * first, 1), 0))
        to_first = tl.load(b) * v
        v = tl.load(a) * v
        if FIRST:
            to_first += v
        if not STARTS:
            to_first += tl.load(to_x0 + place, mask=inside, other=0.0)
        tl.store(to_x0 + place, to_first, mask=inside)
    if not FIRST:
        tl.store(out + place, v.to(out.dtype.element_ty), mask=inside)
        if NARROW:
            tl.store(narrow + place, v.to(narrow.dtype.element_ty), mask=inside)


@triton.jit
def _slope(squared):  # type: ignore[no-untyped-def]
    """Twice the root. Rounded to the type of the square it is the input: squaring and rounding move it by less than half a step."""
    return 2.0 * tl.sqrt(squared.to(tl.float32)).to(squared.dtype).to(tl.float32)


@_jit  # type: ignore[untyped-decorator]
def _hidden_kernel(  # type: ignore[no-untyped-def]
    x, w, squared, out, num_rows, w_in, w_out,
    BACK: tl.constexpr, INNER: tl.constexpr, WIDTH: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of x @ w, squared where it is above 0; or (BACK) times the slope of that, from its output."""
    column = tl.program_id(0) % (WIDTH // N) * N + tl.arange(0, N)
    row = tl.program_id(0) // (WIDTH // N) * M + tl.arange(0, M).to(tl.int64)
    inside = (row < num_rows)[:, None]
    k = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, INNER, K):
        left = tl.load(x + row[:, None] * INNER + (first + k)[None, :], mask=inside, other=0.0)
        right = tl.load(w + (first + k)[:, None] * w_in + column[None, :] * w_out)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    place = row[:, None] * WIDTH + column[None, :]
    if BACK:
        total *= _slope(tl.load(squared + place, mask=inside, other=0.0))
    else:
        # Rounded as a matmul's output is, so that the root of the square is the input.
        total = tl.maximum(total.to(out.dtype.element_ty).to(tl.float32), 0.0)
        total *= total
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


# ---- attention within events ----


@triton.jit  # type: ignore[untyped-decorator]
def _load(at, row, length, step, D: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of a head of an event; zeros behind its end."""
    place = row[:, None] * step + tl.arange(0, D)[None, :]
    return tl.load(at + place, mask=(row < length)[:, None], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _unit(x, D: tl.constexpr):  # type: ignore[no-untyped-def]
    """RMS norm of rows, and the factors."""
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / D + EPS)
    return (wide * scale[:, None]).to(x.dtype), scale


@triton.jit  # type: ignore[untyped-decorator]
def _unit_back(g, normed, scale, D: tl.constexpr):  # type: ignore[no-untyped-def]
    wide = normed.to(tl.float32)
    return scale[:, None] * (g - wide * (tl.sum(g * wide, 1) / D)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _store(at, value, row, length, step, D: tl.constexpr):  # type: ignore[no-untyped-def]
    place = row[:, None] * step + tl.arange(0, D)[None, :]
    tl.store(at + place, value.to(at.dtype.element_ty), mask=(row < length)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _zero_tail(at, first, num_rows, step, part, D: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr):  # type: ignore[no-untyped-def]
    for begin in range(first + part * BLOCK, num_rows, TAIL * BLOCK):
        row = tl.cast(begin, tl.int64) + tl.arange(0, BLOCK)
        _store(at, tl.zeros((BLOCK, D), dtype=tl.float32), row, num_rows, step, D)


@_jit  # type: ignore[untyped-decorator]
def _attend_kernel(  # type: ignore[no-untyped-def]
    qkv, offsets, order, out, levels, num_rows, num_events, scale,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of one head within one event; `levels` are log2 of the sums of exponentials."""
    event, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    width = HEADS * D
    if event >= num_events:
        _zero_tail(out + head * D, tl.load(offsets + num_events), num_rows, width, event - num_events, D, BLOCK, TAIL)
        return
    event = tl.load(order + event)
    begin = tl.load(offsets + event).to(tl.int64)
    length = (tl.load(offsets + event + 1) - begin).to(tl.int32)
    qkv += begin * 3 * width + head * D
    out += begin * width + head * D
    levels += begin * HEADS + head
    for first in range(0, length, BLOCK):
        row = first + tl.arange(0, BLOCK)
        q, _ = _unit(_load(qkv, row, length, 3 * width, D), D)
        total = tl.zeros((BLOCK, D), dtype=tl.float32)
        weight = tl.zeros((BLOCK,), dtype=tl.float32)
        most = tl.full((BLOCK,), -1.0e30, dtype=tl.float32)
        for key in range(0, length, BLOCK):
            column = key + tl.arange(0, BLOCK)
            k, _ = _unit(_load(qkv + width, column, length, 3 * width, D), D)
            v = _load(qkv + 2 * width, column, length, 3 * width, D)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            scores = tl.where((column < length)[None, :], scores, -1.0e30)
            higher = tl.maximum(most, tl.max(scores, 1))
            shares = tl.exp2(scores - higher[:, None])
            less = tl.exp2(most - higher)
            weight = weight * less + tl.sum(shares, 1)
            total = tl.dot(shares.to(v.dtype), v, total * less[:, None], input_precision=PRECISION)
            most = higher
        _store(out, total / weight[:, None], row, length, width, D)
        tl.store(levels + row * HEADS, most + tl.log2(weight), mask=row < length)


@triton.jit  # type: ignore[untyped-decorator]
def _shares(q, k, v, g, level, delta, row, column, length, scale, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Attention weights of a tile, and the gradient of its scores."""
    inside = (row < length)[:, None] & (column < length)[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    shares = tl.where(inside, tl.exp2(scores - level[:, None]), 0.0)
    to_scores = shares * (tl.dot(g, tl.trans(v), input_precision=PRECISION) - delta[:, None])
    return shares.to(q.dtype), to_scores.to(q.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _query(qkv, out, gradient, levels, row, length, HEADS: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the gradient needs of some queries."""
    q, scale = _unit(_load(qkv, row, length, 3 * HEADS * D, D), D)
    g = _load(gradient, row, length, HEADS * D, D)
    delta = tl.sum(g.to(tl.float32) * _load(out, row, length, HEADS * D, D).to(tl.float32), 1)
    level = tl.load(levels + row * HEADS, mask=row < length, other=0.0)
    return q, scale, g, delta, level


@_jit  # type: ignore[untyped-decorator]
def _attend_back_kernel(  # type: ignore[no-untyped-def]
    qkv, offsets, order, out, levels, gradient, to_qkv, num_rows, num_events, scale, factor,
    TILES: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of one head within one event of one tile (TILES = 1), two tiles (2) or more (3); others are left alone.

    Up to two tiles all gradients are held at once, so that each pair of tiles is computed once. Of more, each is computed twice.
    """
    event, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    width = HEADS * D
    step = 3 * width
    if event >= num_events:
        if TILES == 1:
            for part in range(3):
                at = to_qkv + part * width + head * D
                _zero_tail(at, tl.load(offsets + num_events), num_rows, step, event - num_events, D, BLOCK, TAIL)
        return
    event = tl.load(order + event)
    begin = tl.load(offsets + event).to(tl.int64)
    length = (tl.load(offsets + event + 1) - begin).to(tl.int32)
    if TILES == 1:
        if length > BLOCK:
            return
    elif TILES == 2:
        if (length <= BLOCK) | (length > 2 * BLOCK):
            return
    elif length <= 2 * BLOCK:
        return
    qkv += begin * step + head * D
    to_qkv += begin * step + head * D
    out += begin * width + head * D
    gradient += begin * width + head * D
    levels += begin * HEADS + head
    if TILES == 1:
        row = tl.arange(0, BLOCK)
        q, q_scale, g, delta, level = _query(qkv, out, gradient, levels, row, length, HEADS, D)
        k, k_scale = _unit(_load(qkv + width, row, length, step, D), D)
        v = _load(qkv + 2 * width, row, length, step, D)
        shares, to_scores = _shares(q, k, v, g, level, delta, row, row, length, scale, PRECISION)
        _store(to_qkv + 2 * width, tl.dot(tl.trans(shares), g, input_precision=PRECISION), row, length, step, D)
        to_k = tl.dot(tl.trans(to_scores), q, input_precision=PRECISION) * factor
        _store(to_qkv + width, _unit_back(to_k, k, k_scale, D), row, length, step, D)
        to_q = tl.dot(to_scores, k, input_precision=PRECISION) * factor
        _store(to_qkv, _unit_back(to_q, q, q_scale, D), row, length, step, D)
    elif TILES == 2:
        row0 = tl.arange(0, BLOCK)
        row1 = BLOCK + row0
        q0, scale0, g0, delta0, level0 = _query(qkv, out, gradient, levels, row0, length, HEADS, D)
        q1, scale1, g1, delta1, level1 = _query(qkv, out, gradient, levels, row1, length, HEADS, D)
        to_q0 = tl.zeros((BLOCK, D), dtype=tl.float32)
        to_q1 = tl.zeros((BLOCK, D), dtype=tl.float32)
        for key in range(0, 2 * BLOCK, BLOCK):
            column = key + row0
            k, k_scale = _unit(_load(qkv + width, column, length, step, D), D)
            v = _load(qkv + 2 * width, column, length, step, D)
            shares, to_scores = _shares(q0, k, v, g0, level0, delta0, row0, column, length, scale, PRECISION)
            to_v = tl.dot(tl.trans(shares), g0, input_precision=PRECISION)
            to_k = tl.dot(tl.trans(to_scores), q0, input_precision=PRECISION)
            to_q0 = tl.dot(to_scores, k, to_q0, input_precision=PRECISION)
            shares, to_scores = _shares(q1, k, v, g1, level1, delta1, row1, column, length, scale, PRECISION)
            to_v = tl.dot(tl.trans(shares), g1, to_v, input_precision=PRECISION)
            to_k = tl.dot(tl.trans(to_scores), q1, to_k, input_precision=PRECISION)
            to_q1 = tl.dot(to_scores, k, to_q1, input_precision=PRECISION)
            _store(to_qkv + 2 * width, to_v, column, length, step, D)
            _store(to_qkv + width, _unit_back(to_k * factor, k, k_scale, D), column, length, step, D)
        _store(to_qkv, _unit_back(to_q0 * factor, q0, scale0, D), row0, length, step, D)
        _store(to_qkv, _unit_back(to_q1 * factor, q1, scale1, D), row1, length, step, D)
    else:
        for key in range(0, length, BLOCK):
            column = key + tl.arange(0, BLOCK)
            k, k_scale = _unit(_load(qkv + width, column, length, step, D), D)
            v = _load(qkv + 2 * width, column, length, step, D)
            to_k = tl.zeros((BLOCK, D), dtype=tl.float32)
            to_v = tl.zeros((BLOCK, D), dtype=tl.float32)
            for first in range(0, length, BLOCK):
                row = first + tl.arange(0, BLOCK)
                q, _, g, delta, level = _query(qkv, out, gradient, levels, row, length, HEADS, D)
                shares, to_scores = _shares(q, k, v, g, level, delta, row, column, length, scale, PRECISION)
                to_v = tl.dot(tl.trans(shares), g, to_v, input_precision=PRECISION)
                to_k = tl.dot(tl.trans(to_scores), q, to_k, input_precision=PRECISION)
            _store(to_qkv + 2 * width, to_v, column, length, step, D)
            _store(to_qkv + width, _unit_back(to_k * factor, k, k_scale, D), column, length, step, D)
        for first in range(0, length, BLOCK):
            row = first + tl.arange(0, BLOCK)
            q, q_scale, g, delta, level = _query(qkv, out, gradient, levels, row, length, HEADS, D)
            to_q = tl.zeros((BLOCK, D), dtype=tl.float32)
            for key in range(0, length, BLOCK):
                column = key + tl.arange(0, BLOCK)
                k, _ = _unit(_load(qkv + width, column, length, step, D), D)
                v = _load(qkv + 2 * width, column, length, step, D)
                _, to_scores = _shares(q, k, v, g, level, delta, row, column, length, scale, PRECISION)
                to_q = tl.dot(to_scores, k, to_q, input_precision=PRECISION)
            _store(to_qkv, _unit_back(to_q * factor, q, q_scale, D), row, length, step, D)


@_jit  # type: ignore[untyped-decorator]
def _attend_cls_kernel(  # type: ignore[no-untyped-def]
    q, kv, offsets, out, levels, scale, HEADS: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr
):
    """Attention of the CLS token of one event, one head: a single query."""
    event, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    width = HEADS * D
    here = event * width + head * D + tl.arange(0, D)
    begin = tl.load(offsets + event).to(tl.int64)
    length = (tl.load(offsets + event + 1) - begin).to(tl.int32)
    kv += begin * 2 * width + head * D
    query, _q_scale = _unit(tl.load(q + here)[None, :], D)
    total = tl.zeros((D,), dtype=tl.float32)
    weight = tl.zeros((1,), dtype=tl.float32)
    most = tl.full((1,), -1.0e30, dtype=tl.float32)
    for first in range(0, length, KEYS):
        row = first + tl.arange(0, KEYS)
        k, _ = _unit(_load(kv, row, length, 2 * width, D), D)
        v = _load(kv + width, row, length, 2 * width, D)
        scores = tl.where(row < length, tl.sum(k.to(tl.float32) * query.to(tl.float32), 1) * scale, -1.0e30)
        higher = tl.maximum(most, tl.max(scores, 0))
        shares = tl.exp2(scores - higher)
        less = tl.exp2(most - higher)
        weight = weight * less + tl.sum(shares, 0)
        total = total * less + tl.sum(shares[:, None] * v.to(tl.float32), 0)
        most = higher
    tl.store(out + here, (total / weight).to(out.dtype.element_ty))
    tl.store(levels + event * HEADS + head + tl.arange(0, 1), most + tl.log2(weight))


@_jit  # type: ignore[untyped-decorator]
def _attend_cls_back_kernel(  # type: ignore[no-untyped-def]
    q, kv, offsets, out, levels, gradient, to_q, to_kv, num_rows, num_events, scale, factor,
    HEADS: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """The gradient of `_attend_cls_kernel`."""
    event, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    width = HEADS * D
    if event >= num_events:
        for part in range(2):
            at = to_kv + part * width + head * D
            _zero_tail(at, tl.load(offsets + num_events), num_rows, 2 * width, (event - num_events).to(tl.int32), D, KEYS, TAIL)
        return
    here = event * width + head * D + tl.arange(0, D)
    begin = tl.load(offsets + event).to(tl.int64)
    length = (tl.load(offsets + event + 1) - begin).to(tl.int32)
    kv += begin * 2 * width + head * D
    to_kv += begin * 2 * width + head * D
    query, q_scale = _unit(tl.load(q + here)[None, :], D)
    g = tl.load(gradient + here).to(tl.float32)
    delta = tl.sum(g * tl.load(out + here).to(tl.float32), 0)
    level = tl.load(levels + event * HEADS + head)
    to_query = tl.zeros((D,), dtype=tl.float32)
    for first in range(0, length, KEYS):
        row = first + tl.arange(0, KEYS)
        k, k_scale = _unit(_load(kv, row, length, 2 * width, D), D)
        v = _load(kv + width, row, length, 2 * width, D)
        scores = tl.sum(k.to(tl.float32) * query.to(tl.float32), 1) * scale
        shares = tl.where(row < length, tl.exp2(scores - level), 0.0)
        to_scores = shares * (tl.sum(v.to(tl.float32) * g[None, :], 1) - delta) * factor
        _store(to_kv + width, shares[:, None] * g[None, :], row, length, 2 * width, D)
        _store(to_kv, _unit_back(to_scores[:, None] * query.to(tl.float32), k, k_scale, D), row, length, 2 * width, D)
        to_query += tl.sum(to_scores[:, None] * k.to(tl.float32), 0)
    tl.store(to_q + here[None, :], _unit_back(to_query[None, :], query, q_scale, D).to(to_q.dtype.element_ty))


# ---- launches ----


def _programs(rows: Tensor) -> tuple[int]:
    return (triton.cdiv(rows.shape[0], ROWS),)


def embed(lin: Tensor, cls: Tensor, source: Tensor, *, dtype: torch.dtype) -> Tensor:
    """The first residual: normed DOM tokens and CLS tokens, in the order that `source` gives."""
    x0 = torch.empty(source.shape[0], lin.shape[1], dtype=dtype, device=lin.device)
    _embed_kernel[_programs(x0)](lin, cls, source, x0, x0.shape[0], WIDTH=lin.shape[1], ROWS=ROWS)
    return x0


def embed_back(lin: Tensor, source: Tensor, to_x0: Tensor) -> Tensor:
    """The gradient of the DOM tokens."""
    to_lin = torch.empty_like(lin)
    _embed_back_kernel[_programs(to_x0)](lin, source, to_x0, to_lin, to_x0.shape[0], WIDTH=lin.shape[1], ROWS=ROWS)
    return to_lin


def mix(
    x: Tensor, y: Tensor | None, x0: Tensor | None, a: Tensor | None, b: Tensor | None, *, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum a (x + y) + b x0 (or x + y), its norm in `dtype`, and the factors of the norm."""
    out, normed = torch.empty_like(x), torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    _mix_kernel[_programs(x)](
        x, x if y is None else y, x if x0 is None else x0, x if a is None else a, x if b is None else b, out, normed, scales, x.shape[0],
        ADDS=y is not None, MIXES=x0 is not None, WIDTH=x.shape[1], ROWS=ROWS,
    )  # fmt: skip
    return out, normed, scales


def norm_back(g: Tensor, to_normed: Tensor, normed: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of a sum x + y, of which `g` comes by other ways than its norm: as it is, and in the type of `to_normed`."""
    out = torch.empty_like(g)
    narrow = out if g.dtype == to_normed.dtype else torch.empty_like(to_normed)
    _mix_back_kernel[_programs(g)](
        g, g, to_normed, normed, scales, g, g, g, g, g, out, narrow, g, g, g.shape[0],
        ONLY_CLS=False, ADDS=False, MIXES=False, FIRST=False, STARTS=False, NARROW=narrow is not out,
        WIDTH=g.shape[1], ROWS=ROWS,
    )  # fmt: skip
    return out, narrow


def mix_back(
    g: Tensor, source: Tensor | None, to_normed: Tensor, normed: Tensor, scales: Tensor,
    x: Tensor | None, y: Tensor | None, x0: Tensor, a: Tensor, b: Tensor, to_x0: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradient of x + y (twice, as in `norm_back`), of x0 (added to `to_x0`), and of a and b.

    `source` says that `g` has the rows of CLS tokens alone. Without `x` the sum is that of x0 with itself, in the first layer.
    """
    starts = to_x0 is None
    to_x0 = torch.empty(x0.shape, dtype=torch.float32, device=x0.device) if to_x0 is None else to_x0
    out = to_x0 if x is None else torch.empty_like(x0)
    narrow = out if x is None or x0.dtype == to_normed.dtype else torch.empty_like(to_normed)
    parts = torch.empty(_programs(x0)[0], 2, dtype=torch.float32, device=x0.device)
    _mix_back_kernel[_programs(x0)](
        g, g if source is None else source, to_normed, normed, scales, x0 if x is None else x, x0 if y is None else y, x0, a, b,
        out, narrow, to_x0, parts, x0.shape[0],
        ONLY_CLS=source is not None, ADDS=y is not None, MIXES=True, FIRST=x is None, STARTS=starts,
        NARROW=narrow is not out, WIDTH=x0.shape[1], ROWS=ROWS,
    )  # fmt: skip
    return out, narrow, to_x0, parts.sum(0)


def up_squared(x: Tensor, w: Tensor) -> Tensor:
    """ReLU squared of x @ w.T."""
    return _hidden(x, w, w.stride(1), w.stride(0), w.shape[0], None, UP_TILE)


def down_back(g: Tensor, w: Tensor, squared: Tensor) -> Tensor:
    """The gradient of what was squared, from that of squared @ w.T."""
    return _hidden(g, w, w.stride(0), w.stride(1), w.shape[1], squared, DOWN_TILE)


def _hidden(
    x: Tensor, w: Tensor, w_in: int, w_out: int, width: int, squared: Tensor | None, tile: tuple[int, int, int, int, int]
) -> Tensor:
    out = torch.empty(x.shape[0], width, dtype=x.dtype, device=x.device)
    m, n, k, warps, stages = tile
    n, k = min(n, width), min(k, x.shape[1])
    _hidden_kernel[(triton.cdiv(x.shape[0], m) * (width // n),)](
        x, w, x if squared is None else squared, out, x.shape[0], w_in, w_out,
        BACK=squared is not None, INNER=x.shape[1], WIDTH=width, M=m, N=n, K=k, PRECISION=_precision(x), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _scales(width: int) -> tuple[float, float]:
    """The factor of scores as powers of two, and the plain one."""
    return math.log2(math.e) / math.sqrt(width), 1 / math.sqrt(width)


def attend(qkv: Tensor, offsets: Tensor, order: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Attention within events, of rows that hold query, key and value; and the levels that its gradient needs."""
    num_rows, num_events, width = qkv.shape[0], offsets.shape[0] - 1, qkv.shape[1] // 3
    out = torch.empty(num_rows, width, dtype=qkv.dtype, device=qkv.device)
    levels = torch.empty(num_rows, heads, dtype=torch.float32, device=qkv.device)
    d = width // heads
    _attend_kernel[(heads * (num_events + TAIL),)](
        qkv, offsets, order, out, levels, num_rows, num_events, _scales(d)[0],
        HEADS=heads, D=d, BLOCK=BLOCK, TAIL=TAIL, PRECISION=_precision(qkv), num_warps=FORWARD_WARPS,
    )  # fmt: skip
    return out, levels


def attend_back(qkv: Tensor, offsets: Tensor, order: Tensor, heads: int, out: Tensor, levels: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the rows of `attend`."""
    num_rows, num_events, d = qkv.shape[0], offsets.shape[0] - 1, qkv.shape[1] // 3 // heads
    to_qkv = torch.empty_like(qkv)
    for tiles, warps in BACKWARD_WARPS:
        _attend_back_kernel[(heads * (num_events + TAIL),)](
            qkv, offsets, order, out, levels, gradient, to_qkv, num_rows, num_events, *_scales(d),
            TILES=tiles, HEADS=heads, D=d, BLOCK=BLOCK, TAIL=TAIL, PRECISION=_precision(qkv), num_warps=warps,
        )  # fmt: skip
    return to_qkv


def attend_cls(q: Tensor, kv: Tensor, offsets: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Attention of the CLS tokens alone; and its levels."""
    out = torch.empty_like(q)
    levels = torch.empty(q.shape[0], heads, dtype=torch.float32, device=q.device)
    d = q.shape[1] // heads
    _attend_cls_kernel[(heads * q.shape[0],)](
        q, kv, offsets, out, levels, _scales(d)[0], HEADS=heads, D=d, KEYS=CLS_KEYS, num_warps=4
    )
    return out, levels


def attend_cls_back(
    q: Tensor, kv: Tensor, offsets: Tensor, heads: int, out: Tensor, levels: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of queries, and of rows of keys and values."""
    to_q, to_kv = torch.empty_like(q), torch.empty_like(kv)
    d = q.shape[1] // heads
    _attend_cls_back_kernel[(heads * (q.shape[0] + TAIL),)](
        q, kv, offsets, out, levels, gradient, to_q, to_kv, kv.shape[0], q.shape[0], *_scales(d),
        HEADS=heads, D=d, KEYS=CLS_KEYS, TAIL=TAIL, num_warps=4,
    )  # fmt: skip
    return to_q, to_kv
