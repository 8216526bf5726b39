"""Routing: which row of the sorted order each choice of an expert becomes, and back; nobody waits to learn how many there are.

A choice is a pair (position, k-th best expert), counted position by position. Rows are sorted by expert and filled up, for each
expert, to a multiple of the tile; their number is the largest that can come. So all moves are gathers, forward and backward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.recipes.time_moe.grouped import tile_of


class Routing(NamedTuple):
    """Choices in the order of their experts."""

    choice: Tensor
    """Of each row; -1 where it is filler. [rows]"""
    row: Tensor
    """Of each choice, [positions, k]."""
    ends: Tensor
    """Where the rows of each expert end, filler included. [experts]"""
    counts: Tensor
    """How many choices fell on each expert. [experts]"""

    def gather(self, x: Tensor) -> Tensor:
        """Rows of positions: [positions, n] becomes [rows, n]. Filler is a copy of the first position."""
        return _Gather.apply(x, self.choice, self.row)  # type: ignore[no-any-return, no-untyped-call]

    def combine(self, rows: Tensor) -> Tensor:
        """Sum of the rows of each position: [rows, n] becomes [positions, n]."""
        return _Combine.apply(rows, self.choice, self.row)  # type: ignore[no-any-return, no-untyped-call]

    def spread(self, shares: Tensor) -> Tensor:
        """A number for each choice, [positions, k], becomes one for each row; that of filler is 0."""
        return _Spread.apply(shares, self.choice, self.row)  # type: ignore[no-any-return, no-untyped-call]


def route(experts: Tensor, num_experts: int) -> Routing:
    """The routing of the experts chosen for each position, [positions, k]."""
    return Routing(*sort_by_expert(experts, num_experts, tile_of(experts.device)))


def num_rows(choices: int, num_experts: int, tile: int) -> int:
    """Rows that are enough however choices fall: each expert has at least one tile, and fills up its last."""
    return (choices // tile + num_experts) * tile


@torch.library.custom_op("stoker::sort_by_expert", mutates_args=())
def sort_by_expert(experts: Tensor, num_experts: int, tile: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choice of each row, row of each choice, ends and counts (see `Routing`), all int32."""
    if experts.is_cuda:
        from stoker.recipes.time_moe import grouped_kernels

        return grouped_kernels.sort_by_expert(experts, num_experts, tile, num_rows(experts.numel(), num_experts, tile))
    return sort_plainly(experts, num_experts, tile)


def sort_plainly(experts: Tensor, num_experts: int, tile: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same in operations of torch."""
    flat = experts.reshape(-1)
    counts = (flat.unsqueeze(1) == torch.arange(num_experts, device=flat.device)).sum(0)
    filled = (counts.clamp(min=1) + tile - 1) // tile * tile
    ends = filled.cumsum(0)
    order = flat.argsort(stable=True)
    expert = flat[order].long()
    rows = torch.arange(len(flat), device=flat.device) + (ends - filled - counts.cumsum(0) + counts)[expert]
    choice = flat.new_full((num_rows(len(flat), num_experts, tile),), -1, dtype=torch.int32)
    choice[rows] = order.int()
    row = torch.empty_like(flat, dtype=torch.int32)
    row[order] = rows.int()
    return choice, row.view(experts.shape), ends.int(), counts.int()


@sort_by_expert.register_fake
def _(experts: Tensor, num_experts: int, tile: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def empty(*shape: int) -> Tensor:
        return experts.new_empty(shape, dtype=torch.int32)

    rows = num_rows(experts.numel(), num_experts, tile)
    return empty(rows), empty(*experts.shape), empty(num_experts), empty(num_experts)


def _gather(x: Tensor, choice: Tensor, k: int) -> Tensor:
    return x[choice.clamp(min=0) // k]


def _combine(rows: Tensor, row: Tensor) -> Tensor:
    total = rows[row[:, 0]]
    for number in range(1, row.shape[1]):
        total = total + rows[row[:, number]]
    return total


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, choice: Tensor, row: Tensor) -> Tensor:
        ctx.save_for_backward(row)
        return _gather(x, choice, row.shape[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (row,) = ctx.saved_tensors
        return _combine(gradient, row), None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, choice: Tensor, row: Tensor) -> Tensor:
        ctx.save_for_backward(choice)
        ctx.k = row.shape[1]
        return _combine(rows, row)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (choice,) = ctx.saved_tensors
        return _gather(gradient, choice, ctx.k), None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shares: Tensor, choice: Tensor, row: Tensor) -> Tensor:
        ctx.save_for_backward(row)
        return torch.where(choice < 0, 0, shares.reshape(-1)[choice.clamp(min=0)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (row,) = ctx.saved_tensors
        return gradient[row], None, None
