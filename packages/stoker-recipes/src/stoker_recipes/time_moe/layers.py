"""The parts of a Time-MoE: `Size` and the published `SIZES`, heads with their loss, experts with their routing, and attention."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Size:
    """The shape of a model; `SIZES` has the published ones.

    Example:
        >>> f"{SIZES['50m'].num_parameters:,}"
        '113,352,192'
    """

    hidden: int
    intermediate: int  # width of the shared expert; the others are `top_k` times narrower
    layers: int
    heads: int
    experts: int
    top_k: int
    horizons: tuple[int, ...] = (1, 8, 32, 64)  # points that each head predicts, ascending from 1
    max_position: int = 4096
    rope_theta: float = 10000.0
    aux_factor: float = 0.02  # weight of the load-balancing loss
    eps: float = 1e-6
    spread: float = 0.02  # standard deviation of initial weights

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            expected = ""
            if field.type == "int" and not _is_count(value):
                expected = "an integer from 1"
            if field.type == "float":
                least = 0.0 if field.name == "aux_factor" else math.ulp(0.0)
                if isinstance(value, bool) or not isinstance(value, int | float):
                    expected = "a number"
                elif not least <= value <= sys.float_info.max:
                    expected = f"a finite number {'from' if not least else 'above'} 0"
            if expected:
                raise OptionError(f"size: {field.name} is {_short(value)}; expected {expected}.", parameter=field.name)
        if self.hidden % (2 * self.heads):
            raise OptionError(
                f"size: hidden is {self.hidden}; expected an even number for each of the {self.heads} heads.", parameter="hidden"
            )
        if self.intermediate % self.top_k or self.top_k > self.experts:
            expected = f"a divisor of intermediate ({self.intermediate}), at most {self.experts}"
            raise OptionError(f"size: top_k is {self.top_k}; expected {expected}.", parameter="top_k")
        rising = all(map(_is_count, self.horizons)) and list(self.horizons) == sorted(set(self.horizons))
        if self.horizons[:1] != (1,) or not rising:
            raise OptionError(
                f"size: horizons are {_short(self.horizons)}; expected ascending integers that begin with 1.", parameter="horizons"
            )

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.hidden // self.heads

    @property
    def expert_width(self) -> int:
        """Width of one expert."""
        return self.intermediate // self.top_k

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        return self.parameters_with(self.experts)

    def parameters_with(self, experts: int) -> int:
        """Parameters with this number of experts per layer; with `top_k`, those that a position uses."""
        attention = 4 * self.hidden**2 + 3 * self.hidden
        feeding = 3 * self.hidden * (experts * self.expert_width + self.intermediate) + (self.experts + 1) * self.hidden
        layer = attention + feeding + 2 * self.hidden
        return 2 * self.hidden + self.layers * layer + self.hidden + sum(self.horizons) * self.hidden


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


SIZES = {
    "50m": Size(hidden=384, intermediate=1536, layers=12, heads=12, experts=8, top_k=2),
    "200m": Size(hidden=768, intermediate=3072, layers=12, heads=12, experts=8, top_k=2),
    "tiny": Size(hidden=32, intermediate=64, layers=2, heads=4, experts=4, top_k=2, max_position=512),
}  # the published sizes, and one for tests


# ---- heads: the next points, and the loss of all horizons at once ----
#
# The label of (position t, step k) is `y[t + k]`: the labels of a horizon are an overlapping view of `y`, never a copy. Labels after
# the end of a row, in another series, or masked do not count.

DELTA = 2.0  # the loss is quadratic up to here, linear beyond
ALIGNED = 8


class Heads(nn.Module):
    """One matrix for all horizons, concatenated."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.horizons = size.horizons
        self.shares = (1.0,) * len(size.horizons)  # relative weight of the loss of each horizon
        self.weight = nn.Parameter(torch.empty(sum(size.horizons), size.hidden))

    def forward(self, hidden: Tensor, y: Tensor, mask: Tensor | None, begins: Tensor | None) -> Tensor:
        """Mean over the horizons, weighted by `shares`, of the mean Huber loss over labels that count.

        `mask` [b, l] says which labels count, `begins` [b, l] where the series of each position begins, in packed rows.
        """
        every = F.linear(hidden, F.pad(self.weight, (0, 0, 0, -len(self.weight) % ALIGNED)).to(hidden.dtype))
        valid = torch.ones_like(y, dtype=torch.bool) if mask is None else mask != 0
        total, begin = y.new_zeros(()), 0
        for horizon, share in zip(self.horizons, self.shares, strict=True):
            prediction = every[..., begin : begin + horizon].to(y.dtype)
            counts = ahead(valid, horizon)
            if begins is not None:
                counts = counts & (ahead(begins, horizon) == begins.unsqueeze(-1))
            apart = torch.where(counts, prediction - ahead(y, horizon), 0)  # before the loss: a label may be NaN
            total = total + share * (huber(apart).sum() / counts.sum().clamp(min=1))
            begin += horizon
        return total / sum(self.shares)

    def predict(self, hidden: Tensor, horizon: int) -> Tensor:
        """The next points after each position, by the head of this horizon."""
        begin = sum(other for other in self.horizons if other < horizon)
        return F.linear(hidden, self.weight[begin : begin + horizon].to(hidden.dtype))


def huber(apart: Tensor) -> Tensor:
    """Huber loss: quadratic near 0, linear beyond `DELTA`."""
    size = apart.abs()
    return torch.where(size <= DELTA, 0.5 * apart.square(), DELTA * (size - 0.5 * DELTA))


def ahead(values: Tensor, horizon: int) -> Tensor:
    """`values[b, t + k]` for k below the horizon, [b, l, horizon]; 0 after the end."""
    return F.pad(values, (0, horizon - 1)).unfold(1, horizon, 1)


# ---- the gate of an expert: `silu(gate) * up`, times the share of its choice ----
#
# The forward pass is left to the compiler; the backward pass is one pass over the inputs (on a GPU a Triton kernel), which gives the
# gradients of gate, up and share together.


def gated(gate_up: Tensor, shares: Tensor) -> Tensor:
    """Rows [r, 2 n] of gate and up, and a share for each row: [r, n], in the numbers of the rows."""
    return _Gated.apply(gate_up, shares)  # type: ignore[no-any-return, no-untyped-call]


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, shares: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up, shares)
        gate, up = gate_up.chunk(2, -1)
        return (F.silu(gate) * up * shares.unsqueeze(1)).to(gate_up.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gated_backward(gradient.contiguous(), *ctx.saved_tensors)  # type: ignore[no-any-return]


@torch.library.custom_op("stoker::gated_backward", mutates_args=())
def gated_backward(gradient: Tensor, gate_up: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `gated`: of gate and up [r, 2 n], and of the shares [r]."""
    if gradient.is_cuda:
        from stoker_recipes.time_moe import kernels

        return kernels.gated_backward(gradient, gate_up, shares)
    gate, up = gate_up.to(shares.dtype).chunk(2, -1)
    sigmoid, whole = gate.sigmoid(), gradient.to(shares.dtype)
    silu, share = gate * sigmoid, shares.unsqueeze(1)
    to_gate = whole * share * up * (sigmoid + silu * (1 - sigmoid))
    return torch.cat((to_gate, whole * share * silu), -1).to(gate_up.dtype), (whole * silu * up).sum(-1)


@gated_backward.register_fake
def _(gradient: Tensor, gate_up: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate_up), torch.empty_like(shares)


# ---- grouped matmuls: rows that are sorted by group, each times the matrix of its group, without a host synchronisation ----
#
# Groups follow each other; `ends` (int32, on the device) says where each ends, and every group begins at a multiple of `tile_of`.
# Rows after the last group are undefined and must not be read. On a GPU these are Triton kernels, on a CPU a loop.

GPU_TILE = 128  # a multiple of the rows per program of the kernels: those of a program are all of one group
CPU_TILE = 8  # small, so that tests have padding without being large


def tile_of(device: torch.device) -> int:
    """Groups begin at multiples of this number."""
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
        return rows_by_group(rows, matrices, ends, True)  # type: ignore[no-any-return]

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
        from stoker_recipes.time_moe import kernels

        return kernels.rows_by_group(rows, weights, ends, transposed=transposed)
    matrices = weights.transpose(1, 2) if transposed else weights
    products = rows.new_zeros(len(rows), matrices.shape[2])
    for matrix, (begin, end) in zip(matrices, _bounds(ends), strict=True):
        products[begin:end] = rows[begin:end] @ matrix
    return products


@torch.library.custom_op("stoker::weights_by_group", mutates_args=())
def weights_by_group(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """`left.T @ right` over the rows of each group, in float32 at least: [r, n] and [r, k] are [groups, n, k]."""
    if left.is_cuda:
        from stoker_recipes.time_moe import kernels

        return kernels.weights_by_group(left, right, ends)
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


# ---- routing: the row of each choice of an expert in the sorted order, and back, without a host synchronisation ----
#
# A choice is a pair (position, k-th best expert), counted position by position. Rows are sorted by expert and padded, for each expert,
# to a multiple of the tile; their number is the largest possible. So all moves are gathers, forward and backward.


class Routing(NamedTuple):
    """Choices sorted by expert."""

    choice: Tensor  # of each row; -1 where it is filler. [rows]
    row: Tensor  # of each choice, [positions, k]
    ends: Tensor  # where the rows of each expert end, filler included. [experts]
    counts: Tensor  # how many choices fell on each expert. [experts]

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
    """The most rows that can be needed: each expert has at least one tile, and pads its last."""
    return (choices // tile + num_experts) * tile


@torch.library.custom_op("stoker::sort_by_expert", mutates_args=())
def sort_by_expert(experts: Tensor, num_experts: int, tile: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choice of each row, row of each choice, ends and counts (see `Routing`), all int32."""
    if experts.is_cuda:
        from stoker_recipes.time_moe import kernels

        return kernels.sort_by_expert(experts, num_experts, tile, num_rows(experts.numel(), num_experts, tile))
    return sort_plainly(experts, num_experts, tile)


def sort_plainly(experts: Tensor, num_experts: int, tile: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same in torch."""
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
def _(experts: Tensor, num_experts: int, tile: int) -> tuple[Tensor, ...]:
    shapes = ((num_rows(experts.numel(), num_experts, tile),), experts.shape, (num_experts,), (num_experts,))
    return tuple(experts.new_empty(shape, dtype=torch.int32) for shape in shapes)


def _combine(rows: Tensor, row: Tensor) -> Tensor:
    total = rows[row[:, 0]]
    for number in range(1, row.shape[1]):
        total = total + rows[row[:, number]]
    return total


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, choice: Tensor, row: Tensor) -> Tensor:
        ctx.save_for_backward(row)
        return x[choice.clamp(min=0) // row.shape[1]]

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
        return gradient[choice.clamp(min=0) // ctx.k], None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shares: Tensor, choice: Tensor, row: Tensor) -> Tensor:
        ctx.save_for_backward(row)
        return torch.where(choice < 0, 0, shares.reshape(-1)[choice.clamp(min=0)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (row,) = ctx.saved_tensors
        return gradient[row], None, None


# ---- experts: a position goes to the best experts of its router, and to a shared one ----
#
# Choices are sorted by expert, so that each matmul is one kernel over all experts; no shape depends on the data. The share is
# multiplied into the hidden layer of an expert: padding has share 0, so it does not count.


class Load(NamedTuple):
    """The load of the experts of a layer."""

    counts: Tensor  # choices that fell on each expert
    probabilities: Tensor  # sum over all positions of the probability of each expert


class Experts(nn.Module):
    """The mixture of experts of a layer. The matrices of all experts are one tensor, gate above up."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.top_k, self.num_experts, self.shared_width = size.top_k, size.experts, size.intermediate
        width = size.expert_width
        self.router = nn.Parameter(torch.empty(size.experts, size.hidden))
        self.gate_up = nn.Parameter(torch.empty(size.experts, 2 * width, size.hidden))
        self.down = nn.Parameter(torch.empty(size.experts, size.hidden, width))
        self.shared_switch = nn.Parameter(torch.empty(1, size.hidden))
        self.shared_gate_up = nn.Parameter(torch.empty(2 * size.intermediate, size.hidden))
        self.shared_down = nn.Parameter(torch.empty(size.hidden, size.intermediate))

    def forward(self, x: Tensor) -> tuple[Tensor, Load]:
        """The output of the experts for positions [b, l, hidden], and their load."""
        positions = x.reshape(-1, x.shape[-1])
        # One matmul computes the shared expert, its gate, and the router's logits.
        parts: list[Tensor] = [self.shared_gate_up, self.shared_switch, self.router]
        missing = -sum(map(len, parts)) % ALIGNED
        joined = F.pad(torch.cat(parts), (0, 0, 0, missing)).to(x.dtype)
        widths = [self.shared_width, self.shared_width, 1, self.num_experts, missing]
        gate, up, switch, logits, _ = torch.split(F.linear(positions, joined), widths, -1)
        shared = F.linear(F.silu(gate) * up, self.shared_down.to(x.dtype))
        probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        shares, experts = best(probabilities, self.top_k)
        routing = route(experts, self.num_experts)
        gate_up = grouped_product(routing.gather(positions), self.gate_up, routing.ends)
        rows = grouped_product(gated(gate_up, routing.spread(shares)), self.down, routing.ends)
        out = routing.combine(rows) + torch.sigmoid(switch) * shared
        return out.view(x.shape), Load(routing.counts, probabilities.sum(0))


def best(probabilities: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and where they are, the largest first; of equals the first.

    As `topk`, which is a kernel of its own and sends gradients back by another.
    """
    index = torch.arange(probabilities.shape[-1], device=probabilities.device)
    left = probabilities.detach()
    shares, places = [], []
    for _ in range(k):
        place = left.argmax(-1, keepdim=True)
        is_it = index == place
        shares.append(torch.where(is_it, probabilities, 0).sum(-1))
        places.append(place.squeeze(-1))
        left = left.masked_fill(is_it, -1)
    return torch.stack(shares, -1), torch.stack(places, -1)


# ---- attention: each position sees itself and earlier ones of its own series ----
#
# A plain batch has one series per row. In a packed batch a row holds several: positions restart in each, and none sees another. On a GPU
# both are Triton kernels that visit only visible blocks; elsewhere torch's attention, with a mask where needed.
# Axes: b rows, l positions, h heads, d numbers per head.

WIDTHS = (16, 32, 64)  # of heads that the kernels can have


class SeriesRuns(NamedTuple):
    """Series within packed rows: where the series of each position [b, l] begins and ends (int32)."""

    begins: Tensor
    ends: Tensor

    @property
    def positions(self) -> Tensor:
        """The position within its series."""
        return torch.arange(self.begins.shape[1], device=self.begins.device) - self.begins


class Positions(NamedTuple):
    """Rotary angles and attention mask of the positions of a batch, shared by all layers."""

    cos: Tensor  # cosine and sine of the rotary angle of each position, [l, d/2] or [b, l, d/2]
    sin: Tensor
    within: Tensor | SeriesRuns | None  # visible positions, as a mask or as the runs of packed rows; None for all earlier ones


class Cache:
    """Keys and values of the points that one layer has seen."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: tuple[Tensor, Tensor] | None = None
        self._count = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [b, l, h, d] of new points; returns those of all points so far."""
        if self._kept is None:
            rows, _, heads, width = keys.shape
            self._kept = keys.new_empty(rows, self._capacity, heads, width), values.new_empty(rows, self._capacity, heads, width)
        begin, self._count = self._count, self._count + keys.shape[1]
        for memory, new in zip(self._kept, (keys, values), strict=True):
            memory[:, begin : self._count] = new
        return self._kept[0][:, : self._count], self._kept[1][:, : self._count]


class Attention(nn.Module):
    """Multi-head attention with rotary positions."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.out = nn.Linear(size.hidden, size.hidden, bias=False)

    def forward(self, x: Tensor, place: Positions, cache: Cache | None = None) -> Tensor:
        """Attention of positions `x`; with a cache, also to earlier ones, and `x` is appended to the cache."""
        rows, length, hidden = x.shape
        joined = F.linear(x, self.qkv.weight.to(x.dtype), self.qkv.bias.to(x.dtype))
        q_blhd, k_blhd, v_blhd = joined.view(rows, length, 3, self.heads, hidden // self.heads).unbind(2)
        q_blhd, k_blhd = turned(q_blhd, place), turned(k_blhd, place)
        if cache is not None:
            k_blhd, v_blhd = cache.extend(k_blhd, v_blhd)
        seen = attend(q_blhd, k_blhd, v_blhd, place.within)
        return F.linear(seen.reshape(rows, length, hidden), self.out.weight.to(x.dtype))


def turned(x_blhd: Tensor, place: Positions) -> Tensor:
    """Rotary embedding of queries or keys: the first half of a head against the second."""
    first, second = x_blhd.to(place.cos.dtype).chunk(2, -1)
    cos, sin = place.cos.unsqueeze(-2), place.sin.unsqueeze(-2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x_blhd.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, within: Tensor | SeriesRuns | None) -> Tensor:
    """Scaled dot-product attention; all are [b, l, h, d]."""
    if not isinstance(within, Tensor) and has_kernel(q):
        begins, ends = (None, None) if within is None else within
        return causal_attention(q, k, v, begins, ends)[0]  # type: ignore[no-any-return]
    mask = seen_within(within) if isinstance(within, SeriesRuns) else within
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None).transpose(1, 2)


def has_kernel(q: Tensor) -> bool:
    """Whether the Triton kernels support these queries."""
    return q.is_cuda and q.dtype != torch.float64 and q.shape[-1] in WIDTHS


def seen_within(runs: SeriesRuns) -> Tensor:
    """The attention mask of packed rows, [b, 1, l, l]."""
    index = torch.arange(runs.begins.shape[1], device=runs.begins.device)
    return ((index >= runs.begins.unsqueeze(2)) & (index <= index.unsqueeze(1))).unsqueeze(1)


@torch.library.custom_op("stoker::causal_attention", mutates_args=(), device_types="cuda")
def causal_attention(q: Tensor, k: Tensor, v: Tensor, begins: Tensor | None, ends: Tensor | None) -> tuple[Tensor, Tensor]:
    """The attention output [b, l, h, d], and the log-sum-exp of the scores [b, h, l] for the backward pass."""
    from stoker_recipes.time_moe import kernels

    return kernels.forward(q, k, v, None if begins is None or ends is None else (begins, ends))


@torch.library.custom_op("stoker::causal_attention_backward", mutates_args=(), device_types="cuda")
def causal_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, levels: Tensor, gradient: Tensor, begins: Tensor | None, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    from stoker_recipes.time_moe import kernels

    return kernels.backward(q, k, v, out, levels, gradient, None if begins is None or ends is None else (begins, ends))


@causal_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, begins: Tensor | None, ends: Tensor | None) -> tuple[Tensor, Tensor]:
    rows, length, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty(rows, heads, length, dtype=torch.float32)


@causal_attention_backward.register_fake
def _(q: Tensor, *others: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, begins, ends, out, levels = ctx.saved_tensors
    return *causal_attention_backward(q, k, v, out, levels, gradient, begins, ends), None, None


causal_attention.register_autograd(_backward, setup_context=_keep)


def positions_of(positions: Tensor, size: Size, dtype: torch.dtype, within: Tensor | SeriesRuns | None) -> Positions:
    """The rotary angles of positions [l] or [b, l], computed in `dtype`, and the mask."""
    exponents = torch.arange(0, size.head_width, 2, device=positions.device, dtype=dtype) / size.head_width
    angles = positions.to(dtype).unsqueeze(-1) * size.rope_theta**-exponents
    return Positions(angles.cos(), angles.sin(), within)


def runs_of(segments: Tensor) -> SeriesRuns:
    """The runs of equal segments in [b, l]."""
    length = segments.shape[1]
    index = torch.arange(length, device=segments.device).expand(segments.shape)
    changes = segments[:, 1:] != segments[:, :-1]
    begins = torch.where(F.pad(changes, (1, 0), value=False), index, 0).cummax(1).values
    ends = torch.where(F.pad(changes, (0, 1), value=False), index + 1, length).flip(1).cummin(1).values.flip(1)
    return SeriesRuns(begins.int().contiguous(), ends.int().contiguous())
