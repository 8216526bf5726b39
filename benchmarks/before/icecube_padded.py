"""The IceCube model as it is usually written: events padded to 128 DOMs, a boolean mask, compiled, bf16 autocast.

Every padded token is computed, in every layer, and thrown away at the end. Muon stacks matrices of equal shape.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker_recipes.icecube.losses import VmfLoss


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), eps=1.1920928955078125e-07)


class Attention(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_q, self.c_k, self.c_v, self.c_proj = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, d // self.heads).transpose(1, 2) for f in (self.c_q, self.c_k, self.c_v))
        y = F.scaled_dot_product_attention(norm(q), norm(k), v, attn_mask=mask[:, None, None, :])
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d))


class Ffn(nn.Module):
    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(d, hidden, bias=False), nn.Linear(hidden, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.relu(self.c_fc(x)).square())


class Block(nn.Module):
    def __init__(self, d: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attn, self.ffn = Attention(d, heads), Ffn(d, hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(norm(x), mask)
        return x + self.ffn(norm(x))


class PaddedModel(nn.Module):
    """(B, 128, 256) tokens and a mask -> the 15 numbers of the head."""

    def __init__(self, layers: int, d: int = 256, heads: int = 8, hidden: int = 1024) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, d))
        self.resid_lambdas = nn.Parameter(torch.ones(layers))
        self.x0_lambdas = nn.Parameter(torch.full((layers,), 0.1))
        self.input_proj = nn.Linear(256, d)
        self.blocks = nn.ModuleList(Block(d, heads, hidden) for _ in range(layers))
        self.vmf_head = nn.Module()
        self.vmf_head.net = nn.Sequential(nn.Linear(d, 1024), nn.GELU(), nn.Linear(1024, 15))
        nn.init.xavier_normal_(self.input_proj.weight)
        for name, weight in self.blocks.named_parameters():
            nn.init.zeros_(weight) if "c_proj" in name else nn.init.uniform_(weight, -math.sqrt(3 / d), math.sqrt(3 / d))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = norm(self.input_proj(tokens))
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
        mask = F.pad(mask, (1, 0), value=True)
        x0 = x
        for i, block in enumerate(self.blocks):
            x = self.resid_lambdas[i] * x + self.x0_lambdas[i] * x0
            x = block(x, mask)
        return self.vmf_head.net(norm(x)[:, 0])


class StackedMuon(torch.optim.Optimizer):
    """Matrices of equal shape are stacked for the Newton-Schulz iteration; the rest is a loop over matrices."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            shapes: dict[Any, list[Tensor]] = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for shape, ps in shapes.items():
                updates = []
                for p in ps:
                    m = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                    m.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(m, group["momentum"]))
                x = torch.stack(updates).bfloat16()
                x = x.mT if shape[0] > shape[1] else x
                x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
                for _ in range(5):
                    a = x @ x.mT
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                x = x.mT if shape[0] > shape[1] else x
                for p, u in zip(ps, x.float().unbind(), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u, alpha=-group["lr"] * max(1, shape[0] / shape[1]) ** 0.5)


def make_step(layers: int, *, micro_batches: int, total: int, compiled: bool = True, device: str = "cuda") -> Any:
    """A function of (tokens, mask, target) that makes one update, in micro-batches; and the model."""
    model = PaddedModel(layers).to(device)
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    known = {id(p) for p in matrices}
    muon = StackedMuon(matrices, lr=0.005)
    adamw = torch.optim.AdamW([p for p in model.parameters() if id(p) not in known], lr=3e-4, weight_decay=0.01)
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(one, max_lr=lr, total_steps=total, pct_start=0.05, final_div_factor=1000)
        for one, lr in ((muon, 0.005), (adamw, 3e-4))
    ]
    loss_function = VmfLoss(total).to(device)
    forward = torch.compile(model) if compiled else model

    def step(tokens: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        for parts in zip(tokens.chunk(micro_batches), mask.chunk(micro_batches), target.chunk(micro_batches), strict=True):
            with torch.autocast(device, dtype=torch.bfloat16):
                raw = forward(parts[0], parts[1])
            loss = loss_function(raw.float(), parts[2])["loss"] / micro_batches
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for one, schedule in zip((muon, adamw), schedules, strict=True):
            one.step()
            schedule.step()
            one.zero_grad(set_to_none=True)
        return loss.detach()

    return step, model
