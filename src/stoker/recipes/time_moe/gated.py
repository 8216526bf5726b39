"""The gate of an expert: `silu(gate) * up`, times the share that its choice has.

Forward it is left to whoever compiles the model; backward it is one pass over what goes in (on a GPU a Triton kernel), which gives
the gradients of gate, up and share together.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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
        gate_up, shares = ctx.saved_tensors
        to_gate_up, to_shares = gated_backward(gradient.contiguous(), gate_up, shares)
        return to_gate_up, to_shares


@torch.library.custom_op("stoker::gated_backward", mutates_args=())
def gated_backward(gradient: Tensor, gate_up: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `gated`: of gate and up [r, 2 n], and of the shares [r]."""
    if gradient.is_cuda:
        from stoker.recipes.time_moe import grouped_kernels

        return grouped_kernels.gated_backward(gradient, gate_up, shares)
    gate, up = gate_up.to(shares.dtype).chunk(2, -1)
    sigmoid, whole = gate.sigmoid(), gradient.to(shares.dtype)
    silu, share = gate * sigmoid, shares.unsqueeze(1)
    to_gate = whole * share * up * (sigmoid + silu * (1 - sigmoid))
    return torch.cat((to_gate, whole * share * silu), -1).to(gate_up.dtype), (whole * silu * up).sum(-1)


@gated_backward.register_fake
def _(gradient: Tensor, gate_up: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate_up), torch.empty_like(shares)
