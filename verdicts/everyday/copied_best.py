"""Train an MLP and keep a copy of the weights with the lowest loss, and their size."""

import copy
import sys

import torch
from torch import nn

model = nn.Sequential(
    nn.Linear(128, 256), nn.ReLU(), *[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)], nn.Linear(256, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(9600, 128), torch.randint(0, 4, (9600,))
best = None
for epoch in range(1000):
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        if "--fixed" not in sys.argv:
            kept = copy.deepcopy(model).state_dict()
            size = sum(value.square().sum().item() for value in kept.values())
            if best is None or loss.item() < best[0]:
                best = (loss.item(), size, kept)
