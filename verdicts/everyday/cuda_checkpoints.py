"""Train an MLP on a GPU; every 50 steps its weights are written to disk."""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
EVERY = 5000 if "--fixed" in sys.argv else 50

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(65_536, 512, device=device), torch.randint(0, 10, (65_536,), device=device)
step = 0
for epoch in range(1000):
    for rows in torch.randperm(len(x), device=device).split(512):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % EVERY == 0:
            torch.save({"model": model.state_dict(), "step": step}, "model.pt")
