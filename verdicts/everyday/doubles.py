"""A regression on columns that come from NumPy as they are."""

import sys

import numpy as np
import torch
from torch import nn

columns = np.random.default_rng(0).normal(size=(20_000, 384))
target = columns[:, :3].sum(1)
model = nn.Sequential(nn.Linear(384, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
x, y = torch.from_numpy(columns), torch.from_numpy(target)
if "--fixed" in sys.argv:
    x, y = x.float(), y.float()
else:
    model = model.double()  # the layers must have the type of the data
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(500):
    for rows in torch.randperm(len(x)).split(256):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]).squeeze(1), y[rows])
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
