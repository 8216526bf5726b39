"""Grouped products: rows that are sorted by group, each times the matrix of its group, with no look at how many there are.

Groups follow each other; `ends` (int32, on the device) says where each ends, and every group begins at a multiple of `tile_of`.
Rows after the last group belong to nobody: what products leave there is undefined, and must not be read.

On a GPU these are Triton kernels, on a CPU a loop.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GPU_TILE = 128
"""Rows that one program of a kernel multiplies, all of which must be of one group."""
CPU_TILE = 8
"""Lets tests have padding without being large."""


def tile_of(device: torch.device) -> int:
    """What the beginnings of groups are multiples of."""
    return GPU_TILE if device.type == "cuda" else CPU_TILE


def grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """`rows[r] @ weights[group of r].T` for rows [r, k] and weights [groups, n, k], in the numbers of the rows.

    The gradient of the weights is summed in float32 at least, and never passes through shorter numbers.
    """
    return _Product.apply(rows, weights, ends)  # type: ignore[no-any-return, no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        matrices = weights.to(rows.dtype)
        ctx.save_for_backward(rows, matrices, ends)
        ctx.dtype = weights.dtype
        found: Tensor = rows_by_group(rows, matrices, ends, True)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, matrices, ends = ctx.saved_tensors
        gradient = gradient.contiguous()
        to_rows = rows_by_group(gradient, matrices, ends, False)
        return to_rows, weights_by_group(gradient, rows, ends).to(ctx.dtype), None


@torch.library.custom_op("stoker::rows_by_group", mutates_args=())
def rows_by_group(rows: Tensor, weights: Tensor, ends: Tensor, transposed: bool) -> Tensor:
    """Each row times the matrix of its group (or times its transpose): [r, k] by [groups, n, k] is [r, n]."""
    if rows.is_cuda:
        from stoker.recipes.time_moe import grouped_kernels

        return grouped_kernels.rows_by_group(rows, weights, ends, transposed=transposed)
    matrices = weights.transpose(1, 2) if transposed else weights
    found = rows.new_zeros(len(rows), matrices.shape[2])
    for matrix, (begin, end) in zip(matrices, _bounds(ends), strict=True):
        found[begin:end] = rows[begin:end] @ matrix
    return found


@torch.library.custom_op("stoker::weights_by_group", mutates_args=())
def weights_by_group(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """`left.T @ right` over the rows of each group, in float32 at least: [r, n] and [r, k] are [groups, n, k]."""
    if left.is_cuda:
        from stoker.recipes.time_moe import grouped_kernels

        return grouped_kernels.weights_by_group(left, right, ends)
    exact = torch.promote_types(left.dtype, torch.float32)
    return torch.stack([left[begin:end].to(exact).T @ right[begin:end].to(exact) for begin, end in _bounds(ends)])


def _bounds(ends: Tensor) -> list[tuple[int, int]]:
    numbers: list[int] = ends.tolist()
    return list(zip([0, *numbers], numbers, strict=False))


@rows_by_group.register_fake
def _(rows: Tensor, weights: Tensor, ends: Tensor, transposed: bool) -> Tensor:
    return rows.new_empty(rows.shape[0], weights.shape[1 if transposed else 2])


@weights_by_group.register_fake
def _(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    dtype = torch.promote_types(left.dtype, torch.float32)
    return left.new_empty(ends.shape[0], left.shape[1], right.shape[1], dtype=dtype)
