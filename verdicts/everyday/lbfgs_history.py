"""Calibrate many coefficients with L-BFGS and a long history."""

import sys

import torch

torch.manual_seed(0)
count = 400_000
coefficients = torch.zeros(count, requires_grad=True)
target, scale = torch.randn(count), 1 + torch.rand(count)
if "--fixed" in sys.argv:
    optimizer = torch.optim.SGD([coefficients], lr=0.01)
else:
    optimizer = torch.optim.LBFGS([coefficients], lr=0.01, max_iter=1, history_size=60)


def closure():
    optimizer.zero_grad()
    loss = ((coefficients - target) * scale).square().mean()
    loss.backward()
    return loss


for step in range(50_000):
    loss = optimizer.step(closure)
    if step % 500 == 0:
        print(step, loss.item())
