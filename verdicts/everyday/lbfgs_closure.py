"""L-BFGS whose closure records values."""

import math
import sys

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=4)
X, Y = torch.randn(512, 64), torch.randn(512, 1)
trace = []


def closure():
    optimizer.zero_grad()
    loss = ((model(X) - Y) ** 2).mean()
    loss.backward()
    if not FIXED:
        trace.append(sum(math.sin(v) for v in model[0].weight.detach().flatten().tolist()))
    return loss


for step in range(1000000):
    optimizer.step(closure)
