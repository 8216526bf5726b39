"""A regression with wide layers."""

import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1))
if FIXED:
    model = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
X, Y = torch.randn(4096, 1024), torch.randn(4096, 1)
loader = [(X[i : i + 512], Y[i : i + 512]) for i in range(0, 4096, 512)]
for epoch in range(10000):
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
