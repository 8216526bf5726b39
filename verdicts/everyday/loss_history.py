"""Mean loss of the epoch so far, shown by a progress line."""

import sys

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
EPOCH = 600
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
data = torch.randn(EPOCH * 32, 64)
target = data.pow(2).mean(dim=1, keepdim=True)

for epoch in range(10_000):
    history = []
    total = 0.0
    for x, y in zip(data.split(32), target.split(32)):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if FIXED:
            total += loss.item()
            mean = total / (len(history) + 1)
            history.append(None)
        else:
            history.append(loss)
            mean = sum(history) / len(history)
        line = f"\repoch {epoch} step {len(history)} mean loss {float(mean):.4f}"
