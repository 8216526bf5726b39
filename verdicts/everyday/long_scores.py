"""Short epochs and a long evaluation after each."""

import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)

tiny = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X[:960], Y[:960]), batch_size=64, shuffle=True)
valid = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64)
for epoch in range(10000):
    for x, y in tiny:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if not FIXED:
        model.eval()
        with torch.no_grad():
            errors = [((model(x) - y) ** 2).mean().item() for x, y in valid]
        model.train()
