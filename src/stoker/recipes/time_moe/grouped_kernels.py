"""Kernels of the grouped products and of the sorting by expert, in Triton. Imported only where there is a GPU.

Every group begins at a multiple of the tile, so a tile has one group, and how many tiles there are is known without looking at
the data. Float32 is multiplied as torch's flag for float32 products says: as TF32, or by three products that together are exact to
about float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.recipes.time_moe.grouped import GPU_TILE

COUNTED = 512
"""Choices that one program sorts."""
GATED_ROWS = 2
TURNED = 64
"""Rows and columns that one program turns."""


class Tile(NamedTuple):
    """How a product is cut: rows and columns of what one program makes, and how many of the sum at a time."""

    left: int
    right: int
    inner: int
    warps: int
    stages: int
    chunk: int = 0
    """Rows whose sum one program makes; experts have very different numbers of rows early in a training."""


ROWS_TILE = Tile(GPU_TILE, 128, 64, 8, 3)
ROWS_TILE_WIDE = Tile(GPU_TILE, 128, 32, 8, 3)
WEIGHTS_TILE = Tile(128, 128, 64, 8, 3, chunk=2048)
WEIGHTS_TILE_WIDE = Tile(128, 128, 32, 8, 3, chunk=1024)
"""Measured on an H200 by `benchmarks/gpu_time_moe.py --part experts`."""


@triton.jit  # type: ignore[untyped-decorator]
def _group_of(ends, row, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The group that a row belongs to; NUM_GROUPS behind the last."""
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
        right = tl.load(
            matrix + at[:, None] * in_stride + to[None, :] * out_stride,
            mask=(at[:, None] < width_in) & (to[None, :] < width_out),
            other=0.0,
        )
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
    """A tile of a matrix, its rows as columns."""
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
    """How many of a program's choices fell on each expert."""
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
    """See `grouped.rows_by_group`."""
    groups, n, k = weights.shape
    if rows.dtype == torch.float32 and not transposed:  # tensor cores take float32 only along the sum
        weights, transposed, (n, k) = weights.transpose(1, 2), True, (k, n)
    rows, weights = rows.contiguous(), weights.contiguous()
    width_in, width_out = (k, n) if transposed else (n, k)
    out = rows.new_empty(len(rows), width_out)
    tile = tile or (ROWS_TILE_WIDE if rows.dtype == torch.float32 else ROWS_TILE)
    columns = min(tile.right, _power(width_out))
    _rows_kernel[(len(rows) // GPU_TILE * triton.cdiv(width_out, columns),)](
        rows, weights, ends, out, width_in, width_out,
        n * k, 1 if transposed else k, k if transposed else 1,
        NUM_GROUPS=groups, GROUPS=_power(groups, least=1), TILE=GPU_TILE, OUT=columns,
        IN=min(tile.inner, _power(width_in)), PRECISION=precision_of(rows), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def weights_by_group(left: Tensor, right: Tensor, ends: Tensor, *, tile: Tile | None = None) -> Tensor:
    """See `grouped.weights_by_group`. Chunks are added in any order, but for torch's deterministic algorithms."""
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
    """See `gated.gated_backward`."""
    gradient, gate_up, shares = gradient.contiguous(), gate_up.contiguous(), shares.contiguous()
    to_gate_up, to_shares = torch.empty_like(gate_up), torch.empty_like(shares)
    num_rows, width = gradient.shape
    _gated_kernel[(triton.cdiv(num_rows, GATED_ROWS),)](
        gradient, gate_up, shares, to_gate_up, to_shares, num_rows, width, ROWS=GATED_ROWS, WIDTH=_power(width), num_warps=4
    )
    return to_gate_up, to_shares


def sort_by_expert(experts: Tensor, num_experts: int, tile: int, num_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `routing.sort_by_expert`."""
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
    """How Triton multiplies these numbers."""
    if rows.dtype != torch.float32:
        return "tf32"  # has no meaning for shorter numbers
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
