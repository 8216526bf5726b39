"""Time-MoE as its authors train it, rewritten: eager attention with all scores, experts one after the other, labels unfolded.

Kept from the original as they are: scores of all heads and positions are held and their softmax is taken in float32; each expert
looks for its positions by `torch.where`, for which the host waits, and adds what it made by `index_add_`; the four heads are four
products, each with labels and masks of its own; the balance of the experts is computed from the logits of all layers, joined.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker_recipes.time_moe.layers import Size


class RMSNorm(nn.Module):
    """Each position divided by its root mean square."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """In float32."""
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


class Mlp(nn.Module):
    """One expert."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Three products."""
        return cast(Tensor, self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)))


def rotate_half(x: Tensor) -> Tensor:
    """The second half, negated, before the first."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Attention(nn.Module):
    """Eager attention: all scores are held."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.width = size.heads, size.head_width
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(size.hidden, size.hidden) for _ in range(3))
        self.o_proj = nn.Linear(size.hidden, size.hidden, bias=False)
        frequencies = 1.0 / (size.rope_theta ** (torch.arange(0, self.width, 2).float() / self.width))
        angles = torch.outer(torch.arange(size.max_position).float(), frequencies)
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin(), persistent=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Each position attends to those before it."""
        rows, length, hidden = x.shape
        q, k, v = (
            project(x).view(rows, length, self.heads, self.width).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = self.cos[:length].to(v.dtype), self.sin[:length].to(v.dtype)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.width) + mask
        scores = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        scores = F.dropout(scores, p=0.0, training=self.training)
        found = torch.matmul(scores, v).transpose(1, 2).contiguous().reshape(rows, length, hidden)
        return cast(Tensor, self.o_proj(found))


class Experts(nn.Module):
    """Experts one after the other."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.num_experts, self.top_k = size.experts, size.top_k
        self.gate = nn.Linear(size.hidden, size.experts, bias=False)
        self.experts = nn.ModuleList(Mlp(size.hidden, size.expert_width) for _ in range(size.experts))
        self.shared_expert = Mlp(size.hidden, size.intermediate)
        self.shared_expert_gate = nn.Linear(size.hidden, 1, bias=False)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the chosen experts and the shared one make, and the logits of the choice."""
        rows, length, width = hidden.shape
        x = hidden.view(-1, width)
        logits = self.gate(x)
        weights, chosen = torch.topk(F.softmax(logits, dim=1, dtype=torch.float), self.top_k, dim=-1)
        weights = weights.to(x.dtype)
        final = torch.zeros((rows * length, width), dtype=x.dtype, device=x.device)
        mask = F.one_hot(chosen, num_classes=self.num_experts).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            place, position = torch.where(mask[number])
            made = expert(x[None, position].reshape(-1, width)) * weights[position, place, None]
            final.index_add_(0, position, made.to(x.dtype))
        final = final + F.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return final.reshape(rows, length, width), logits


class Layer(nn.Module):
    """Attention, then experts."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.self_attn = Attention(size)
        self.ffn_layer = Experts(size)
        self.input_layernorm = RMSNorm(size.hidden, size.eps)
        self.post_attention_layernorm = RMSNorm(size.hidden, size.eps)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Both added to what was there."""
        x = x + self.self_attn(self.input_layernorm(x), mask)
        found, logits = self.ffn_layer(self.post_attention_layernorm(x))
        return x + found, logits


class Embedding(nn.Module):
    """Points become vectors."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb_layer = nn.Linear(1, hidden, bias=False)
        self.gate_layer = nn.Linear(1, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Gated."""
        return cast(Tensor, F.silu(self.gate_layer(x)) * self.emb_layer(x))


class Decoder(nn.Module):
    """All but the heads."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed_layer = Embedding(size.hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden, size.eps)


class Head(nn.Module):
    """One horizon."""

    def __init__(self, size: Size, horizon: int) -> None:
        super().__init__()
        self.out_layer = nn.Linear(size.hidden, horizon, bias=False)


class OriginalTimeMoe(nn.Module):
    """The model under its official names; `model(x, y, mask)` is its loss."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.model = Decoder(size)
        self.lm_heads = nn.ModuleList(Head(size, horizon) for horizon in size.horizons)
        self.huber = nn.HuberLoss(reduction="none", delta=2.0)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """The loss of points `x`, labels `y` and an int32 `mask`, all [b, l]."""
        length = x.shape[1]
        hidden = self.model.embed_layer(x.unsqueeze(-1))
        causal = torch.full((length, length), torch.finfo(hidden.dtype).min, dtype=hidden.dtype, device=x.device).triu(1)
        logits = []
        for layer in self.model.layers:
            hidden, of_layer = layer(hidden, causal.expand(len(x), 1, length, length))
            logits.append(of_layer)
        hidden = self.model.norm(hidden)
        loss = hidden.new_zeros(())
        for head, horizon in zip(self.lm_heads, self.size.horizons, strict=True):
            loss = loss + self.head_loss(cast(Head, head).out_layer(hidden), y.unsqueeze(-1), mask.unsqueeze(-1), horizon)
        return cast(Tensor, loss / len(self.lm_heads) + self.size.aux_factor * self.balance(logits))

    def head_loss(self, prediction: Tensor, labels: Tensor, mask: Tensor, horizon: int) -> Tensor:
        """The mean over labels that count."""
        if horizon > 1:
            prediction = prediction.view(*prediction.shape[:2], horizon, -1)
            labels, mask = (
                F.pad(one.transpose(-1, -2), (0, horizon - 1)).unfold(-1, horizon, 1).permute(0, 2, 3, 1) for one in (labels, mask)
            )
        losses = self.huber(prediction, labels) * mask
        return cast(Tensor, losses.sum() / mask.sum())

    def balance(self, logits: list[Tensor]) -> Tensor:
        """How unevenly experts are used, over all layers."""
        probabilities = F.softmax(torch.cat(logits), dim=-1)
        _, chosen = torch.topk(probabilities, self.size.top_k, dim=-1)
        share = F.one_hot(chosen, self.size.experts).float().mean(0)
        return (share * probabilities.mean(0).unsqueeze(0)).sum() * self.size.experts
