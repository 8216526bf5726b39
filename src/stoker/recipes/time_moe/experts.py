"""Experts: a position goes to the few experts that its router likes best, and to one that all share.

Choices are sorted by expert, so that each product is one kernel over all experts; no shape depends on the data, and nothing waits.
A share is multiplied into what goes out of an expert's first half: filler has share 0, so whatever it holds counts nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.recipes.time_moe.gated import gated
from stoker.recipes.time_moe.grouped import grouped_product
from stoker.recipes.time_moe.routing import route

if TYPE_CHECKING:
    from stoker.recipes.time_moe.sizes import Size

ALIGNED = 8
"""Columns of a product are a multiple of this: other widths have no fast kernel."""


class Load(NamedTuple):
    """How evenly the experts of a layer are used."""

    counts: Tensor
    """Choices that fell on each expert."""
    probabilities: Tensor
    """Sum over all positions of the probability of each expert."""


class Experts(nn.Module):
    """The feeding part of a layer. Matrices of experts are held in one tensor each, gate above up."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.top_k = size.top_k
        self.num_experts = size.experts
        self.shared_width = size.intermediate
        width = size.expert_width
        self.router = nn.Parameter(torch.empty(size.experts, size.hidden))
        self.gate_up = nn.Parameter(torch.empty(size.experts, 2 * width, size.hidden))
        self.down = nn.Parameter(torch.empty(size.experts, size.hidden, width))
        self.shared_switch = nn.Parameter(torch.empty(1, size.hidden))
        self.shared_gate_up = nn.Parameter(torch.empty(2 * size.intermediate, size.hidden))
        self.shared_down = nn.Parameter(torch.empty(size.hidden, size.intermediate))

    def forward(self, x: Tensor) -> tuple[Tensor, Load]:
        """What the experts make of positions [b, l, hidden], and how they were used."""
        positions = x.reshape(-1, x.shape[-1])
        shared, switch, logits = self._shared(positions)
        probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        shares, experts = best(probabilities, self.top_k)
        routing = route(experts, self.num_experts)
        gate_up = grouped_product(routing.gather(positions), self.gate_up, routing.ends)
        rows = grouped_product(gated(gate_up, routing.spread(shares)), self.down, routing.ends)
        out = routing.combine(rows) + torch.sigmoid(switch) * shared
        return out.view(x.shape), Load(routing.counts, probabilities.sum(0))

    def _shared(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the shared expert says, how far it is listened to, and the router's logits: one product makes most of it."""
        parts: list[Tensor] = [self.shared_gate_up, self.shared_switch, self.router]
        missing = -sum(map(len, parts)) % ALIGNED
        joined = F.pad(torch.cat(parts), (0, 0, 0, missing)).to(positions.dtype)
        widths = [self.shared_width, self.shared_width, 1, self.num_experts, missing]
        gate, up, switch, logits, _ = torch.split(F.linear(positions, joined), widths, -1)
        return F.linear(F.silu(gate) * up, self.shared_down.to(positions.dtype)), switch, logits


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
