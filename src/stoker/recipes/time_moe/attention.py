"""Attention: each position looks at itself and at what came before it, within its own series.

A plain batch has one series a row. In a packed batch a row holds several: positions begin anew in each, and none sees another. On a
GPU both are Triton kernels that visit only what is seen; elsewhere it is torch's attention, with a mask where it is needed.

Axes: b rows, l positions, h heads, d numbers a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from stoker.recipes.time_moe.decode import Cache
    from stoker.recipes.time_moe.sizes import Size

WIDTHS = (16, 32, 64)
"""Of heads that the kernels can have."""


class Runs(NamedTuple):
    """Series within packed rows: for each position of [b, l], where its own begins, and where it ends (int32)."""

    begins: Tensor
    ends: Tensor

    @property
    def positions(self) -> Tensor:
        """Of each position within its series."""
        return torch.arange(self.begins.shape[1], device=self.begins.device) - self.begins


class Place(NamedTuple):
    """Where the positions of a batch are, and what they may look at: made once a batch, used by every layer."""

    cos: Tensor
    """Of the angle by which a position turns queries and keys, [l, d/2] or [b, l, d/2]."""
    sin: Tensor
    within: Tensor | Runs | None
    """What each position sees, as a mask or as the runs of packed rows; None where that is all before it."""


class Attention(nn.Module):
    """Queries, keys and values by one product, turned by their positions, and what the heads found joined by another."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.out = nn.Linear(size.hidden, size.hidden, bias=False)

    def forward(self, x: Tensor, place: Place, cache: Cache | None = None) -> Tensor:
        """What each position makes of those it sees; with a cache, also of those before `x`, which then keeps these too."""
        rows, length, hidden = x.shape
        joined = F.linear(x, self.qkv.weight.to(x.dtype), self.qkv.bias.to(x.dtype))
        q_blhd, k_blhd, v_blhd = joined.view(rows, length, 3, self.heads, hidden // self.heads).unbind(2)
        q_blhd, k_blhd = turned(q_blhd, place), turned(k_blhd, place)
        if cache is not None:
            k_blhd, v_blhd = cache.extend(k_blhd, v_blhd)
        seen = attend(q_blhd, k_blhd, v_blhd, place.within)
        return F.linear(seen.reshape(rows, length, hidden), self.out.weight.to(x.dtype))


def turned(x_blhd: Tensor, place: Place) -> Tensor:
    """Queries or keys turned by their positions: the first half of a head's numbers against the second."""
    first, second = x_blhd.to(place.cos.dtype).chunk(2, -1)
    cos, sin = place.cos.unsqueeze(-2), place.sin.unsqueeze(-2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x_blhd.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, within: Tensor | Runs | None) -> Tensor:
    """Mean of values, weighted by the softmax of what queries and keys have in common; all are [b, l, h, d]."""
    if not isinstance(within, Tensor) and has_kernel(q):
        begins, ends = (None, None) if within is None else within
        found: Tensor = causal_attention(q, k, v, begins, ends)[0]
        return found
    mask = seen_within(within) if isinstance(within, Runs) else within
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None).transpose(1, 2)


def has_kernel(q: Tensor) -> bool:
    """Whether queries are such as the Triton kernels take."""
    return q.is_cuda and q.dtype != torch.float64 and q.shape[-1] in WIDTHS


def seen_within(runs: Runs) -> Tensor:
    """What positions see in packed rows, as a mask [b, 1, l, l]."""
    index = torch.arange(runs.begins.shape[1], device=runs.begins.device)
    return ((index >= runs.begins.unsqueeze(2)) & (index <= index.unsqueeze(1))).unsqueeze(1)


@torch.library.custom_op("stoker::causal_attention", mutates_args=(), device_types="cuda")
def causal_attention(q: Tensor, k: Tensor, v: Tensor, begins: Tensor | None, ends: Tensor | None) -> tuple[Tensor, Tensor]:
    """What each query sees [b, l, h, d], and the level of its scores [b, h, l], which the backward pass needs."""
    from stoker.recipes.time_moe import attention_kernels

    return attention_kernels.forward(q, k, v, None if begins is None or ends is None else (begins, ends))


@torch.library.custom_op("stoker::causal_attention_backward", mutates_args=(), device_types="cuda")
def causal_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, levels: Tensor, gradient: Tensor, begins: Tensor | None, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    from stoker.recipes.time_moe import attention_kernels

    runs = None if begins is None or ends is None else (begins, ends)
    return attention_kernels.backward(q, k, v, out, levels, gradient, runs)


@causal_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, begins: Tensor | None, ends: Tensor | None) -> tuple[Tensor, Tensor]:
    rows, length, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty(rows, heads, length, dtype=torch.float32)


@causal_attention_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, levels: Tensor, gradient: Tensor, begins: Tensor | None, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, begins, ends, out, levels = ctx.saved_tensors
    return *causal_attention_backward(q, k, v, out, levels, gradient, begins, ends), None, None


causal_attention.register_autograd(_backward, setup_context=_keep)


def place_of(positions: Tensor, size: Size, dtype: torch.dtype, within: Tensor | Runs | None) -> Place:
    """The place of positions, [l] or [b, l]; angles are computed in `dtype`."""
    exponents = torch.arange(0, size.head_width, 2, device=positions.device, dtype=dtype) / size.head_width
    angles = positions.to(dtype).unsqueeze(-1) * size.rope_theta**-exponents
    return Place(angles.cos(), angles.sin(), within)


def runs_of(segments: Tensor) -> Runs:
    """The runs of equal segments in [b, l]."""
    length = segments.shape[1]
    index = torch.arange(length, device=segments.device).expand(segments.shape)
    changes = segments[:, 1:] != segments[:, :-1]
    begins = torch.where(F.pad(changes, (1, 0), value=False), index, 0).cummax(1).values
    ends = torch.where(F.pad(changes, (0, 1), value=False), index + 1, length).flip(1).cummin(1).values.flip(1)
    return Runs(begins.int().contiguous(), ends.int().contiguous())
