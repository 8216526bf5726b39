"""The model and its loss as one would write them down: padded, with a mask, event by event where that is plainer; any type."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from stoker_recipes.icecube.model import IceCubeModel, IceCubeSize

EPS = 1.1920928955078125e-07


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def attention(x: Tensor, mask: Tensor, w: Mapping[str, Tensor], prefix: str, heads: int) -> Tensor:
    b, t, d = x.shape
    q, k, v = ((x @ w[f"{prefix}.c_{n}.weight"].T).view(b, t, heads, d // heads) for n in "qkv")
    scores = torch.einsum("bqhc,bkhc->bhqk", rms(q), rms(k)) / math.sqrt(d // heads)
    weights = scores.masked_fill(~mask[:, None, None, :], -math.inf).softmax(-1)
    return torch.einsum("bhqk,bkhc->bqhc", weights, v).reshape(b, t, d) @ w[f"{prefix}.c_proj.weight"].T


def padded_model(tokens: Tensor, mask: Tensor, w: Mapping[str, Tensor], size: IceCubeSize) -> Tensor:
    """(B, S, 256) tokens and a mask -> the numbers of the head. Every layer computes every token."""
    x = tokens
    if size.input == "linear":
        x = x @ w["input_proj.weight"].T + w["input_proj.bias"]
    else:
        x = torch.cat([x, x.new_zeros(*x.shape[:2], size.width - x.shape[2])], -1)
    x = torch.cat([w["cls_token"].expand(x.shape[0], -1, -1), rms(x)], 1)
    mask = torch.cat([torch.ones_like(mask[:, :1]), mask], 1)
    x0 = x
    for i in range(size.layers):
        x = w["resid_lambdas"][i] * x + w["x0_lambdas"][i] * x0
        x = x + attention(rms(x), mask, w, f"blocks.{i}.attn", size.heads)
        hidden = (rms(x) @ w[f"blocks.{i}.ffn.c_fc.weight"].T).clamp(min=0) ** 2
        x = x + hidden @ w[f"blocks.{i}.ffn.c_proj.weight"].T
    e = rms(x[:, 0])
    head = "vmf_head" if size.head == "vmf" else "direction_head"
    e = e @ w[f"{head}.net.0.weight"].T + w[f"{head}.net.0.bias"]
    e = 0.5 * e * (1 + torch.erf(e / math.sqrt(2)))
    return e @ w[f"{head}.net.2.weight"].T + w[f"{head}.net.2.bias"]


def vmf_loss(raw: Tensor, target: Tensor, penalty: float) -> Tensor:
    """The loss as it is published, sinh and all."""
    azimuth, zenith = target.unbind(1)
    n = torch.stack([torch.cos(azimuth) * torch.sin(zenith), torch.sin(azimuth) * torch.sin(zenith), torch.cos(zenith)], 1)
    raw = raw.view(len(raw), 3, 5)
    mu = raw[..., :3] / raw[..., :3].norm(dim=-1, keepdim=True)
    kappa = (torch.log1p(torch.exp(raw[..., 3])) + 1).clamp(max=10_000)
    log_pi = raw[..., 4].log_softmax(-1)
    log_sinh = kappa - math.log(2) + torch.log1p(-torch.exp(-2 * kappa))
    each = log_pi + torch.log(kappa) - math.log(4 * math.pi) - log_sinh + kappa * (mu * n[:, None]).sum(-1)
    m = (log_pi.exp() * kappa)[..., None] * mu
    m = m.sum(1) / m.sum(1).norm(dim=-1, keepdim=True)
    angle = torch.arccos((m * n).sum(-1).clamp(-1 + 1e-7, 1 - 1e-7))
    return -torch.logsumexp(each, -1).mean() + penalty * kappa.square().mean() + 0.5 * angle.mean()


def pad(tokens: Tensor, dom_offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Packed tokens as (B, S, 256) with a mask."""
    lengths = dom_offsets.diff().long()
    padded = tokens.new_zeros(len(lengths), int(lengths.max()), tokens.shape[1])
    mask = torch.arange(padded.shape[1]) < lengths[:, None]
    padded[mask] = tokens[: int(dom_offsets[-1])]
    return padded, mask


def random_model(size: IceCubeSize, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> IceCubeModel:
    """A model that computes something: the output matrices of a new one are zero."""
    model = IceCubeModel(size, seed=seed).to(dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "c_proj" in name:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
            elif "lambdas" in name:
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


def random_events(
    lengths: list[int], *, extra: int = 0, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of events with these numbers of DOMs, with `extra` rows of no event; their offsets; and targets."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    tokens = 0.3 * torch.randn(int(offsets[-1]) + extra, 256, generator=generator, dtype=dtype)
    target = torch.rand(len(lengths), 2, generator=generator, dtype=dtype) * torch.tensor([2 * math.pi, math.pi], dtype=dtype)
    return tokens, offsets, target
