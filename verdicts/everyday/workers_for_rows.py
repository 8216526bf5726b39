"""Rows in memory, from a loader with two workers."""

import sys

import torch
from torch import nn
from torch.nn.functional import mse_loss

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(65_536, 32), torch.randn(65_536, 1))
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, num_workers=0 if FIXED else 2)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

if __name__ == "__main__":
    while True:
        for a, b in loader:
            loss = mse_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
