"""The layers on a GPU: forward and backward by hand, with fused kernels between matmuls. `model.plain_trunk` is the same in plain torch.

Of each layer only what the gradient needs is kept: normed rows and the factors of their norms, queries with keys and values, the output
of attention, and the output of ReLU squared, whose root is its input. In the last layer only CLS rows are computed behind attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stoker_recipes.icecube import kernels

MATRICES = 6  # per layer: queries, keys, values, output, and two of the FFN


def _weight_gradient(to_out: Tensor, rows: Tensor) -> Tensor:
    """The gradient of a matrix, in float32 whatever the type of the rows."""
    if to_out.is_cuda and to_out.dtype != torch.float32:
        return torch.mm(to_out.t(), rows, out_dtype=torch.float32)
    return to_out.t() @ rows


class Trunk(torch.autograd.Function):
    """Rows of DOM tokens -> the last residual of the CLS tokens."""

    @staticmethod
    def forward(
        ctx: Any, lin: Tensor, cls: Tensor, resid: Tensor, x0_scale: Tensor, source: Tensor, offsets: Tensor, order: Tensor,
        heads: int, dtype: torch.dtype, keeps: bool, *weights: Tensor,
    ) -> Tensor:  # fmt: skip
        """`dtype` is that of the residual; that of `lin` is the type of matmuls."""
        layers, kind = len(weights) // MATRICES, lin.dtype
        matrices = [_narrow(weights[MATRICES * i : MATRICES * (i + 1)], kind) for i in range(layers)]
        rows = offsets[:-1].long()
        x0 = kernels.embed(lin, cls, source, dtype=dtype)
        saved: list[tuple[Tensor | None, ...]] = []
        x, y = x0, None
        for i, (qkv_w, out_w, up_w, down_w) in enumerate(matrices):
            before = (None, None) if y is None else (x, y)
            x, normed, scales = kernels.mix(x, y, x0, resid[i], x0_scale[i], dtype=kind)
            if i < layers - 1:
                qkv = normed @ qkv_w.t()
                mixed, levels = kernels.attend(qkv, offsets, order, heads)
                wide: tuple[Tensor, ...] = (normed, scales, qkv)
            else:
                width = qkv_w.shape[0] // 3
                here = normed[rows]
                q, kv = here @ qkv_w[:width].t(), normed @ qkv_w[width:].t()
                mixed, levels = kernels.attend_cls(q, kv, offsets, heads)
                wide, x = (normed, scales, q, kv, here), x[rows]
            x, ffn_normed, ffn_scales = kernels.mix(x, mixed @ out_w.t(), None, None, None, dtype=kind)
            squared = kernels.up_squared(ffn_normed, up_w)
            y = squared @ down_w.t()
            if keeps:
                saved.append((*before, mixed, levels, ffn_normed, ffn_scales, squared, *wide))
        if keeps:
            ctx.saved, ctx.matrices = saved, matrices
            ctx.first = lin, x0, resid, x0_scale, source, offsets, order
            ctx.heads = heads
        assert y is not None
        return x + y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Gradients of `lin`, of CLS, of the scalars and of all matrices."""
        lin, x0, resid, x0_scale, source, offsets, order = ctx.first
        rows, layers, to_x0 = offsets[:-1].long(), len(ctx.matrices), None
        scalars: list[Tensor] = [gradient] * layers
        matrices: list[list[Tensor]] = [[]] * layers
        g = gradient.contiguous()
        narrow = g.to(lin.dtype)
        for i in reversed(range(layers)):
            qkv_w, out_w, up_w, down_w = ctx.matrices[i]
            x, y, mixed, levels, ffn_normed, ffn_scales, squared, normed, scales, *wide = ctx.saved.pop()
            to_down = _weight_gradient(narrow, squared)
            to_up = kernels.down_back(narrow, down_w, squared)
            del squared
            g, narrow = kernels.norm_back(g, to_up @ up_w, ffn_normed, ffn_scales)
            ends = [_weight_gradient(narrow, mixed), _weight_gradient(to_up, ffn_normed), to_down]
            del to_up
            to_mixed = narrow @ out_w
            if i < layers - 1:
                to_qkv = kernels.attend_back(wide[0], offsets, order, ctx.heads, mixed, levels, to_mixed)
                starts, to_normed, only = _weight_gradient(to_qkv, normed).chunk(3), to_qkv @ qkv_w, None
                del to_qkv
            else:
                q, kv, here = wide
                to_q, to_kv = kernels.attend_cls_back(q, kv, offsets, ctx.heads, mixed, levels, to_mixed)
                width = q.shape[1]
                starts = (_weight_gradient(to_q, here), *_weight_gradient(to_kv, normed).chunk(2))
                to_normed = to_kv @ qkv_w[width:]
                to_normed[rows] += to_q @ qkv_w[:width]
                only = source
                del to_kv
            g, narrow, to_x0, scalars[i] = kernels.mix_back(
                g, only, to_normed, normed, scales, x, y, x0, resid[i], x0_scale[i], to_x0
            )  # fmt: skip
            matrices[i] = [*starts, *ends]
        assert to_x0 is not None
        to_lin = kernels.embed_back(lin, source, to_x0) if ctx.needs_input_grad[0] else None
        both = torch.stack(scalars)
        return (
            to_lin,
            to_x0[rows].sum(0),
            both[:, 0],
            both[:, 1],
            *[None] * 6,
            *(matrix for layer in matrices for matrix in layer),
        )


def _narrow(weights: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The matrices of a layer in the type of matmuls; those of queries, keys and values as one."""
    q, k, v, out, up, down = weights
    return torch.cat([q, k, v]).to(dtype), out.to(dtype), up.to(dtype), down.to(dtype)
