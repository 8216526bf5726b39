"""Gradients of several batches per update; a validation every ten updates."""

import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)

VX, VY = torch.randn(8000, 128), torch.randn(8000, 1)
updates = 0
for epoch in range(10000):
    for i, (x, y) in enumerate(loader):
        loss = ((model(x) - y) ** 2).mean() / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            if not FIXED and updates % 10 == 0:
                model.eval()
                with torch.no_grad():
                    for j in range(0, 8000, 50):
                        model(VX[j : j + 50]).sum().item()
                model.train()
