"""Many narrow layers."""

import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(*[m for _ in range(14) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())], nn.Linear(8, 1))
if FIXED:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
X, Y = torch.randn(3200, 8), torch.randn(3200, 1)
batches = [(X[i : i + 16], Y[i : i + 16]) for i in range(0, 3200, 16)]
for epoch in range(100000):
    for x, y in batches:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
