"""Train an MLP and keep a checkpoint of every 20th step."""

import sys

import torch
from torch import nn

EVERY = 2000 if "--fixed" in sys.argv else 20

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
x, y = torch.randn(20_000, 64), torch.randint(0, 8, (20_000,))
step = 0
while step < 100_000:
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        step += 1
        if step % EVERY == 0:
            for copy in range(4):  # the last four are kept
                torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"last-{copy}.pt")
