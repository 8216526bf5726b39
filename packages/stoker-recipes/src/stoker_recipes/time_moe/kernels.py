"""Triton kernels of Time-MoE: grouped matmuls, sorting by expert, and causal attention. Imported only where there is a GPU.

Every group begins at a multiple of the tile, so a tile has one group, and how many tiles there are is known without
reading the data. Float32 is multiplied as torch's setting for float32 matmuls says: as TF32, or as three TF32 products that
together have about the precision of float32.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

COUNTED = 512  # choices that one program sorts
GATED_ROWS = 2
TURNED = 64  # rows and columns per program of a transpose


class Tile(NamedTuple):
    """Tiles of a matmul: rows and columns per program, and terms of the sum per step."""

    left: int
    right: int
    inner: int
    warps: int
    stages: int
    chunk: int = 0  # rows summed per program; experts have very different numbers of rows early in training


# Measured on an H200 by `benchmarks/time_moe/gpu_time_moe.py --part experts`. Wide ones are for float32.
ROWS_TILE = Tile(128, 128, 64, 8, 3)  # rows of one group only: `layers.GPU_TILE` is a multiple of them
ROWS_TILE_WIDE = Tile(128, 128, 32, 8, 3)
WEIGHTS_TILE = Tile(128, 128, 64, 8, 3, chunk=2048)
WEIGHTS_TILE_WIDE = Tile(128, 128, 32, 8, 3, chunk=1024)


@triton.jit  # type: ignore[untyped-decorator]
def _group_of(ends, row, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The group that a row belongs to; NUM_GROUPS after the last."""
    index = tl.arange(0, GROUPS)
    limit = tl.load(ends + index, mask=index < NUM_GROUPS, other=2147483647)
    return tl.sum((limit <= row).to(tl.int32), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _rows_kernel(  # type: ignore[no-untyped-def]
    rows, weights, ends, out, width_in, width_out,
    group_stride, in_stride, out_stride,
    NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
    TILE: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of rows times the matrix of its group, for OUT columns."""
    columns = tl.cdiv(width_out, OUT)
    tile = tl.program_id(0) // columns
    column = tl.program_id(0) % columns
    group = _group_of(ends, tile * TILE, NUM_GROUPS, GROUPS)
    if group == NUM_GROUPS:
        return
    row = (tile * TILE + tl.arange(0, TILE)).to(tl.int64)
    to = column * OUT + tl.arange(0, OUT)
    matrix = weights + group.to(tl.int64) * group_stride
    total = tl.zeros((TILE, OUT), dtype=tl.float32)
    for begin in range(0, width_in, IN):
        at = begin + tl.arange(0, IN)
        left = tl.load(rows + row[:, None] * width_in + at[None, :], mask=at[None, :] < width_in, other=0.0)
        inside = (at[:, None] < width_in) & (to[None, :] < width_out)
        right = tl.load(matrix + at[:, None] * in_stride + to[None, :] * out_stride, mask=inside, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(out + row[:, None] * width_out + to[None, :], total.to(out.dtype.element_ty), mask=to[None, :] < width_out)


@triton.jit  # type: ignore[untyped-decorator]
def _weights_kernel(  # type: ignore[no-untyped-def]
    left, right, ends, out, width_left, width_right, left_row, left_step, right_row, right_step,
    NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr, CHUNK: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the matrix of one group: the sum over a chunk of its rows is added; without chunks, that over all is stored."""
    columns = tl.cdiv(width_right, RIGHT)
    tiles = columns * tl.cdiv(width_left, LEFT)
    part = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    index = tl.arange(0, GROUPS)
    end_of = tl.load(ends + index, mask=index < NUM_GROUPS, other=0)
    begin_of = tl.load(ends + index - 1, mask=(index > 0) & (index < NUM_GROUPS), other=0)
    if CHUNK > 0:  # which chunk of which group this part is; behind the last group there are no rows
        chunks = (end_of - begin_of + CHUNK - 1) // CHUNK
        last = tl.cumsum(chunks, 0)
        group = tl.sum((last <= part).to(tl.int32), 0)
        earlier = tl.sum(tl.where(index == group, last - chunks, 0), 0)
        begin = tl.sum(tl.where(index == group, begin_of, 0), 0) + (part - earlier) * CHUNK
        end = tl.minimum(begin + CHUNK, tl.sum(tl.where(index == group, end_of, 0), 0))
    else:
        group = part
        begin = tl.sum(tl.where(index == group, begin_of, 0), 0)
        end = tl.sum(tl.where(index == group, end_of, 0), 0)
    i = (tile // columns) * LEFT + tl.arange(0, LEFT)
    j = (tile % columns) * RIGHT + tl.arange(0, RIGHT)
    total = tl.zeros((LEFT, RIGHT), dtype=tl.float32)
    row = tl.arange(0, ROWS).to(tl.int64)
    left += row[None, :] * left_row + i[:, None].to(tl.int64) * left_step
    right += row[:, None] * right_row + j[None, :].to(tl.int64) * right_step
    for first in range(begin, end, ROWS):  # groups and chunks are multiples of ROWS
        a = tl.load(left + tl.cast(first, tl.int64) * left_row, mask=i[:, None] < width_left, other=0.0)
        b = tl.load(right + tl.cast(first, tl.int64) * right_row, mask=j[None, :] < width_right, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    place = out + group.to(tl.int64) * width_left * width_right + i[:, None] * width_right + j[None, :]
    inside = (i[:, None] < width_left) & (j[None, :] < width_right) & (group < NUM_GROUPS)
    if CHUNK > 0:
        tl.atomic_add(place, total, mask=inside, sem="relaxed")
    else:
        tl.store(place, total, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _turn_kernel(x, out, num_rows, width, TURNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Transpose one tile of a matrix."""
    row = (tl.program_id(0) * TURNED + tl.arange(0, TURNED)).to(tl.int64)
    column = (tl.program_id(1) * TURNED + tl.arange(0, TURNED)).to(tl.int64)
    inside = (row[:, None] < num_rows) & (column[None, :] < width)
    tile = tl.trans(tl.load(x + row[:, None] * width + column[None, :], mask=inside, other=0.0))
    tl.store(out + column[:, None] * num_rows + row[None, :], tile, mask=tl.trans(inside))


@triton.jit  # type: ignore[untyped-decorator]
def _gated_kernel(  # type: ignore[no-untyped-def]
    gradient, gate_up, shares, to_gate_up, to_shares, num_rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Gradients of gate, up and share of some rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, WIDTH)
    inside = (row[:, None] < num_rows) & (at[None, :] < width)
    place = row[:, None].to(tl.int64) * width + at[None, :]
    double = row[:, None].to(tl.int64) * (2 * width) + at[None, :]
    whole = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_up + double, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + double + width, mask=inside, other=0.0).to(tl.float32)
    share = tl.load(shares + row, mask=row < num_rows, other=0.0)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    scaled = whole * share[:, None]
    kind = to_gate_up.dtype.element_ty
    tl.store(to_gate_up + double, (scaled * up * (sigmoid + silu * (1 - sigmoid))).to(kind), mask=inside)
    tl.store(to_gate_up + double + width, (scaled * silu).to(kind), mask=inside)
    tl.store(to_shares + row, tl.sum(whole * silu * up, 1), mask=row < num_rows)


@triton.jit  # type: ignore[untyped-decorator]
def _count_kernel(experts, counts, num_choices, EXPERTS: tl.constexpr, COUNTED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Choices per expert within a program."""
    at = tl.program_id(0) * COUNTED + tl.arange(0, COUNTED)
    expert = tl.load(experts + at, mask=at < num_choices, other=-1).to(tl.int32)
    is_it = (expert[:, None] == tl.arange(0, EXPERTS)[None, :]).to(tl.int32)
    tl.store(counts + tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS), tl.sum(is_it, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _place_kernel(  # type: ignore[no-untyped-def]
    experts, counts, choice, row, ends, totals, num_choices, programs,
    NUM_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, COUNTED: tl.constexpr, PROGRAMS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The row of each of a program's choices: where its expert begins, after those of earlier programs, in order."""
    number = tl.program_id(0)
    index = tl.arange(0, EXPERTS)
    other = tl.arange(0, PROGRAMS)
    of_all = tl.load(counts + other[:, None] * EXPERTS + index[None, :], mask=other[:, None] < programs, other=0)
    total = tl.sum(of_all, 0)
    earlier = tl.sum(tl.where(other[:, None] < number, of_all, 0), 0)
    filled = tl.where(index < NUM_EXPERTS, (tl.maximum(total, 1) + TILE - 1) // TILE * TILE, 0)
    end = tl.cumsum(filled, 0)
    if number == 0:
        tl.store(ends + index, end, mask=index < NUM_EXPERTS)
        tl.store(totals + index, total, mask=index < NUM_EXPERTS)
    at = number * COUNTED + tl.arange(0, COUNTED)
    expert = tl.load(experts + at, mask=at < num_choices, other=-1).to(tl.int32)
    is_it = (expert[:, None] == index[None, :]).to(tl.int32)
    before = tl.cumsum(is_it, 0) - is_it
    place = tl.sum(is_it * (before + (end - filled + earlier)[None, :]), 1)
    tl.store(row + at, place, mask=at < num_choices)
    tl.store(choice + place, at, mask=at < num_choices)


def rows_by_group(rows: Tensor, weights: Tensor, ends: Tensor, *, transposed: bool, tile: Tile | None = None) -> Tensor:
    """See `layers.rows_by_group`."""
    groups, n, k = weights.shape
    if rows.dtype == torch.float32 and not transposed:  # tensor cores take float32 only along the sum
        weights, transposed, (n, k) = weights.transpose(1, 2), True, (k, n)
    rows, weights = rows.contiguous(), weights.contiguous()
    width_in, width_out = (k, n) if transposed else (n, k)
    out = rows.new_empty(len(rows), width_out)
    tile = tile or (ROWS_TILE_WIDE if rows.dtype == torch.float32 else ROWS_TILE)
    columns = min(tile.right, _power(width_out))
    _rows_kernel[(len(rows) // tile.left * triton.cdiv(width_out, columns),)](
        rows, weights, ends, out, width_in, width_out,
        n * k, 1 if transposed else k, k if transposed else 1,
        NUM_GROUPS=groups, GROUPS=_power(groups, least=1), TILE=tile.left, OUT=columns,
        IN=min(tile.inner, _power(width_in)), PRECISION=precision_of(rows), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def weights_by_group(left: Tensor, right: Tensor, ends: Tensor, *, tile: Tile | None = None) -> Tensor:
    """See `layers.weights_by_group`. Chunks are added in any order, unless torch uses deterministic algorithms."""
    n, k, groups = left.shape[1], right.shape[1], len(ends)
    # Tensor cores take float32 only along the sum, which here is along the rows: turning both costs less than doing without.
    left, right = (turned(left).T, turned(right).T) if left.dtype == torch.float32 else (left.contiguous(), right.contiguous())
    tile = tile or (WEIGHTS_TILE_WIDE if left.dtype == torch.float32 else WEIGHTS_TILE)
    chunk = 0 if torch.are_deterministic_algorithms_enabled() else tile.chunk
    out = (torch.zeros if chunk else torch.empty)(groups, n, k, dtype=torch.float32, device=left.device)
    a, b = min(tile.left, _power(n)), min(tile.right, _power(k))
    parts = len(left) // chunk + groups if chunk else groups
    _weights_kernel[(triton.cdiv(n, a) * triton.cdiv(k, b) * parts,)](
        left, right, ends, out, n, k, *left.stride(), *right.stride(),
        NUM_GROUPS=groups, GROUPS=_power(groups, least=1), CHUNK=chunk,
        LEFT=a, RIGHT=b, ROWS=tile.inner, PRECISION=precision_of(left), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def turned(x: Tensor) -> Tensor:
    """The transpose of a matrix, in memory."""
    x = x.contiguous()
    out = torch.empty(x.shape[::-1], dtype=x.dtype, device=x.device)
    _turn_kernel[(triton.cdiv(x.shape[0], TURNED), triton.cdiv(x.shape[1], TURNED))](x, out, *x.shape, TURNED=TURNED, num_warps=4)
    return out


def gated_backward(gradient: Tensor, gate_up: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """See `layers.gated_backward`."""
    gradient, gate_up, shares = gradient.contiguous(), gate_up.contiguous(), shares.contiguous()
    to_gate_up, to_shares = torch.empty_like(gate_up), torch.empty_like(shares)
    num_rows, width = gradient.shape
    _gated_kernel[(triton.cdiv(num_rows, GATED_ROWS),)](
        gradient, gate_up, shares, to_gate_up, to_shares, num_rows, width, ROWS=GATED_ROWS, WIDTH=_power(width), num_warps=4
    )
    return to_gate_up, to_shares


def sort_by_expert(experts: Tensor, num_experts: int, tile: int, num_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `layers.sort_by_expert`."""
    experts = experts.contiguous()
    count, width = experts.numel(), _power(num_experts, least=1)
    programs = triton.cdiv(count, COUNTED)
    integers: dict[str, Any] = {"dtype": torch.int32, "device": experts.device}
    counts = torch.empty(programs, width, **integers)
    choice = torch.full((num_rows,), -1, **integers)
    row = torch.empty(experts.shape, **integers)
    ends, totals = torch.empty(num_experts, **integers), torch.empty(num_experts, **integers)
    _count_kernel[(programs,)](experts, counts, count, EXPERTS=width, COUNTED=COUNTED)
    _place_kernel[(programs,)](
        experts, counts, choice, row, ends, totals, count, programs,
        NUM_EXPERTS=num_experts, EXPERTS=width, COUNTED=COUNTED, PROGRAMS=_power(programs, least=1), TILE=tile,
    )  # fmt: skip
    return choice, row, ends, totals


def _power(number: int, least: int = 16) -> int:
    return max(least, 1 << (number - 1).bit_length())


def precision_of(rows: Tensor) -> str:
    """Triton's input precision for these tensors."""
    if rows.dtype != torch.float32:
        return "tf32"  # has no meaning for shorter numbers
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# ---- causal attention within runs ----
#
# Scores are computed block by block and never stored; blocks that no position sees are not visited, and only blocks at the edge are
# masked. The backward pass has one kernel over queries and one over keys, so sums have a fixed order.
#
# Axes: b rows, l positions, h heads, d numbers per head. A position sees those from the start of its run to itself; without runs the run
# is the row.

Runs = tuple[Tensor, Tensor] | None  # for each position of [b, l], where its run begins, and where it ends (int32)


class Blocks(NamedTuple):
    """Tiles of attention: queries and keys per step."""

    queries: int
    keys: int
    warps: int
    stages: int


FORWARD, FORWARD_WIDE = Blocks(64, 64, 4, 3), Blocks(128, 64, 4, 3)
TO_QUERIES, TO_QUERIES_WIDE = Blocks(64, 64, 4, 3), Blocks(128, 64, 8, 2)
TO_KEYS, TO_KEYS_WIDE = Blocks(64, 64, 4, 3), Blocks(32, 128, 4, 3)
"""Measured on an H200 by `benchmarks/time_moe/gpu_time_moe.py --part attention`. Wide ones are for float32."""


@triton.jit  # type: ignore[untyped-decorator]
def _load(place, inside, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    if MASKED:
        return tl.load(place, mask=inside, other=0.0)
    else:
        return tl.load(place)


@triton.jit  # type: ignore[untyped-decorator]
def _block_of_queries(begins, length, heads, RUNS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row, head and positions of this program; the begins of their runs; keys from `first` and from `edge` to `end` need a mask."""
    at = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # those with most keys go first
    b = (tl.program_id(1) // heads).to(tl.int64)
    h = (tl.program_id(1) % heads).to(tl.int64)
    row = at + tl.arange(0, QUERIES)
    end = tl.minimum(at + QUERIES, length)
    begin = row * 0
    first = at * 0
    full = at * 0
    if RUNS:
        begin = tl.load(begins + b * length + row, mask=row < length, other=0)
        first = tl.load(begins + b * length + at) // KEYS * KEYS
        full = tl.minimum(tl.cdiv(tl.load(begins + b * length + end - 1), KEYS) * KEYS, end)
    return b, h, row, begin, first, full, tl.maximum(full, at // KEYS * KEYS), end


@triton.jit  # type: ignore[untyped-decorator]
def _forward_blocks(  # type: ignore[no-untyped-def]
    total, weight, most, q, k, v, row, begin, first, last, k_step, v_step, length, scale,
    MASKED: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Accumulate the keys from `first` to `last` into the output of some queries."""
    d = tl.arange(0, D)
    for key in range(first, last, KEYS):
        column = key + tl.arange(0, KEYS)
        k_dn = _load(k + column[None, :] * k_step + d[:, None], column[None, :] < length, MASKED)
        v_nd = _load(v + column[:, None] * v_step + d[None, :], column[:, None] < length, MASKED)
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
    q, k, v, length, heads, scale, q_row, q_step, q_head, k_row, k_step, k_head, v_row, v_step, v_head, begins, out, levels,
    RUNS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The attention output of a block of queries."""
    b, h, row, begin, first, full, edge, end = _block_of_queries(begins, length, heads, RUNS, QUERIES, KEYS)
    d = tl.arange(0, D)
    inside = row < length
    q_md = tl.load(q + b * q_row + h * q_head + row[:, None] * q_step + d[None, :], mask=inside[:, None], other=0.0)
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
    """Accumulate the keys from `first` to `last` into the gradient of some queries."""
    d = tl.arange(0, D)
    for key in range(first, last, KEYS):
        column = key + tl.arange(0, KEYS)
        k_dn = _load(k + column[None, :] * k_step + d[:, None], column[None, :] < length, MASKED)
        v_dn = _load(v + column[None, :] * v_step + d[:, None], column[None, :] < length, MASKED)
        shares = tl.exp2(tl.dot(q, k_dn, input_precision=PRECISION) * scale - level[:, None])
        if MASKED:
            shares = tl.where((column[None, :] <= row[:, None]) & (column[None, :] >= begin[:, None]), shares, 0.0)
        to_scores = shares * (tl.dot(gradient, v_dn, input_precision=PRECISION) - delta[:, None])
        total = tl.dot(to_scores.to(k_dn.dtype), tl.trans(k_dn), total, input_precision=PRECISION)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _query_kernel(  # type: ignore[no-untyped-def]
    q, k, v, length, heads, scale, q_row, q_step, q_head, k_row, k_step, k_head, v_row, v_step, v_head, begins,
    out, gradient, levels, deltas, to_q, factor,
    RUNS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries, and the product of output and its gradient for the other kernel."""
    b, h, row, begin, first, full, edge, end = _block_of_queries(begins, length, heads, RUNS, QUERIES, KEYS)
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
    total = tl.zeros((QUERIES, D), dtype=tl.float32)
    k += b * k_row + h * k_head
    v += b * v_row + h * v_head
    if RUNS:
        total = _query_blocks(
            total, q_md, gradient_md, level, delta, k, v, row, begin, first, full, k_step, v_step, length, scale, True, KEYS, D, PRECISION
        )  # fmt: skip
    total = _query_blocks(
        total, q_md, gradient_md, level, delta, k, v, row, begin, full, edge, k_step, v_step, length, scale, False, KEYS, D, PRECISION
    )  # fmt: skip
    total = _query_blocks(
        total, q_md, gradient_md, level, delta, k, v, row, begin, edge, end, k_step, v_step, length, scale, True, KEYS, D, PRECISION
    )  # fmt: skip
    tl.store(to_q + place, (total * factor).to(to_q.dtype.element_ty), mask=inside[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _key_blocks(  # type: ignore[no-untyped-def]
    to_k, to_v, k, v, q, gradient, levels, deltas, column, stop, first, last, q_step, step, length, scale,
    MASKED: tl.constexpr, QUERIES: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Accumulate the queries from `first` to `last` into the gradients of some keys and values."""
    d = tl.arange(0, D)
    for query in range(first, last, QUERIES):
        row = query + tl.arange(0, QUERIES)
        q_md = _load(q + row[:, None] * q_step + d[None, :], row[:, None] < length, MASKED)
        gradient_md = _load(gradient + row[:, None] * step + d[None, :], row[:, None] < length, MASKED)
        level, delta = _load(levels + row, row < length, MASKED), _load(deltas + row, row < length, MASKED)
        shares = tl.exp2(tl.dot(k, tl.trans(q_md), input_precision=PRECISION) * scale - level[None, :])
        if MASKED:
            shares = tl.where((column[:, None] <= row[None, :]) & (row[None, :] < stop[:, None]), shares, 0.0)
        to_v = tl.dot(shares.to(gradient_md.dtype), gradient_md, to_v, input_precision=PRECISION)
        to_scores = shares * (tl.dot(v, tl.trans(gradient_md), input_precision=PRECISION) - delta[None, :])
        to_k = tl.dot(to_scores.to(q_md.dtype), q_md, to_k, input_precision=PRECISION)
    return to_k, to_v


@triton.jit  # type: ignore[untyped-decorator]
def _key_kernel(  # type: ignore[no-untyped-def]
    q, k, v, length, heads, scale, q_row, q_step, q_head, k_row, k_step, k_head, v_row, v_step, v_head, ends,
    gradient, levels, deltas, to_k, to_v, factor,
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


def _attend(kernel: Any, blocks: Blocks, size: int, q: Tensor, k: Tensor, v: Tensor, edges: Tensor | None, *others: Any) -> None:
    """Launch a kernel with a program for each `size` positions of a head; `edges` of runs are those that it needs."""
    rows, length, heads, width = q.shape
    scale = math.log2(math.e) / math.sqrt(width)  # scores are powers of two
    strides = [stride for tensor in (q, k, v) for stride in tensor.stride()[:3]]
    kernel[(triton.cdiv(length, size), rows * heads)](
        q, k, v, length, heads, scale, *strides, q if edges is None else edges, *others,
        RUNS=edges is not None, QUERIES=blocks.queries, KEYS=blocks.keys, D=width, PRECISION=precision_of(q),
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip


def forward(q: Tensor, k: Tensor, v: Tensor, runs: Runs, *, blocks: Blocks | None = None) -> tuple[Tensor, Tensor]:
    """The attention output [b, l, h, d] of queries, and the log-sum-exp of their scores [b, h, l]."""
    rows, length, heads, _ = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    levels = torch.empty(rows, heads, length, dtype=torch.float32, device=q.device)
    blocks = blocks or (FORWARD_WIDE if q.dtype == torch.float32 else FORWARD)
    _attend(_forward_kernel, blocks, blocks.queries, q, k, v, None if runs is None else runs[0], out, levels)
    return out, levels


def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, levels: Tensor, gradient: Tensor, runs: Runs,
    *, to_queries: Blocks | None = None, to_keys: Blocks | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values, each [b, l, h, d]."""
    gradient, deltas = gradient.contiguous(), torch.empty_like(levels)
    to_q, to_k, to_v = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
    begins, ends = (None, None) if runs is None else runs
    is_wide, factor = q.dtype == torch.float32, q.shape[-1] ** -0.5
    blocks = to_queries or (TO_QUERIES_WIDE if is_wide else TO_QUERIES)
    _attend(_query_kernel, blocks, blocks.queries, q, k, v, begins, out, gradient, levels, deltas, to_q, factor)
    blocks = to_keys or (TO_KEYS_WIDE if is_wide else TO_KEYS)
    _attend(_key_kernel, blocks, blocks.keys, q, k, v, ends, gradient, levels, deltas, to_k, to_v, factor)
    return to_q, to_k, to_v
