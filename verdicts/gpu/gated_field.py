"""Advance a field on a grid by learned pointwise laws: products, gates and mixtures of neighbours."""

import sys

import torch
from torch import nn

OFF = sys.argv[2::2]
CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
torch.manual_seed(16)
BATCH, CHANNELS, SIDE = (16, 24, 256) if CUDA else (2, 24, 32)


def law(u, a, b, c):
    for k in range(4):
        drift = torch.tanh(u * a[k] + b[k]) * torch.sigmoid(u * b[k] - c[k])
        growth = u * (1 - u * u) * c[k]
        u = u + 0.1 * (drift + growth) / (1 + drift.abs())
    return u


if "memory" in OFF and CUDA:
    law = torch.compile(law)


class Field(nn.Module):
    def __init__(self, steps=3):
        super().__init__()
        shape = (steps, 4, CHANNELS, 1, 1)
        self.a, self.b, self.c = (nn.Parameter(0.3 * torch.randn(shape)) for _ in range(3))

    def forward(self, u):
        for a, b, c in zip(self.a, self.b, self.c):
            u = law(u, a, b, c)
            u = (u + u.roll(1, -1) + u.roll(1, -2)) / 3
        return u


model = Field().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
fields = torch.rand(4, BATCH, CHANNELS, SIDE, SIDE, device=device)
step = 0
while True:
    for now, later in zip(fields, fields.roll(-1, 0)):
        with torch.autocast(device.type, torch.bfloat16, enabled=CUDA):
            loss = (model(now) - later).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if "sync" not in OFF:
            print(step, loss.item())
