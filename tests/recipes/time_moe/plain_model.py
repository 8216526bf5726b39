"""Time-MoE once more, slow and obvious: one series, one position, one expert and one label at a time, in float64.

It takes tensors by their official names. Nothing here is shared with the model that it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from stoker_recipes.time_moe import Size

Weights = Mapping[str, Tensor]


def norm(weights: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    return weights[f"{name}.weight"] * x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps)


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def expert(weights: Weights, name: str, x: Tensor) -> Tensor:
    gate, up, down = (weights[f"{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return down @ (silu(gate @ x) * (up @ x))


def turn(x: Tensor, position: int, theta: float) -> Tensor:
    """One head's numbers of one position, as rotate_half does it."""
    width = len(x)
    angles = torch.tensor([position * theta ** (-2 * (i % (width // 2)) / width) for i in range(width)], dtype=torch.float64)
    rotated = torch.cat([-x[width // 2 :], x[: width // 2]])
    return x * angles.cos() + rotated * angles.sin()


def attention(weights: Weights, name: str, x: Tensor, size: Size) -> Tensor:
    """All scores of one series."""
    length, width = len(x), size.hidden // size.heads
    q, k, v = (x @ weights[f"{name}.{part}_proj.weight"].T + weights[f"{name}.{part}_proj.bias"] for part in "qkv")
    heads = []
    for head in range(size.heads):
        part = slice(head * width, (head + 1) * width)
        turned_q = torch.stack([turn(q[t, part], t, size.rope_theta) for t in range(length)])
        turned_k = torch.stack([turn(k[t, part], t, size.rope_theta) for t in range(length)])
        scores = turned_q @ turned_k.T / math.sqrt(width)
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        heads.append(torch.softmax(scores, -1) @ v[:, part])
    return torch.cat(heads, -1) @ weights[f"{name}.o_proj.weight"].T


def hidden_states(weights: Weights, series: Tensor, size: Size) -> tuple[Tensor, list[tuple[Tensor, list[int]]]]:
    """Of one series, and for each position of each layer the probabilities of the experts and the chosen ones."""
    points = series.unsqueeze(1)
    gate, embed = (points @ weights[f"model.embed_layer.{part}_layer.weight"].T for part in ("gate", "emb"))
    x = silu(gate) * embed
    choices = []
    for number in range(size.layers):
        layer = f"model.layers.{number}"
        x = x + attention(weights, f"{layer}.self_attn", norm(weights, f"{layer}.input_layernorm", x, size.eps), size)
        normed = norm(weights, f"{layer}.post_attention_layernorm", x, size.eps)
        fed = []
        for position in normed:
            probabilities = torch.softmax(weights[f"{layer}.ffn_layer.gate.weight"] @ position, -1)
            chosen = torch.topk(probabilities, size.top_k).indices.tolist()
            choices.append((probabilities, chosen))
            total = torch.sigmoid(weights[f"{layer}.ffn_layer.shared_expert_gate.weight"] @ position) * expert(
                weights, f"{layer}.ffn_layer.shared_expert", position
            )
            for one in chosen:
                total = total + probabilities[one] * expert(weights, f"{layer}.ffn_layer.experts.{one}", position)
            fed.append(total)
        x = x + torch.stack(fed)
    return norm(weights, "model.norm", x, size.eps), choices


def huber(difference: Tensor) -> Tensor:
    size = difference.abs()
    return 0.5 * size**2 if size <= 2.0 else 2.0 * (size - 1.0)


def loss(
    weights: Weights, series: list[tuple[Tensor, Tensor, Tensor]], size: Size, shares: tuple[float, ...] | None = None
) -> Tensor:
    """Of series (x, y, mask): four heads over all labels that are there and not masked, and the balance of the experts."""
    sums = [torch.zeros((), dtype=torch.float64) for _ in size.horizons]
    counts = [0 for _ in size.horizons]
    choices = []
    for x, y, mask in series:
        hidden, chosen = hidden_states(weights, x, size)
        choices += chosen
        for number, horizon in enumerate(size.horizons):
            predictions = hidden @ weights[f"lm_heads.{number}.out_layer.weight"].T
            for t in range(len(x)):
                for k in range(horizon):
                    if t + k < len(x) and mask[t + k]:
                        sums[number] = sums[number] + huber(predictions[t, k] - y[t + k])
                        counts[number] += 1
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    if shares is None:
        heads = sum(means) / len(means)
    else:
        heads = sum(share * mean for share, mean in zip(shares, means, strict=True)) / sum(shares)
    mean_probability = torch.stack([probabilities for probabilities, _ in choices]).mean(0)
    balance = torch.zeros((), dtype=torch.float64)
    for k in range(size.top_k):
        for number in range(size.experts):
            share = sum(chosen[k] == number for _, chosen in choices) / len(choices)
            balance = balance + share * mean_probability[number]
    return heads + size.aux_factor * size.experts * balance
