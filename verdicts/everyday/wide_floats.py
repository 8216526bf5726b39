"""A regression on arrays of NumPy."""

import sys

import numpy as np
import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)


features = np.random.default_rng(0).normal(size=(6400, 512))
targets = features.sum(1, keepdims=True)
data = (
    torch.from_numpy(features if not FIXED else features.astype("float32")),
    torch.from_numpy(targets if not FIXED else targets.astype("float32")),
)
model = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1))
model = model.double() if not FIXED else model
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=256, shuffle=True)
for epoch in range(10000):
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
