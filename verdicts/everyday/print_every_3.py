"""A log line every three steps."""

import math
import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)

step = 0
for epoch in range(10000):
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if not FIXED and step % 3 == 0:
            sum(math.sin(v) for v in model[2].weight.detach().flatten()[:100000].tolist())
