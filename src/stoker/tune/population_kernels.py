"""Triton kernels for attention over short sequences and layer norm of all members at once. Imported only where there is a GPU.

Small layers are bound by memory, and torch's kernels are made for wide ones. Here a head of attention is one tile, which is read once
forward and once backward, where it lies; nothing but the inputs is kept for the backward pass. Of a layer norm, a program computes
several rows.

Tensors are float32. Matmuls follow torch's setting for float32: TF32, or three TF32 matmuls that together have about the precision of
float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_STEPS, MOST_WIDTH = 64, 64
"""Of attention, whose heads are one tile each; larger tiles do not fit into registers."""
ATTENTION_WARPS = 4
NORM_TILE, MOST_TILES, PROGRAMS = 4096, 8, 1024
"""Of layer norm: numbers per tile, tiles per program in the backward pass, and programs that keep a GPU busy."""


def _expanded(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors for all members, without a copy of what they share."""
    size = max(len(one) for one in tensors)
    return [one.expand(size, *one.shape[1:]) for one in tensors]


def _precision() -> str:
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _power(size: int, least: int = 16) -> int:
    return max(least, int(triton.next_power_of_2(size)))


# ---- attention ----


@triton.jit  # type: ignore[untyped-decorator]
def _load(base, step_stride, steps, width, STEPS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """The vectors of one head, zero outside."""
    step, at = tl.arange(0, STEPS), tl.arange(0, WIDTH)
    inside = (step[:, None] < steps) & (at[None, :] < width)
    return tl.load(base + step[:, None] * step_stride + at[None, :], mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _store(base, step_stride, steps, width, values, STEPS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    step, at = tl.arange(0, STEPS), tl.arange(0, WIDTH)
    inside = (step[:, None] < steps) & (at[None, :] < width)
    tl.store(base + step[:, None] * step_stride + at[None, :], values, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _weights_of(  # type: ignore[no-untyped-def]
    q, k, scale, mask, mask_step, mask_key, steps, key_steps,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, STEPS: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The softmax of the scores of one head."""
    step, key = tl.arange(0, STEPS)[:, None], tl.arange(0, KEYS)[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if MASK:
        scores += tl.load(mask + step * mask_step + key * mask_key, mask=(step < steps) & (key < key_steps), other=0.0)
    allowed = key < key_steps
    if CAUSAL:
        allowed = allowed & (key <= step)
    scores = tl.where(allowed, scores, float("-inf"))
    found = tl.exp(scores - tl.max(scores, 1)[:, None])
    return found / tl.sum(found, 1)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _attention_kernel(  # type: ignore[no-untyped-def]
    query, key, value, mask, out, scale, rows, heads, steps, key_steps, width,
    q_row, q_head, q_step, k_row, k_head, k_step, v_row, v_head, v_step, o_row, o_head, o_step,
    m_member, m_row, m_head, m_step, m_key,
    MASK: tl.constexpr, CAUSAL: tl.constexpr,
    STEPS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head of one row."""
    row, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    mask += (row // rows) * m_member + (row % rows) * m_row + head * m_head
    q = _load(query + row * q_row + head * q_head, q_step, steps, width, STEPS, WIDTH)
    k = _load(key + row * k_row + head * k_head, k_step, key_steps, width, KEYS, WIDTH)
    v = _load(value + row * v_row + head * v_head, v_step, key_steps, width, KEYS, WIDTH)
    weights = _weights_of(q, k, scale, mask, m_step, m_key, steps, key_steps, MASK, CAUSAL, STEPS, KEYS, PRECISION)
    found = tl.dot(weights, v, input_precision=PRECISION)
    _store(out + row * o_row + head * o_head, o_step, steps, width, found, STEPS, WIDTH)


@triton.jit  # type: ignore[untyped-decorator]
def _attention_gradient_kernel(  # type: ignore[no-untyped-def]
    query, key, value, mask, gradient, d_query, d_key, d_value, scale, rows, heads, steps, key_steps, width,
    q_row, q_head, q_step, k_row, k_head, k_step, v_row, v_head, v_step, g_row, g_head, g_step,
    dq_row, dq_head, dq_step, dk_row, dk_head, dk_step, dv_row, dv_head, dv_step,
    m_member, m_row, m_head, m_step, m_key,
    MASK: tl.constexpr, CAUSAL: tl.constexpr,
    STEPS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of one head of one row; its softmax is computed again."""
    row, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    mask += (row // rows) * m_member + (row % rows) * m_row + head * m_head
    q = _load(query + row * q_row + head * q_head, q_step, steps, width, STEPS, WIDTH)
    k = _load(key + row * k_row + head * k_head, k_step, key_steps, width, KEYS, WIDTH)
    v = _load(value + row * v_row + head * v_head, v_step, key_steps, width, KEYS, WIDTH)
    g = _load(gradient + row * g_row + head * g_head, g_step, steps, width, STEPS, WIDTH)
    weights = _weights_of(q, k, scale, mask, m_step, m_key, steps, key_steps, MASK, CAUSAL, STEPS, KEYS, PRECISION)
    found = tl.dot(tl.trans(weights), g, input_precision=PRECISION)
    _store(d_value + row * dv_row + head * dv_head, dv_step, key_steps, width, found, KEYS, WIDTH)
    d_weights = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    d_scores = weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None]) * scale
    found = tl.dot(d_scores, k, input_precision=PRECISION)
    _store(d_query + row * dq_row + head * dq_head, dq_step, steps, width, found, STEPS, WIDTH)
    found = tl.dot(tl.trans(d_scores), q, input_precision=PRECISION)
    _store(d_key + row * dk_row + head * dk_head, dk_step, key_steps, width, found, KEYS, WIDTH)


def is_short(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether a head of a member is one tile."""
    return (
        query.dim() in (3, 4)
        and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
        and max(query.shape[-2], key.shape[-2]) <= MOST_STEPS
        and query.shape[-1] == value.shape[-1] <= MOST_WIDTH
    )


@dataclass(frozen=True, kw_only=True)
class ShortAttention:
    """`scaled_dot_product_attention` of [K, rows, heads, steps, width], or without rows."""

    is_causal: bool
    scale: float | None

    def forward(self, *tensors: Tensor) -> Tensor:
        """Of query, key, value, and perhaps a mask."""
        given = _expanded(tensors[:3])
        q, k, v = map(_heads, given)
        out = _new_heads(q)
        self._launch(_attention_kernel, (q, k, v), (out,), tensors)
        return out if given[0].dim() == 4 else out.view(*given[0].shape[:2], *out.shape[1:])

    def gradient(self, gradient: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        """Of query, key and value."""
        members = _expanded((*tensors[:3], gradient))
        *given, g = map(_heads, members)
        found = [_new_heads(one) for one in given]
        self._launch(_attention_gradient_kernel, given, (g, *found), tensors)
        lead = () if gradient.dim() == 4 else members[0].shape[:2]
        return *(one.view(*lead, *one.shape[1:]) if lead else one for one in found), *([None] * (len(tensors) - 3))

    def _launch(self, kernel: Any, given: Sequence[Tensor], more: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        q, k, _ = given
        num_rows, heads, steps, width = q.shape
        members = max(len(one) for one in tensors[:3])
        mask = _additive(tensors[3], members, num_rows // members, heads, steps, k.shape[2]) if len(tensors) > 3 else None
        scale = width**-0.5 if self.scale is None else self.scale
        kernel[(num_rows * heads,)](
            *given, q if mask is None else mask, *more, scale, num_rows // members, heads, steps, k.shape[2], width,
            *(stride for one in (*given, *more) for stride in one.stride()[:3]), *((0,) * 5 if mask is None else mask.stride()),
            MASK=mask is not None, CAUSAL=self.is_causal, PRECISION=_precision(), num_warps=ATTENTION_WARPS,
            STEPS=_power(steps), KEYS=_power(k.shape[2]), WIDTH=_power(width),
        )  # fmt: skip


def _heads(tensor: Tensor) -> Tensor:
    """[K, rows, heads, steps, width] with members as rows, and a dense last dimension."""
    tensor = tensor.flatten(0, 1) if tensor.dim() > 4 else tensor
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _new_heads(like: Tensor) -> Tensor:
    """Memory in which the heads of a step lie side by side, as the next layer reads them."""
    rows, heads, steps, width = like.shape
    return torch.empty(rows, steps, heads, width, dtype=like.dtype, device=like.device).transpose(1, 2)


def _additive(mask: Tensor, members: int, *shape: int) -> Tensor:
    """What is added to the scores [K, rows, heads, steps, keys], without a copy of what is shared."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -math.inf)
    ones = [1] * (1 + len(shape) - mask.dim())
    return mask.float().reshape(len(mask), *ones, *mask.shape[1:]).expand(members, *shape)


# ---- layer norm ----


@triton.jit  # type: ignore[untyped-decorator]
def _norm_kernel(  # type: ignore[no-untyped-def]
    input, weight, bias, out, eps, num_rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Some rows of one member."""
    member = tl.program_id(1).to(tl.int64)
    row, at = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row[:, None] < num_rows) & (at[None, :] < width)
    offset = (member * num_rows + row[:, None]) * width + at[None, :]
    x = tl.load(input + offset, mask=inside, other=0.0)
    centered = tl.where(at[None, :] < width, x - (tl.sum(x, 1) / width)[:, None], 0.0)
    scale = 1 / tl.sqrt_rn(tl.sum(centered * centered, 1) / width + eps)
    w = tl.load(weight + member * width + at, mask=at < width, other=0.0)
    b = tl.load(bias + member * width + at, mask=at < width, other=0.0)
    tl.store(out + offset, centered * scale[:, None] * w[None, :] + b[None, :], mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_gradient_kernel(  # type: ignore[no-untyped-def]
    gradient, input, weight, d_input, d_weight, d_bias, eps, num_rows, width, tiles,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Some tiles of rows of one member, and their part of the sums for weight and bias."""
    member = tl.program_id(1).to(tl.int64)
    at = tl.arange(0, WIDTH)
    w = tl.load(weight + member * width + at, mask=at < width, other=0.0)
    sum_weight, sum_bias = tl.zeros((WIDTH,), dtype=tl.float32), tl.zeros((WIDTH,), dtype=tl.float32)
    for tile in range(tiles):
        row = (tl.program_id(0) * tiles + tile) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < num_rows) & (at[None, :] < width)
        offset = (member * num_rows + row[:, None]) * width + at[None, :]
        x = tl.load(input + offset, mask=inside, other=0.0)
        g = tl.load(gradient + offset, mask=inside, other=0.0)
        centered = tl.where(at[None, :] < width, x - (tl.sum(x, 1) / width)[:, None], 0.0)
        scale = 1 / tl.sqrt_rn(tl.sum(centered * centered, 1) / width + eps)
        normal = centered * scale[:, None]
        sum_weight += tl.sum(g * normal, 0)
        sum_bias += tl.sum(g, 0)
        d_normal = g * w[None, :]
        mean = tl.sum(d_normal, 1) / width
        along = tl.sum(d_normal * normal, 1) / width
        found = (d_normal - mean[:, None] - normal * along[:, None]) * scale[:, None]
        tl.store(d_input + offset, found, mask=inside)
    to = (member * tl.num_programs(0) + tl.program_id(0)) * width + at
    tl.store(d_weight + to, sum_weight, mask=at < width)
    tl.store(d_bias + to, sum_bias, mask=at < width)


@dataclass(frozen=True, kw_only=True)
class NarrowNorm:
    """Layer norm of [K, ..., width] with weight and bias [K, width]."""

    eps: float

    def forward(self, *tensors: Tensor) -> Tensor:
        """Of input, weight and bias."""
        x, weight, bias = (one.contiguous() for one in _expanded(tensors))
        out, (num_rows, width, tile) = torch.empty_like(x), _norm_tile(x)
        _norm_kernel[(triton.cdiv(num_rows, tile["ROWS"]), len(x))](x, weight, bias, out, self.eps, num_rows, width, **tile)
        return out

    def gradient(self, gradient: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        """Of input, weight and bias."""
        g, x, weight = (one.contiguous() for one in _expanded((gradient, *tensors[:2])))
        num_rows, width, tile = _norm_tile(x)
        tiles = triton.cdiv(num_rows, tile["ROWS"])
        each = max(1, min(MOST_TILES, tiles * len(x) // PROGRAMS))
        parts = triton.cdiv(tiles, each)
        d_input, sums = torch.empty_like(x), x.new_empty(2, len(x), parts, width)
        _norm_gradient_kernel[(parts, len(x))](g, x, weight, d_input, sums[0], sums[1], self.eps, num_rows, width, each, **tile)
        return d_input, *sums.sum(2)


def _norm_tile(x: Tensor) -> tuple[int, int, dict[str, int]]:
    """Rows of a member, their width, and the tile of a program."""
    width = x.shape[-1]
    padded = _power(width, 1)
    return x[0].numel() // width, width, {"ROWS": max(1, NORM_TILE // padded), "WIDTH": padded}
