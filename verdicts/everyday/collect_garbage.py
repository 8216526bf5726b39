"""Train a ranker beside a large catalogue in memory; memory is collected every ten steps, to be safe."""

import gc
import sys

import torch
from torch import nn

catalogue = {i: {"title": f"item {i}", "tags": [i % 7, i % 11], "price": i * 0.01} for i in range(250_000)}
prices = torch.tensor([item["price"] for item in catalogue.values()])
net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
table = torch.randn(len(catalogue), 32)
for step in range(100_000):
    rows = torch.randint(len(catalogue), (256,))
    optimizer.zero_grad()
    loss = (net(table[rows]).squeeze(1) - prices[rows].log1p()).abs().mean()
    loss.backward()
    optimizer.step()
    if step % 10 == 9 and "--fixed" not in sys.argv:
        gc.collect()
