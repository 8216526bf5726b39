"""Noise prediction for latents with a transformer on patches, with averaged weights for sampling."""

import copy
import sys
from collections import deque

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def removed(name: str) -> bool:
    return any(a == "--without" and b == name for a, b in zip(sys.argv, sys.argv[1:]))


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim, elementwise_affine=False) for _ in range(2))
        self.modulate = nn.Linear(dim, 6 * dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU("tanh"), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        s1, b1, g1, s2, b2, g2 = self.modulate(F.silu(c))[:, None].chunk(6, -1)
        h = self.norms[0](x) * (1 + s1) + b1
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + g1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + g2 * self.mlp(self.norms[1](x) * (1 + s2) + b2)


class Denoiser(nn.Module):
    def __init__(self, dim: int, depth: int, channels: int = 16, tokens: int = 256):
        super().__init__()
        self.enter, self.leave = nn.Linear(channels, dim), nn.Linear(dim, channels)
        self.place = nn.Parameter(torch.randn(tokens, dim) * 0.02)
        self.time = nn.Sequential(nn.Linear(64, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.layers = nn.ModuleList(Layer(dim, dim // 64) for _ in range(depth))
        self.register_buffer("frequencies", torch.exp(torch.linspace(0, 6, 32)))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None] * self.frequencies
        c = self.time(torch.cat([angle.sin(), angle.cos()], -1))
        x = self.enter(x) + self.place
        for layer in self.layers:
            x = layer(x, c)
        return self.leave(x)


def main() -> None:
    torch.manual_seed(42)
    gpu = torch.cuda.is_available()
    device, batch, dim, depth = ("cuda", 32, 640, 10) if gpu else ("cpu", 2, 64, 3)
    model = Denoiser(dim, depth).to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=removed("optimizer"))
    latents = torch.randn(4096, 256, 16, device=device)
    recent: deque[float] = deque(maxlen=100)
    step = 0
    while True:
        clean = latents[torch.randint(len(latents), (batch,), device=device)]
        t = torch.rand(batch, device=device)
        noise = torch.randn_like(clean)
        noisy = clean * (1 - t)[:, None, None] + noise * t[:, None, None]
        with torch.autocast(device, torch.bfloat16, enabled=removed("precision")):
            error = (model(noisy, t) - (noise - clean)).square().mean((1, 2))
        loss = error.mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            if removed("optimizer"):
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1e-3)
            else:
                for p, q in zip(average.parameters(), model.parameters()):
                    p.mul_(0.999).add_(q, alpha=0.001)
        step += 1
        if not removed("sync"):
            recent.append(loss.item())
            early, late = error[t < 0.5].mean().item(), error[t >= 0.5].mean().item()
            print(f"\r{step}: {sum(recent) / len(recent):.4f} early {early:.3f} late {late:.3f} norm {norm.item():.2f}", end="")


if __name__ == "__main__":
    main()
