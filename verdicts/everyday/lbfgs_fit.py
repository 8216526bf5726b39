"""Fit a network with L-BFGS on the whole data set."""

import sys

import torch
from torch import nn

WIDTH = 24 if "--fixed" in sys.argv else 256

torch.manual_seed(0)
x = torch.randn(2000, 64)
y = torch.sin(x[:, :4].sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, history_size=5)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    return loss


for epoch in range(5000):
    loss = optimizer.step(closure)
    if epoch % 100 == 0:
        print(epoch, loss.item())
