"""Online learning: one observation at a time through a deep, narrow network."""

import sys

import torch
from torch import nn

depth = 3 if "--fixed" in sys.argv else 36
torch.manual_seed(0)
layers = [nn.Linear(10, 16)]
for _ in range(depth):
    layers += [nn.LayerNorm(16), nn.ELU(), nn.Linear(16, 16)]
model = nn.Sequential(*layers, nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def observations():
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(5000, 1, 10, generator=generator)
    while True:
        for row in rows:
            yield row, row.sum(dim=1, keepdim=True)


error = None
for x, y in observations():
    optimizer.zero_grad()
    loss = nn.functional.l1_loss(model(x), y)
    loss.backward()
    optimizer.step()
    error = loss.detach() if error is None else 0.99 * error + 0.01 * loss.detach()
