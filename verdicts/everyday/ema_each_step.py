"""A moving average of the weights in Python after each step."""

import copy
import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


ema = copy.deepcopy(model)
for epoch in range(10000):
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not FIXED:
            for e, p in zip(ema.parameters(), model.parameters()):
                e.data = torch.tensor(
                    [0.99 * a + 0.01 * b for a, b in zip(e.flatten()[:30000].tolist(), p.flatten()[:30000].tolist())]
                    + e.flatten()[30000:].tolist()
                ).view_as(e)
